"""Job: one training run from settings to a finished run folder, as `hpcgnn train` and `hpcgnn.fit` ask for it.

A stop signal before the first epoch ends all ranks at the next check (`end_if_asked`); later signals wait for the end
of an epoch.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpcgnn.config import NODES, TrainConfig, presets_of, resolve_train_config, settings_of
from hpcgnn.errors import Interrupted
from hpcgnn.methods import name_of
from hpcgnn.run.launch import giving_back_freed_memory, together, watch, watch_closely
from hpcgnn.run.output import tell
from hpcgnn.run.signals import STOP_REQUEST
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.training.alike import check_same, description_of
from hpcgnn.training.session import read_shared_info

if TYPE_CHECKING:
    from hpcgnn.training.recipe import Recipe
    from hpcgnn.training.run_folder import RunFolder
    from hpcgnn.training.session import Session
    from hpcgnn.training.trainer import TrainingRun


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

    torch takes seconds to import, so it is imported only after all checks that do not need it.

    Raises CollectiveError if the job can't be done, Interrupted if a signal asked to stop; a checkpoint then holds
    everything.
    """
    info = read_shared_info(comm, job.shards)
    config = job.agree(comm, info.name)
    watch(comm, config.timeout)
    from hpcgnn.training.run_lock import RunLock

    lock = RunLock(job.out or default_run_folder(config, info.name, comm.size))
    with ExitStack() as stack:
        stack.enter_context(STOP_REQUEST)
        # Before anything in the folder is read or changed.
        together(comm, lambda: stack.enter_context(lock) if comm.rank == 0 else None)
        from hpcgnn.training.run_folder import RunFolder

        return _train_in(comm, RunFolder(lock.folder, lock), info, job, config, stack)


def _train_in(comm: MPI.Comm, folder: RunFolder, info: GraphInfo, job: Job, config: TrainConfig,
              stack: ExitStack) -> Finished:
    from hpcgnn.training.opening import find_checkpoint, open_folder, without_auto_precision
    from hpcgnn.training.tables import found_by_rank_zero

    resumed = remark = None
    if job.resume:
        # Only rank 0 writes checkpoints, so if ranks share no disk, only rank 0 can read one.
        asked = {**job.file_settings, **job.settings}
        resumed, remark = found_by_rank_zero(comm, lambda: find_checkpoint(folder, info, asked, job.other_graph))
    if resumed:
        config = together(comm, lambda: job.resolve(
            info.name, without_auto_precision(job.settings),
            {**resumed.settings, **without_auto_precision(job.file_settings)}))
        check_same(comm, settings_of(config))
    from hpcgnn.training.memory_limit import limited_memory
    from hpcgnn.training.session import NOTHING, Session
    from hpcgnn.training.trainer import TrainingRun

    end_if_asked(comm)
    memory = stack.enter_context(limited_memory(comm, config))
    with giving_back_freed_memory():
        session = Session.open(comm, job.shards, config, info, job.recipe or NOTHING)
    if memory is not None:
        memory.check()
    remarks = together(comm, lambda: _check_answers(session))
    # A checkpoint that does not fit is refused before the folder is touched.
    run = TrainingRun(session, folder, resumed, memory)
    if comm.rank == 0 and job.resume and resumed is None:
        tell(f"{folder.checkpoint} does not exist yet; starting anew")

    end_if_asked(comm)

    def prepare_folder() -> list[str]:
        return open_folder(folder, session, resumed, remark, job.overwrite, job.resume,
                           job.shards) if comm.rank == 0 else []

    told = (*_untaken_presets(job, info.name), *session.remarks, *remarks) if comm.rank == 0 else ()
    for sentence in (*together(comm, prepare_folder), *told):
        tell(f"hpcgnn: {sentence}")
    watch_closely(comm, config.timeout, folder.path)
    return Finished(run, run.execute())


def _check_answers(session: Session) -> list[str]:
    from hpcgnn.training.reading import check_answers

    if session.tried is None or session.config.task != NODES:      # outputs for links are rows of any width
        return []
    return check_answers(session.tried, session.objective, session.score, session.info.num_classes)


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
