"""Job: one training run from settings to a finished run folder, as `hpcgnn train` and `hpcgnn.fit` ask for it.

A stop signal before the first epoch ends all ranks at the next check (`end_if_asked`); later signals wait for the end
of an epoch.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcgnn.config import NO_LIMIT, NODES, TrainConfig, default_of, presets_of, resolve_train_config, settings_of
from hpcgnn.errors import CheckpointError, Interrupted
from hpcgnn.methods import name_of
from hpcgnn.run.launch import giving_back_freed_memory, together, watch, watch_closely
from hpcgnn.run.output import tell
from hpcgnn.run.signals import STOP_REQUEST
from hpcgnn.shards.schema import GraphInfo, check_fingerprint
from hpcgnn.training.alike import check_same, description_of
from hpcgnn.training.checkpoint import Checkpoint
from hpcgnn.training.environment import environment, software_versions
from hpcgnn.training.reading import check_answers
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.run_lock import RunLock
from hpcgnn.training.session import NOTHING, Session, read_shared_info
from hpcgnn.training.tables import found_by_rank_zero
from hpcgnn.training.trainer import TrainingRun

# Settings that a checkpoint's weights depend on; all others may change when a run is resumed.
FIXED_BY_CHECKPOINT = ("model", "layers", "hidden", "heads", "norm", "residual", "label_inputs", "jump", "seed",
                       "num_bases", "num_blocks", "node_embedding", "weight_decay_layers", "precision", "quantize",
                       "quantize_bits", "clusters", "batch_size", "between_clusters")


@dataclass(frozen=True)
class Job:
    """The request of a run, the same on all ranks."""

    shards: Path
    settings: dict[str, Any]      # from flags, or the arguments of a call
    file_settings: dict[str, Any] = field(default_factory=dict)      # from a file; `settings` override them
    preset: str | None = None      # name of a preset in the registry
    out: Path | None = None      # run folder; None takes a name made from the settings
    # See `hpcgnn train --help`.
    resume: bool = False
    overwrite: bool = False
    other_graph: bool = False
    recipe: Recipe | None = None      # objects that a user's program passes in

    def resolve(self, dataset: str, settings: dict[str, Any], file_settings: dict[str, Any]) -> TrainConfig:
        return resolve_train_config(dataset, settings, file_settings, self.preset)

    def agree(self, comm: MPI.Comm, dataset: str, is_trained: bool = True) -> TrainConfig:
        """Collective: return the configuration; CollectiveError if settings are wrong, or differ between ranks."""
        config = together(comm, lambda: self.resolve(dataset, self.settings, self.file_settings))
        flags = {name: getattr(self, name) for name in ("out", "resume", "overwrite", "other_graph")}
        check_same(comm, {**settings_of(config), **flags, "dry_run": not is_trained})
        if self.recipe is not None:
            # Callbacks may differ: often only rank 0 has one that prints or draws.
            check_same(comm, {own.name: description_of(getattr(self.recipe, own.name)) for own in fields(self.recipe)
                              if own.name != "callbacks"}, "the program's ")
        return config


@dataclass(frozen=True)
class Finished:
    """A run that has ended; `summary` (of summary.json) is complete on rank 0."""

    run: TrainingRun
    summary: dict[str, Any]


def train(comm: MPI.Comm, job: Job) -> Finished:
    """Collective: resolve the settings, open or create the run folder, and train.

    Raises CollectiveError if the job can't be done, Interrupted if a signal asked to stop; a checkpoint then holds
    everything.
    """
    info = read_shared_info(comm, job.shards)
    config = job.agree(comm, info.name)
    watch(comm, config.timeout)
    lock = RunLock(job.out or default_run_folder(config, info.name, comm.size))
    with ExitStack() as stack:
        stack.enter_context(STOP_REQUEST)
        # Before anything in the folder is read or changed.
        together(comm, lambda: stack.enter_context(lock) if comm.rank == 0 else None)
        return _train_in(comm, RunFolder(lock.folder, lock), info, job, config, stack)


def _train_in(comm: MPI.Comm, folder: RunFolder, info: GraphInfo, job: Job, config: TrainConfig,
              stack: ExitStack) -> Finished:
    resumed = remark = None
    if job.resume:
        # Only rank 0 writes checkpoints, so if ranks share no disk, only rank 0 can read one.
        resumed, remark = found_by_rank_zero(comm, lambda: find_checkpoint(job, folder, info))
    if resumed:
        config = together(comm, lambda: job.resolve(
            info.name, without_auto_precision(job.settings),
            {**resumed.settings, **without_auto_precision(job.file_settings)}))
        check_same(comm, settings_of(config))
    end_if_asked(comm)
    memory = None
    if config.memory != NO_LIMIT:
        from hpcgnn.training.memory_limit import limited_memory

        memory = stack.enter_context(limited_memory(comm, config))
        memory.check_part(info.statistics[comm.rank])
    with giving_back_freed_memory():
        session = Session.open(comm, job.shards, config, info, job.recipe or NOTHING)
    too_wide = None if memory is None else memory.check(session.row_counts, session.table_bytes)
    remarks = together(comm, lambda: _check_answers(session)) + ([] if too_wide is None else [too_wide])
    # A checkpoint that does not fit is refused before the folder is touched.
    run = TrainingRun(session, folder, resumed, memory)
    if comm.rank == 0 and job.resume and resumed is None:
        tell(f"{folder.checkpoint} does not exist yet; starting anew")

    end_if_asked(comm)
    told = together(comm, lambda: open_folder(job, folder, session, resumed, remark) if comm.rank == 0 else [])
    if comm.rank == 0:
        told += [*_untaken_presets(job, info.name), *session.remarks, *remarks]
    for sentence in told:
        tell(f"hpcgnn: {sentence}")
    watch_closely(comm, config.timeout, folder.path)
    return Finished(run, run.execute())


def _check_answers(session: Session) -> list[str]:
    if session.tried is None or session.config.task != NODES:      # outputs for links are rows of any width
        return []
    return check_answers(session.tried, session.objective, session.score, session.info.num_classes)


def find_checkpoint(job: Job, folder: RunFolder, info: GraphInfo) -> tuple[Checkpoint | None, str | None]:
    """The checkpoint to continue from, None if there is none; and a sentence if it is the previous one.

    CheckpointError if both checkpoints are damaged, belong to other data (unless `other_graph`), or do not fit the
    settings.
    """
    if not folder.generations.exist:
        return None, None
    checkpoint, remark = folder.generations.read()
    if checkpoint.dataset != info.name and not job.other_graph:
        raise CheckpointError(f"{folder.checkpoint} was trained on {checkpoint.dataset}, these shards hold "
                              f"{info.name}; choose another --out, or pass --other-graph if it is meant to go on with "
                              "this graph")
    check_fingerprint(f"the run of {folder.checkpoint}", checkpoint.fingerprint, info, job.other_graph)
    fixed = FIXED_BY_CHECKPOINT + (("epochs",) if checkpoint.progress.seed_index else ())
    asked = without_auto_precision({**job.file_settings, **job.settings})
    for name in fixed:
        # A checkpoint of an earlier version lacks newer settings; the run was trained with their defaults.
        written = checkpoint.settings.get(name, default_of(name))
        if name in asked and asked[name] != written:
            raise CheckpointError(f"{folder.checkpoint} was written with {name} = {written!r} and can't go on "
                                  f"with {asked[name]!r}; leave it out, or choose another --out")
    return checkpoint, remark


def without_auto_precision(asked: dict[str, Any]) -> dict[str, Any]:
    """Settings to continue with: the checkpoint already holds the precision that `auto` chose."""
    return {name: value for name, value in asked.items() if (name, value) != ("precision", "auto")}


def open_folder(job: Job, folder: RunFolder, session: Session, resumed: Checkpoint | None,
                remark: str | None) -> list[str]:
    """Only on rank 0: create the run folder, or cut it back to the checkpoint; write config.toml; return remarks.

    `remark` says why `resumed` is the previous checkpoint.
    """
    sentences = []
    if resumed is None:
        folder.create(job.overwrite, job.resume)
    else:
        if remark is not None:
            folder.generations.restore_previous()
        sentences = [remark, folder.go_on_from(resumed.progress, resumed.settings["seed"])]
    folder.write_config(settings_of(session.config), {
        "shards": str(job.shards.absolute()), "dataset": session.info.name, "ranks": session.comm.size, **environment(),
        **software_versions()})
    return [sentence for sentence in sentences if sentence is not None]


def _untaken_presets(job: Job, dataset: str) -> list[str]:
    """A sentence that names presets for this dataset, if a new run of a built-in model uses none."""
    if job.preset or job.resume or (job.recipe and job.recipe.model is not None):
        return []
    offers = presets_of(dataset)
    flags = " or ".join(f"--preset {name}" for name in offers)
    return [f"{flags} takes a paper's settings for {dataset}; this run has the defaults"] if offers else []


def default_run_folder(config: TrainConfig, dataset: str, num_ranks: int) -> Path:
    model, method = config.model.replace(":", "."), name_of(config.method).replace(":", ".")
    scheme = "" if config.quantize == "none" else f"-{config.quantize}"
    return Path("runs") / f"{dataset}-{model}-{method}{config.method.folder_suffix}{scheme}-p{num_ranks}"


def end_if_asked(comm: MPI.Comm) -> None:
    """Collective: end on all ranks if any was asked to stop; raises Interrupted."""
    if comm.allreduce(STOP_REQUEST.signal_number, MPI.MAX):
        raise Interrupted("stopped by a signal before the first epoch; nothing is lost, the same command with --resume "
                          "goes on")
