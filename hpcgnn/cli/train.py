"""`hpcgnn train`: flags in, one parallel run out. Its flags are the fields of TrainConfig and where files lie."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any

import click

from hpcgnn.cli.grouped import GroupedCommand, GroupedOption, RareSetting
from hpcgnn.config import (
    GPU,
    MESSAGES,
    MODEL,
    QUANTIZATION,
    RUN,
    TRAINING,
    TrainConfig,
    check_keys,
    known_settings,
    resolve_train_config,
)
from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS, name_of, users_of
from hpcgnn.registry import parse_value, read_toml
from hpcgnn.settings import type_name

METHOD = "Method"
TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def _heading(own: Field) -> str:
    """Return the heading that help lists a setting under; a method's own setting has its users' names."""
    return own.metadata["group"] or f"Method {', '.join(users_of(own.name))}"


def _headings() -> list[str]:
    """Return the headings of help in their order."""
    of_methods = dict.fromkeys(_heading(own) for own in known_settings() if own.metadata and not own.metadata["group"])
    return [MODEL, METHOD, *of_methods, TRAINING, MESSAGES, QUANTIZATION, GPU, RUN]


def _help_of(own: Field) -> str:
    """Return a setting's sentence of help, its choices and its default."""
    choices = own.metadata["choices"]
    text = own.metadata["description"] + (f" One of {', '.join(map(str, choices))}." if choices else "")
    return f"{text} [default: {own.default}, or the preset's]"


def _with_settings(function):
    """Give a command an option for every setting, under the heading of its owner."""
    settings = [own for own in known_settings() if own.name != "method"]
    options = {METHOD: [click.option(
        "--method", cls=GroupedOption, heading=METHOD, help=f"How halo rows are sent. One of {', '.join(METHODS)}, or "
        "your own as MODULE:CLASS. [default: vanilla, or the preset's]")]}
    for own in settings:
        if not own.metadata["has_flag"]:
            continue
        flag = "--" + own.name.replace("_", "-")
        options.setdefault(_heading(own), []).append(click.option(
            f"{flag}/--no-{flag[2:]}" if type_name(own) == "bool" else flag, type=TYPES[type_name(own)], default=None,
            cls=GroupedOption, heading=_heading(own), is_common=own.metadata["is_common"],
            help=_help_of(own)))
    for option in reversed([option for heading in _headings() for option in options.get(heading, ())]):
        function = option(function)
    return function


def _rare_settings() -> list[RareSetting]:
    """Return the settings without a flag, with the heading that each belongs under."""
    return [RareSetting(own.name, _heading(own), _help_of(own)) for own in known_settings()
            if own.name != "method" and not own.metadata["has_flag"]]


def read_assignments(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of `--set NAME=VALUE`, each of its own type, or where it is a method's of one's own as TOML
    reads the value.

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
@click.argument("shards", type=click.Path(path_type=Path))
@_with_settings
@click.option("--preset", cls=GroupedOption,
              help="Hyper-parameters of a paper, from the registry: adaqp, sylvie, planetoid.")
@click.option("--config", "config_file", cls=GroupedOption, type=click.Path(path_type=Path),
              help="TOML file of settings.")
@click.option("--set", "assignments", cls=GroupedOption, multiple=True, metavar="NAME=VALUE",
              help="Any setting by its name, several times where needed; --help-all lists those without a flag.")
@click.option("--out", cls=GroupedOption, type=click.Path(path_type=Path),
              help="Run folder. [default: runs/DATASET-MODEL-METHODBITS[-QUANTIZE]-pRANKS]")
@click.option("--resume", cls=GroupedOption, is_flag=True,
              help="Go on from the run folder's checkpoint; start anew if there is none.")
@click.option("--overwrite", cls=GroupedOption, is_flag=True, help="Replace the run that the folder holds.")
@click.option("--other-graph", cls=GroupedOption, is_common=False, is_flag=True,
              help="Resume on another graph, split or features than before.")
def command(shards: Path, preset: str | None, config_file: Path | None, assignments: tuple[str, ...],
            out: Path | None, resume: bool, overwrite: bool, other_graph: bool, **flags: Any) -> None:
    """Train a model on the graph in SHARDS, one MPI rank a part.

    Settings come from defaults, the registry's preset for the dataset, --config FILE, and flags and --set, the later
    ones winning. A rank that gets SIGTERM, SIGINT or SIGUSR1 has all write a checkpoint and end with status 75; Open
    MPI's mpirun hands on SIGUSR1 only.
    """
    if resume and overwrite:
        raise click.UsageError("--resume and --overwrite contradict each other")
    if other_graph and not resume:
        raise click.UsageError("--other-graph has no effect without --resume")
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = read_assignments(assignments)
    for name in sorted(given.keys() & assigned.keys()):
        raise click.UsageError(f"--{name.replace('_', '-')} and --set {name} contradict each other")
    request = Request(shards, {**given, **assigned}, preset, config_file, out, resume, overwrite, other_graph)
    # MPI is started, and the threads shared out, before torch is imported.
    from hpcgnn.launch import run_parallel

    run_parallel(lambda comm: train_in_parallel(comm, request))


@dataclass(frozen=True)
class Request:
    """Hold what the command line asks for, the same on all ranks; see the command's options.

    settings : dict      given by flags and --set
    """

    shards: Path
    settings: dict[str, Any]
    preset: str | None
    config_file: Path | None
    out: Path | None
    resume: bool
    overwrite: bool
    other_graph: bool


def train_in_parallel(comm, request: Request) -> None:
    """Collective: resolve the settings, open or create the run folder, train, and print the result on rank 0."""
    from hpcgnn.launch import together, watch
    from hpcgnn.shards.reader import check_num_parts, read_graph_info

    info = together(comm, lambda: read_graph_info(request.shards))
    together(comm, lambda: check_num_parts(info, comm.size))
    file_settings = together(comm, lambda: read_settings(request.config_file))
    config = together(comm, lambda: resolve_train_config(info.name, request.settings, file_settings, request.preset))
    watch(comm, config.timeout)
    from hpcgnn.training.run_lock import RunLock

    lock = RunLock(request.out or default_run_folder(config, info.name, comm.size))
    with ExitStack() as stack:
        # Before anything in the folder is read or changed, and before torch is imported, which takes seconds.
        together(comm, lambda: stack.enter_context(lock) if comm.rank == 0 else None)
        from hpcgnn.training.metrics import RunFolder

        folder = RunFolder(lock.folder, lock)
        summary = _train_in(comm, folder, info, request, file_settings)
    if comm.rank == 0:
        click.echo(one_line(summary))
        click.echo(f"run folder: {folder.path}")


def _train_in(comm, folder, info, request: Request, file_settings: dict[str, Any]) -> dict[str, Any]:
    """Collective: train in a folder that is this run's own, and return the summary."""
    from hpcgnn.launch import together, watch_closely
    from hpcgnn.training.opening import find_checkpoint, open_folder, without_auto_precision

    settings, resumed, remark = request.settings, None, None
    if request.resume:
        resumed, remark = together(comm, lambda: find_checkpoint(folder, info, {**file_settings, **settings},
                                                                 request.other_graph))
    if resumed:
        settings, file_settings = without_auto_precision(settings), without_auto_precision(file_settings)
    written = resumed.settings if resumed else {}
    config = together(comm, lambda: resolve_train_config(info.name, settings, {**written, **file_settings},
                                                         request.preset))
    # These import torch, which takes seconds: what needs no torch is refused before.
    from hpcgnn.training.interrupt import end_if_asked
    from hpcgnn.training.session import Session
    from hpcgnn.training.trainer import TrainingRun

    end_if_asked(comm)
    session = Session.open(comm, request.shards, config, info)
    # Refuses a checkpoint that does not fit, before the folder is touched.
    run = TrainingRun(session, folder, resumed)
    if comm.rank == 0 and request.resume and resumed is None:
        click.echo(f"{folder.checkpoint} does not exist yet; starting anew", err=True)

    end_if_asked(comm)

    def prepare_folder() -> list[str]:
        return open_folder(folder, session, resumed, remark, request.overwrite, request.resume,
                           request.shards) if comm.rank == 0 else []

    for sentence in together(comm, prepare_folder):
        click.echo(f"hpcgnn: {sentence}", err=True)
    watch_closely(comm, config.timeout, folder.path)
    return run.execute()


def default_run_folder(config: TrainConfig, dataset: str, num_ranks: int) -> Path:
    """Return the run folder of a run that names none."""
    model, method = config.model.replace(":", "."), name_of(config.method).replace(":", ".")
    scheme = "" if config.quantize == "none" else f"-{config.quantize}"
    return Path("runs") / f"{dataset}-{model}-{method}{config.method.folder_suffix}{scheme}-p{num_ranks}"


def read_settings(path: Path | None) -> dict[str, Any]:
    """Settings of a TOML file; the [provenance] that a run folder's config.toml carries is not a setting."""
    if path is None:
        return {}
    settings = read_toml(path)
    settings.pop("provenance", None)
    return check_keys(settings, str(path))


def one_line(summary: dict[str, Any]) -> str:
    """The result in one line for logs."""
    spread = f" ± {100 * summary['test_score_std']:.2f}" if len(summary["seeds"]) > 1 else ""
    bits = next((f"{value:.4g}" for value in (summary["bits"], summary["mean_bits"]) if value is not None), "none")
    integers = (f"{summary['quantize']} {summary['mean_feature_bits']:.2f} bits a feature, "
                f"{summary['stored_kb']:.0f} of {summary['float_kb']:.0f} KB, " if "quantize" in summary else "")
    return (f"{summary['dataset']} {summary['model']} {summary['precision']} {summary['method']} "
            f"bits={bits} ranks={summary['ranks']}: {integers}"
            f"test {summary['score_name']} {100 * summary['test_score']:.2f}{spread} %, {_cost(summary)}")


def _cost(summary: dict[str, Any]) -> str:
    if summary["median_epoch_seconds"] is None:
        return "no epoch recorded"
    return f"{summary['median_epoch_seconds']:.4f} s and {summary['sent_bytes_per_epoch'] / 1e6:.3f} MB an epoch"
