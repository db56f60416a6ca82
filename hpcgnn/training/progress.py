"""EpochDisplay: the progress bar of rank 0, silent where no terminal shows standard error."""

from __future__ import annotations

import rich.console
import rich.progress

from hpcgnn.config import TrainConfig
from hpcgnn.training.checkpoint import Progress
from hpcgnn.training.epoch import EpochTrace
from hpcgnn.training.evaluate import Evaluation
from hpcgnn.training.terminal import is_watched


class EpochDisplay:
    """Context manager that shows seed, loss, validation score, megabytes and seconds an epoch.

    Parameters
    ----------
    is_shown : bool      False on all ranks but 0
    """

    def __init__(self, config: TrainConfig, is_shown: bool):
        is_shown = is_shown and is_watched()
        console = rich.console.Console(stderr=True, force_terminal=True if is_shown else None)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(), rich.progress.TextColumn("{task.fields[state]}"),
            rich.progress.TimeRemainingColumn(),
            console=console, disable=not is_shown)
        self._task = self._bar.add_task("epoch", total=config.epochs, state="")
        self._val_score = float("nan")

    def __enter__(self) -> EpochDisplay:
        self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        self._bar.stop()

    def advance(self, seed: int, progress: Progress, trace: EpochTrace, evaluation: Evaluation | None) -> None:
        """Show the epoch that has just ended."""
        if evaluation is not None:
            self._val_score = evaluation.val_score
        megabytes = (trace.sent_bytes_payload + trace.sent_bytes_parameters) / 1e6
        state = (f"loss {trace.loss:.4f}  val {100 * self._val_score:.2f}  {megabytes:.1f} MB  "
                 f"{trace.epoch_seconds:.3f} s")
        self._bar.update(self._task, description=f"seed {seed}", completed=progress.epoch, state=state)
