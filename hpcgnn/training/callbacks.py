"""Callback: what a program does at the moments of a run. Every rank calls it at the same moments."""

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
    """What a callback sees of a run.

    Attributes
    ----------
    comm : MPI communicator
    config : TrainConfig
    model : nn.Module           that is trained; on_end sees it with the last weights, not the best
    progress : Progress         epochs that are done, the best evaluation so far
    folder : RunFolder          its files, for rank 0
    """

    comm: MPI.Comm
    config: TrainConfig
    model: nn.Module
    progress: Progress
    folder: RunFolder


class Callback:
    """Does nothing at each moment of a run; a subclass overrides the moments that it wants.

    Every method is called on every rank with the same values, so that it may be collective; what writes should do so
    where `run.comm.rank` is 0. An error ends the run.

    Examples
    --------
    >>> class Stop(hpcgnn.Callback):
    ...     def on_evaluation(self, run, evaluation):
    ...         return evaluation.val_score > 0.9      # True ends the training of this seed
    """

    def on_start(self, run: RunUnderWay) -> None:
        """Begin: the model is made, or read from the checkpoint that the run goes on from."""

    def on_epoch_end(self, run: RunUnderWay, record: dict[str, Any]) -> bool | None:
        """End an epoch; True ends the training of this seed.

        Parameters
        ----------
        record : dict      seed, epoch (from 1), and what EpochTrace holds: loss, epoch_seconds, sent_bytes_payload, ..
        """

    def on_evaluation(self, run: RunUnderWay, evaluation: Evaluation) -> bool | None:
        """End an evaluation, after `on_epoch_end`; True ends the training of this seed."""

    def on_checkpoint(self, run: RunUnderWay, path: Path) -> None:
        """Note that a checkpoint is on the disk."""

    def on_failure(self, run: RunUnderWay, error: BaseException) -> None:
        """Note that the run ends early, by a signal (Interrupted) or an error. Other ranks may be gone; an error that
        is raised in here is not shown.
        """

    def on_end(self, run: RunUnderWay, summary: dict[str, Any]) -> None:
        """End the run; `summary` is whole on rank 0."""
