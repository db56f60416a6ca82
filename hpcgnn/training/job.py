"""Job: one training run from settings to a finished run folder, as `hpcgnn train` and `hpcgnn.fit` ask for it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.config import TrainConfig, presets_of, resolve_train_config, settings_of
from hpcgnn.launch import giving_back_freed_memory, together, watch, watch_closely
from hpcgnn.methods import name_of
from hpcgnn.output import tell
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.stop_signals import STOP_REQUEST
from hpcgnn.training.graph_info import read_shared_info
from hpcgnn.training.same_settings import check_same, description_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcgnn.training.metrics import RunFolder
    from hpcgnn.training.recipe import Recipe
    from hpcgnn.training.session import Session
    from hpcgnn.training.trainer import TrainingRun


@dataclass(frozen=True)
class Job:
    """Hold what is asked for, the same on all ranks.

    Attributes
    ----------
    shards : Path
    settings : dict                  given by flags, or by the arguments of a call
    file_settings : dict             of a file, which `settings` override
    preset : str or None             of the registry
    out : Path or None               run folder; None is one named after the run
    resume, overwrite, other_graph : bool      see `hpcgnn train --help`
    recipe : Recipe or None          what a program brings
    """

    shards: Path
    settings: dict[str, Any]
    file_settings: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    other_graph: bool = False
    recipe: Recipe | None = None

    def resolve(self, dataset: str, settings: dict[str, Any], file_settings: dict[str, Any]) -> TrainConfig:
        """The configuration that these settings give.

        Raises
        ------
        ConfigError      see `resolve_train_config`
        """
        return resolve_train_config(dataset, settings, file_settings, self.preset)

    def agree(self, comm: MPI.Comm, dataset: str, is_trained: bool = True) -> TrainConfig:
        """Collective: return the configuration, which all ranks have alike.

        Parameters
        ----------
        is_trained : bool      and not only forecast

        Raises
        ------
        CollectiveError      settings are wrong, or differ between the ranks; names them
        """
        config = together(comm, lambda: self.resolve(dataset, self.settings, self.file_settings))
        flags = {name: getattr(self, name) for name in ("out", "resume", "overwrite", "other_graph")}
        check_same(comm, {**settings_of(config), **flags, "dry_run": not is_trained})
        if self.recipe is not None:
            # Callbacks may differ: one that prints or draws is often rank 0's alone.
            check_same(comm, {own.name: description_of(getattr(self.recipe, own.name)) for own in fields(self.recipe)
                              if own.name != "callbacks"}, "the program's ")
        return config


@dataclass(frozen=True)
class Finished:
    """Hold a run that has ended.

    Attributes
    ----------
    run : TrainingRun
    summary : dict      of summary.json; whole on rank 0
    """

    run: TrainingRun
    summary: dict[str, Any]


def train(comm: MPI.Comm, job: Job) -> Finished:
    """Collective: resolve the settings, open or create the run folder, and train.

    torch is imported, which takes seconds, when all that needs no torch is checked.

    Raises
    ------
    CollectiveError      what is asked for can't be done, with a sentence; the same on all ranks
    Interrupted          a signal asked to stop; a checkpoint holds everything
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
        from hpcgnn.training.metrics import RunFolder

        return _train_in(comm, RunFolder(lock.folder, lock), info, job)


def _train_in(comm: MPI.Comm, folder: RunFolder, info: GraphInfo, job: Job) -> Finished:
    """Collective: train in a folder that is this run's own."""
    from hpcgnn.training.opening import find_checkpoint, open_folder, without_auto_precision
    from hpcgnn.training.tables import found_by_rank_zero

    settings, file_settings, resumed, remark = job.settings, job.file_settings, None, None
    if job.resume:
        # Rank 0 alone writes checkpoints, so where ranks share no disk, it alone can read one.
        resumed, remark = found_by_rank_zero(comm, lambda: find_checkpoint(folder, info, {**file_settings, **settings},
                                                                           job.other_graph))
    if resumed:
        settings, file_settings = without_auto_precision(settings), without_auto_precision(file_settings)
    written = resumed.settings if resumed else {}
    config = together(comm, lambda: job.resolve(info.name, settings, {**written, **file_settings}))
    if resumed:
        check_same(comm, settings_of(config))
    from hpcgnn.training.interrupt import end_if_asked
    from hpcgnn.training.session import NOTHING, Session
    from hpcgnn.training.trainer import TrainingRun

    end_if_asked(comm)
    with giving_back_freed_memory():
        session = Session.open(comm, job.shards, config, info, job.recipe or NOTHING)
    remarks = together(comm, lambda: _check_answers(session))
    # Refuses a checkpoint that does not fit, before the folder is touched.
    run = TrainingRun(session, folder, resumed)
    if comm.rank == 0 and job.resume and resumed is None:
        tell(f"{folder.checkpoint} does not exist yet; starting anew")

    end_if_asked(comm)

    def prepare_folder() -> list[str]:
        return open_folder(folder, session, resumed, remark, job.overwrite, job.resume,
                           job.shards) if comm.rank == 0 else []

    remarks = (*_untaken_presets(job, info.name), *session.remarks, *remarks) if comm.rank == 0 else ()
    for sentence in (*together(comm, prepare_folder), *remarks):
        tell(f"hpcgnn: {sentence}")
    watch_closely(comm, config.timeout, folder.path)
    return Finished(run, run.execute())


def _check_answers(session: Session) -> list[str]:
    """Check what a program's model answers against its loss and score; remarks and errors as of `check_answers`."""
    from hpcgnn.training.reading import check_answers

    return [] if session.tried is None else check_answers(session.tried, session.objective, session.score,
                                                          session.info.num_classes)


def _untaken_presets(job: Job, dataset: str) -> list[str]:
    """A sentence on the presets that know a dataset of this name, where a new run of a built-in model asks for none."""
    if job.preset or job.resume or (job.recipe and job.recipe.model is not None):
        return []
    offers = presets_of(dataset)
    flags = " or ".join(f"--preset {name}" for name in offers)
    return [f"papers' settings for {dataset} are taken with {flags}; this run has the defaults"] if offers else []


def default_run_folder(config: TrainConfig, dataset: str, num_ranks: int) -> Path:
    """Return the run folder of a run that names none."""
    model, method = config.model.replace(":", "."), name_of(config.method).replace(":", ".")
    scheme = "" if config.quantize == "none" else f"-{config.quantize}"
    return Path("runs") / f"{dataset}-{model}-{method}{config.method.folder_suffix}{scheme}-p{num_ranks}"
