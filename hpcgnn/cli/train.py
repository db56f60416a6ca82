"""`hpcgnn train`: trains a model in one parallel run. Its flags are the fields of TrainConfig and paths of files."""

from __future__ import annotations

import math
import sys
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from hpcgnn.cli import GivenPath
from hpcgnn.cli.grouped import GroupedCommand, GroupedOption, RareSetting
from hpcgnn.config import (
    GPU,
    LINK_TRAINING,
    MESSAGES,
    MODEL,
    QUANTIZATION,
    RUN,
    TRAINING,
    check_keys,
    known_settings,
)
from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS, users_of
from hpcgnn.registry import parse_value, read_toml
from hpcgnn.run.output import discard, size_text, tell, time_text
from hpcgnn.settings import type_name

METHOD = "Method"
TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def _heading(own: Field) -> str:
    # Settings of a method are listed under the names of the methods that have them.
    return own.metadata["group"] or f"Method {', '.join(users_of(own.name))}"


def _headings() -> list[str]:
    of_methods = dict.fromkeys(_heading(own) for own in known_settings() if own.metadata and not own.metadata["group"])
    return [MODEL, METHOD, *of_methods, TRAINING, LINK_TRAINING, MESSAGES, QUANTIZATION, GPU, RUN]


def _help_of(own: Field) -> str:
    choices = own.metadata["choices"]
    text = own.metadata["description"] + (f" One of {', '.join(map(str, choices))}." if choices else "")
    return f"{text} [default: {own.default}, or the preset's]"


def _with_settings(function):
    settings = [own for own in known_settings() if own.name != "method"]
    options = {METHOD: [click.option(
        "--method", cls=GroupedOption, heading=METHOD, help=f"How halo rows are sent. One of {', '.join(METHODS)}, or "
        "your own as MODULE:CLASS. [default: vanilla, or the preset's]")]}
    for own in settings:
        if own.metadata["flag"] == "none":
            continue
        flag = "--" + own.name.replace("_", "-")
        options.setdefault(_heading(own), []).append(click.option(
            f"{flag}/--no-{flag[2:]}" if type_name(own) == "bool" else flag, type=TYPES[type_name(own)], default=None,
            cls=GroupedOption, heading=_heading(own), is_common=own.metadata["flag"] == "common",
            help=_help_of(own)))
    for option in reversed([option for heading in _headings() for option in options.get(heading, ())]):
        function = option(function)
    return function


def _rare_settings() -> list[RareSetting]:
    return [RareSetting(own.name, _heading(own), _help_of(own)) for own in known_settings()
            if own.name != "method" and own.metadata["flag"] == "none"]


def read_assignments(words: tuple[str, ...]) -> dict[str, Any]:
    """Settings of `--set NAME=VALUE`, each in its declared type; a user's own method gets values as TOML reads them.

    Raises
    ------
    ConfigError      a word without `=`, a name that is given twice, or a value of another type
    """
    types, found = {own.name: type_name(own) for own in known_settings()} | {"method": "str"}, {}
    for word in words:
        name, is_assigned, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if not is_assigned or name in found:
            raise ConfigError(f"--set {word} is no NAME=VALUE" if not is_assigned else f"--set names {name} twice")
        found[name] = parse_value(name, text.strip(), types.get(name))
    return found


@click.command(cls=GroupedCommand, headings=_headings(), rare_settings=_rare_settings)
@click.argument("shards", type=GivenPath())
@_with_settings
@click.option("--preset", cls=GroupedOption,
              help="Hyper-parameters of a paper for this dataset, from the registry: adaqp, sylvie, deep, planetoid.")
@click.option("--config", "config_file", cls=GroupedOption, type=GivenPath(),
              help="TOML file of settings.")
@click.option("--set", "assignments", cls=GroupedOption, multiple=True, metavar="NAME=VALUE",
              help="Any setting by its name; may be repeated. --help-all lists the settings without a flag.")
@click.option("--out", cls=GroupedOption, type=GivenPath(),
              help="Run folder. [default: runs/DATASET-MODEL-METHODBITS[-QUANTIZE]-pRANKS]")
@click.option("--resume", cls=GroupedOption, is_flag=True,
              help="Go on from the run folder's checkpoint; start anew if there is none.")
@click.option("--overwrite", cls=GroupedOption, is_flag=True, help="Replace the run that the folder holds.")
@click.option("--dry-run", cls=GroupedOption, is_flag=True,
              help="Print memory, bytes and time of the run; a few epochs are trained, and no file is written.")
@click.option("--other-graph", cls=GroupedOption, is_common=False, is_flag=True,
              help="Resume on another graph, split or features than before.")
def command(shards: Path, config_file: Path | None, assignments: tuple[str, ...], dry_run: bool, **flags: Any) -> None:
    """Train a model on the graph in SHARDS, one MPI rank per part.

    Settings come from defaults, --preset, --config FILE, and flags and --set, the later ones winning. A rank that gets
    SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP or SIGQUIT makes all ranks write a checkpoint and end with status
    75; Open MPI's mpirun hands on SIGUSR1 and SIGUSR2 only.
    """
    of_job = {name: flags.pop(name) for name in ("preset", "out", "resume", "overwrite", "other_graph")}
    if of_job["resume"] and of_job["overwrite"]:
        raise click.UsageError("--resume and --overwrite contradict each other")
    if of_job["other_graph"] and not of_job["resume"]:
        raise click.UsageError("--other-graph has no effect without --resume")
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = read_assignments(assignments)
    for name in sorted(given.keys() & assigned.keys()):
        raise click.UsageError(f"--{name.replace('_', '-')} and --set {name} contradict each other")
    asked = {"shards": shards, "settings": {**given, **assigned}, **of_job}
    # MPI is started, and the threads shared out, before torch is imported.
    from hpcgnn.run.launch import run_parallel

    run_parallel(lambda comm: (forecast_and_tell if dry_run else train_and_tell)(comm, config_file, asked))


def train_and_tell(comm, config_file: Path | None, asked: dict[str, Any]) -> None:
    """Collective: train the Job made from `asked` and the file's settings; rank 0 prints the result."""
    from hpcgnn.run.launch import together
    from hpcgnn.training.job import Job, train

    file_settings = together(comm, lambda: read_settings(config_file))
    finished = train(comm, Job(file_settings=file_settings, **asked))
    if comm.rank == 0:
        show_result(f"{one_line(finished.summary)}\nrun folder: {finished.run.folder.path}")


def show_result(text: str) -> None:
    """Print the result of a complete run; if standard output can't be written, say so on standard error."""
    try:
        click.echo(text)
    except (OSError, ValueError) as error:
        discard(sys.stdout)
        tell(f"hpcgnn: standard output can't be written ({getattr(error, 'strerror', None) or error}); the run is "
             f"complete: {text}")


def forecast_and_tell(comm, config_file: Path | None, asked: dict[str, Any]) -> None:
    """Collective: rank 0 prints what the Job made from `asked` and the file's settings would take."""
    from hpcgnn.cli.forecast import forecast_lines
    from hpcgnn.run.launch import together
    from hpcgnn.training.forecast import forecast
    from hpcgnn.training.job import Job

    file_settings = together(comm, lambda: read_settings(config_file))
    found = forecast(comm, Job(file_settings=file_settings, **asked))
    if comm.rank == 0:
        click.echo("\n".join(forecast_lines(found)))


def read_settings(path: Path | None) -> dict[str, Any]:
    """Settings of a TOML file, without the [provenance] of a run folder's config.toml."""
    if path is None:
        return {}
    settings = read_toml(path)
    settings.pop("provenance", None)
    return check_keys(settings, str(path))


def one_line(summary: dict[str, Any]) -> str:
    """The result in one line, for logs."""
    score = shown_score(summary["test_score"], summary["test_score_std"] if len(summary["seeds"]) > 1 else None,
                        summary["score_is_share"])
    bits = next((f"{value:.4g}" for value in (summary["bits"], summary["mean_bits"]) if value is not None), "none")
    integers = (f"{summary['quantize']} {summary['mean_feature_bits']:.2f} bits per feature, "
                f"{summary['stored_kb']:.0f} of {summary['float_kb']:.0f} KB, " if "quantize" in summary else "")
    if "test_score_by_chance" in summary:
        score += f" (by chance {shown_score(summary['test_score_by_chance'], None, summary['score_is_share'])})"
    return (f"{summary['dataset']} {summary['model']} {summary['precision']} {summary['method']} "
            f"bits={bits} ranks={summary['ranks']}: {integers}"
            f"test {summary['score_name']} {score}, {_cost(summary)}")


def shown_score(score: float, spread: float | None, is_share: bool) -> str:
    """A score with its spread over seeds, in percent if it is a share."""
    if score is None or math.isnan(score):
        return "- (no labeled node or held-out link is in the test split)"
    factor, digits, unit = (100, ".2f", " %") if is_share else (1, ".4g", "")
    return f"{factor * score:{digits}}" + ("" if spread is None else f" ± {factor * spread:{digits}}") + unit


def _cost(summary: dict[str, Any]) -> str:
    if summary["median_epoch_seconds"] is None:
        return "no epoch recorded"
    sent, messages = summary["sent_bytes_per_epoch"], summary["sent_bytes_messages_per_epoch"]
    share = f", {size_text(messages)} of it messages" if messages < sent else ""
    disk = (f", {size_text(summary['disk_bytes_spilled_per_epoch'])} of tables written to disk and "
            f"{size_text(summary['disk_bytes_fetched_per_epoch'])} read"
            if "disk_bytes_spilled_per_epoch" in summary else "")
    return f"{time_text(summary['median_epoch_seconds'])} and {size_text(sent)} an epoch{share}{disk}"
