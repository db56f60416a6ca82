"""Callback: a user's actions at certain moments of a run, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch import nn

    from hpcgnn.config import TrainConfig
    from hpcgnn.training.checkpoint import Progress
    from hpcgnn.training.evaluate import Evaluation
    from hpcgnn.training.run_folder import RunFolder


class RunUnderWay(Protocol):
    """The view of a run that callbacks get.

    Attributes
    ----------
    model : nn.Module           the model in training; `on_end` sees its last weights, not the best
    progress : Progress         epochs done, and the best evaluation so far
    folder : RunFolder          the run's files, for rank 0
    """

    @property
    def comm(self) -> MPI.Comm: ...

    @property
    def config(self) -> TrainConfig: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def progress(self) -> Progress: ...

    @property
    def folder(self) -> RunFolder: ...


class Callback:
    """Override the methods of the moments that you need.

    All ranks call each method with the same values, so it may be collective. Write files only where `run.comm.rank` is
    0. An error ends the run.

    Attributes
    ----------
    changes_nothing : bool      set it to True in a class that changes neither the model nor its weights; then steps
                                need no look at which weights are in use, and can be replayed (`step_graph`)

    Examples
    --------
    >>> class Stop(hpcgnn.Callback):
    ...     def on_evaluation(self, run, evaluation):
    ...         return evaluation.val_score > 0.9      # True ends the training of this seed
    """

    changes_nothing = False

    def on_start(self, run: RunUnderWay) -> None:
        """The model has been made, or read from the checkpoint."""

    def on_epoch_end(self, run: RunUnderWay, record: dict[str, Any]) -> bool | None:
        """An epoch has ended; return True to end the training of this seed.

        `record` holds seed, epoch (from 1), and the fields of EpochTrace: loss, epoch_seconds, sent_bytes_payload, ...
        """

    def on_evaluation(self, run: RunUnderWay, evaluation: Evaluation) -> bool | None:
        """An evaluation has ended, after `on_epoch_end`; return True to end the training of this seed."""

    def on_checkpoint(self, run: RunUnderWay, path: Path) -> None:
        """A checkpoint is on the disk."""

    def on_failure(self, run: RunUnderWay, error: BaseException) -> None:
        """The run ends early, by a signal (Interrupted) or an error. Other ranks may be gone already. An error raised
        here is not shown.
        """

    def on_end(self, run: RunUnderWay, summary: dict[str, Any]) -> None:
        """The run has ended; `summary` is complete on rank 0."""
