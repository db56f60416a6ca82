"""`hpcgnn train`: flags in, one parallel run out. Its flags are the fields of TrainConfig and where files lie."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from hpcgnn.config import TrainConfig, check_keys, read_toml, resolve_train_config, settings_of
from hpcgnn.errors import CheckpointError

TYPES = {"int": int, "float": float, "str": str, "bool": bool}
# What a checkpoint's weights were made for; everything else may change when a run is resumed.
FIXED_BY_CHECKPOINT = ("model", "layers", "hidden", "heads", "norm", "jump", "seed", "weight_decay_layers",
                       "precision", "quantize", "quantize_bits")


def _with_settings(function):
    for setting in reversed(dataclasses.fields(TrainConfig)):
        choices = setting.metadata["choices"]
        text = setting.metadata["description"] + (f" One of {', '.join(map(str, choices))}." if choices else "")
        flag = "--" + setting.name.replace("_", "-")
        switch = f"{flag}/--no-{flag[2:]}" if setting.type == "bool" else flag
        function = click.option(switch, type=TYPES[setting.type], default=None,
                                help=f"{text} [default: {setting.default}, or the preset's]")(function)
    return function


@click.command()
@click.argument("shards", type=click.Path(path_type=Path))
@_with_settings
@click.option("--preset", help="Hyper-parameters of a paper, from the registry: adaqp, sylvie, planetoid.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file of settings.")
@click.option("--out", type=click.Path(path_type=Path),
              help="Run folder. [default: runs/DATASET-MODEL-METHODBITS[-QUANTIZE]-pRANKS]")
@click.option("--resume", is_flag=True, help="Go on from the run folder's checkpoint; start anew if there is none.")
@click.option("--overwrite", is_flag=True, help="Replace the run that the folder holds.")
def command(shards: Path, preset: str | None, config_file: Path | None, out: Path | None, resume: bool,
            overwrite: bool, **flags: Any) -> None:
    """Train a model on the graph in SHARDS, one MPI rank a part.

    Settings come from defaults, the registry's preset for the dataset, --config FILE and flags, the later ones
    winning. SIGTERM, SIGINT and SIGUSR1 write a checkpoint and end the run with status 75.
    """
    if resume and overwrite:
        raise click.UsageError("--resume and --overwrite contradict each other")
    given = {name: value for name, value in flags.items() if value is not None}
    # MPI is started, and the threads shared out, before torch is imported.
    from hpcgnn.launch import run_parallel

    run_parallel(lambda comm: train_in_parallel(comm, shards, given, preset, config_file, out, resume, overwrite))


def train_in_parallel(comm, shards: Path, flags: dict[str, Any], preset: str | None, config_file: Path | None,
                      out: Path | None, resume: bool, overwrite: bool) -> None:
    """Collective: resolve the settings, open or create the run folder, train, and print the result on rank 0."""
    from hpcgnn.launch import together
    from hpcgnn.shards.reader import check_num_parts, read_graph_info
    from hpcgnn.training.metrics import RunFolder

    info = together(comm, lambda: read_graph_info(shards))
    together(comm, lambda: check_num_parts(info, comm.size))
    folder_of = _run_folder_finder(out, info.name, comm.size)
    resumed = None
    file_settings = together(comm, lambda: read_settings(config_file))
    if resume:
        guess = together(comm, lambda: resolve_train_config(info.name, flags, file_settings, preset))
        resumed = together(comm, lambda: find_checkpoint(folder_of(guess), info.name, flags, file_settings))
        file_settings = {**(resumed.settings if resumed else {}), **file_settings}
    config = together(comm, lambda: resolve_train_config(info.name, flags, file_settings, preset))
    # These import torch, which takes seconds: what needs no torch is refused before.
    from hpcgnn.training.run import TrainingRun
    from hpcgnn.training.session import Session

    folder = RunFolder(folder_of(config))
    session = Session.open(comm, shards, config, info)
    # Refuses a checkpoint that does not fit, before the folder is touched.
    run = TrainingRun(session, folder, resumed)
    if resume and resumed is None and comm.rank == 0:
        click.echo(f"{folder.checkpoint} does not exist yet; starting anew", err=True)

    def prepare_folder() -> None:
        if comm.rank == 0:
            open_folder(folder, resumed, overwrite, resume, session, str(shards))

    together(comm, prepare_folder)
    summary = run.execute()
    if comm.rank == 0:
        click.echo(one_line(summary))
        click.echo(f"run folder: {folder.path}")


def _run_folder_finder(out: Path | None, dataset: str, num_ranks: int):
    def folder_of(config: TrainConfig) -> Path:
        bits = str(config.bits) if config.method == "uniform" else ""
        scheme = "" if config.quantize == "none" else f"-{config.quantize}"
        return out or Path("runs") / f"{dataset}-{config.model}-{config.method}{bits}{scheme}-p{num_ranks}"

    return folder_of


def read_settings(path: Path | None) -> dict[str, Any]:
    """Settings of a TOML file; the [provenance] that a run folder's config.toml carries is not a setting."""
    if path is None:
        return {}
    settings = read_toml(path)
    settings.pop("provenance", None)
    return check_keys(settings, str(path))


def find_checkpoint(path: Path, dataset: str, flags: dict[str, Any], file_settings: dict[str, Any]):
    """The run folder's checkpoint, or None where there is none yet.

    Raises
    ------
    CheckpointError      it is damaged, of another dataset, or its weights don't fit the settings asked for
    """
    from hpcgnn.training.checkpoint import read_checkpoint
    from hpcgnn.training.metrics import RunFolder

    file = RunFolder(path).checkpoint
    if not file.exists():
        return None
    checkpoint = read_checkpoint(file)
    if checkpoint.dataset != dataset:
        raise CheckpointError(f"{file} was trained on {checkpoint.dataset}, these shards hold {dataset}; "
                              "choose another --out")
    asked = {**file_settings, **flags}
    fixed = FIXED_BY_CHECKPOINT + (("epochs",) if checkpoint.progress.seed_index else ())
    for name in fixed:
        # A checkpoint of an earlier version was written with what has become the default.
        written = checkpoint.settings.get(name, getattr(TrainConfig, name))
        if name in asked and asked[name] != written:
            raise CheckpointError(f"{file} was written with {name} = {written!r} and can't go on "
                                  f"with {asked[name]!r}; leave it out, or choose another --out")
    return checkpoint


def open_folder(folder, resumed, overwrite: bool, resume: bool, session, shards: str) -> None:
    """Rank 0 alone: make the run folder, or cut its metrics back to the checkpoint, and write config.toml."""
    from hpcgnn.training.metrics import software_versions

    if resumed is None:
        folder.create(overwrite, resume)
    else:
        folder.truncate_metrics(resumed.progress.metrics_bytes)
    folder.write_config(settings_of(session.config), {
        "shards": shards, "dataset": session.info.name, "ranks": session.comm.size, **software_versions()})


def one_line(summary: dict[str, Any]) -> str:
    """The result in one line for logs."""
    spread = f" ± {100 * summary['test_score_std']:.2f}" if len(summary["seeds"]) > 1 else ""
    bits = next((f"{value:.4g}" for value in (summary["bits"], summary["mean_bits"]) if value is not None), "none")
    integers = (f"{summary['quantize']} {summary['mean_feature_bits']:.2f} bits a feature, "
                f"{summary['stored_kb']:.0f} of {summary['float_kb']:.0f} KB, " if "quantize" in summary else "")
    return (f"{summary['dataset']} {summary['model']} {summary['precision']} {summary['method']} "
            f"bits={bits} ranks={summary['ranks']}: {integers}"
            f"test {summary['score_name']} {100 * summary['test_score']:.2f}{spread} %, "
            f"{summary['median_epoch_seconds']:.4f} s and {summary['sent_bytes_per_epoch'] / 1e6:.3f} MB an epoch")
