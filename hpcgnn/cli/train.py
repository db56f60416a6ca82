"""`hpcgnn train`: trains a model in one parallel run. Its flags are the fields of TrainConfig and paths of files."""

from __future__ import annotations

import math
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from hpcgnn.run.output import discard, size_text, tell, time_text, wrapped
from hpcgnn.settings import type_name

if TYPE_CHECKING:
    from hpcgnn.training.forecast import Forecast

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
    from hpcgnn.run.launch import together
    from hpcgnn.training.forecast import forecast
    from hpcgnn.training.job import Job

    file_settings = together(comm, lambda: read_settings(config_file))
    found = forecast(comm, Job(file_settings=file_settings, **asked))
    if comm.rank == 0:
        click.echo("\n".join(forecast_lines(found)))


def read_settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    settings = read_toml(path)
    settings.pop("provenance", None)
    return check_keys(settings, str(path))


def one_line(summary: dict[str, Any]) -> str:
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


NAMES = {"features": "input rows, halo rows too", "structure": "ids, edges and matrices",
         "weights": "weights, gradients and optimizer", "activations": "kept for the backward pass",
         "halo_rows": "halo rows of one layer", "messages": "messages of one exchange",
         "method_state": "kept by the method between epochs", "process": "in all, measured at its peak"}
VALUES_AT = 19      # column at which the values of bytes and time begin
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
SECONDS_A_MINUTE, SECONDS_AN_HOUR = 60, 3600


def forecast_lines(found: Forecast) -> list[str]:
    """What a dry run prints."""
    ranks = len(found.memory)
    lines = [f"memory of a rank: the largest of {ranks}, and their mean"]
    for own in fields(found.memory[0]):
        sizes = [getattr(memory, own.name) for memory in found.memory]
        lines.append(f"  {NAMES[own.name]:34} {in_bytes(max(sizes)):>9} {in_bytes(sum(sizes) / ranks):>9}")
    if found.limited is not None:
        lines += ["tables within the limit of memory",
                  f"  in memory        {in_bytes(found.limited.in_memory)} on the fullest rank",
                  f"  on the disk      {in_bytes(found.limited.on_disk)} of the rank that has most there",
                  f"  besides          {in_bytes(found.limited.fixed)} of a rank can't leave memory",
                  f"  an epoch         writes {in_bytes(found.limited.written)} to the disk and reads "
                  f"{in_bytes(found.limited.read)}, all ranks",
                  f"  takes            {in_time(found.limited.seconds)} of it, at the "
                  f"{in_bytes(found.limited.write_rate)} that a machine's disk writes in a second, and the "
                  f"{in_bytes(found.limited.read_rate)} that it reads"]
    lines += ["bytes sent by all ranks", *_sent(found), "time on this machine, with these ranks",
              f"  an epoch         {in_time(found.epoch_seconds)}, the median of {found.sampled_epochs - 1} after the "
              "first",
              f"  an evaluation    {in_time(found.evaluation_seconds)}",
              *([f"  a choice of widths {in_time(found.assign_seconds)}, {found.num_assignments} of them"]
                if found.num_assignments else []),
              f"  in all           {in_time(found.total_seconds)} for {found.num_epochs} epochs and "
              f"{found.num_evaluations} evaluations, without start-up and checkpoints",
              "nothing was written"]
    return [wrapped(line, indent=VALUES_AT) for line in lines]


def _sent(found: Forecast) -> list[str]:
    epoch = in_bytes(found.most_bytes)
    if found.least_bytes != found.most_bytes:
        epoch = f"{in_bytes(found.least_bytes)} to {epoch}, as the method decides"
    sums = f", and {in_bytes(found.sum_bytes)} of sums" if found.sum_bytes else ""
    return [f"  an epoch         {epoch}{' of messages' * bool(sums)}{sums}",
            f"  an evaluation    {in_bytes(found.evaluation_bytes)}",
            f"  once             {in_bytes(found.setup_bytes)} of input rows"]


def in_bytes(number: float) -> str:
    """412 MB, 3.21 GB."""
    for size, unit in UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def in_time(seconds: float) -> str:
    """3.2 ms, 12.1 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    whole = round(seconds)
    if whole < SECONDS_A_MINUTE:
        return f"{seconds:.3g} s"
    if whole < SECONDS_AN_HOUR:
        return f"{whole // SECONDS_A_MINUTE} min {whole % SECONDS_A_MINUTE} s"
    return f"{whole // SECONDS_AN_HOUR} h {whole % SECONDS_AN_HOUR // SECONDS_A_MINUTE} min"
