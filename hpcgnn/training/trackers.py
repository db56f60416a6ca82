"""Callbacks that write a run to TensorBoard or to MLflow while it trains, on rank 0."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.config import settings_of
from hpcgnn.errors import TrainingError
from hpcgnn.training.callbacks import Callback, RunUnderWay

if TYPE_CHECKING:
    from hpcgnn.training.evaluate import Evaluation

# Of an epoch's record, what is drawn.
DRAWN = ("loss", "lr", "epoch_seconds", "compute_seconds", "blocked_seconds", "sent_bytes_payload",
         "sent_bytes_parameters", "mean_bits", "staleness")


class Tracker(Callback):
    """Writes numbers by step, which counts the epochs of all seeds."""

    def write(self, values: dict[str, float], step: int) -> None:
        """Write some numbers, by name."""
        raise NotImplementedError("a tracker says how it writes")

    def on_epoch_end(self, run: RunUnderWay, record: dict[str, Any]) -> None:
        """Write what is drawn of an epoch."""
        if run.comm.rank == 0:
            self.write({name: record[name] for name in DRAWN if record.get(name) is not None}, run.progress.num_epochs)

    def on_evaluation(self, run: RunUnderWay, evaluation: Evaluation) -> None:
        """Write the scores."""
        if run.comm.rank == 0:
            numbers = {name: value for name, value in asdict(evaluation).items() if isinstance(value, float)}
            self.write(numbers, run.progress.num_epochs)


class TensorBoard(Tracker):
    """Writes event files for TensorBoard.

    Parameters
    ----------
    folder : path or None      the run folder's `tensorboard` where it is not given

    Raises (when the run starts)
    ------
    TrainingError      the tensorboard package is missing
    """

    def __init__(self, folder: str | Path | None = None):
        self.folder, self._writer = folder, None

    def on_start(self, run: RunUnderWay) -> None:
        """Open the file."""
        if run.comm.rank:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrainingError("TensorBoard's package is not installed; pip install 'hpcgnn[tensorboard]'") from error
        self._writer = SummaryWriter(str(self.folder or run.folder.path / "tensorboard"),
                                     purge_step=run.progress.num_epochs + 1)

    def write(self, values: dict[str, float], step: int) -> None:
        """See `Tracker`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def on_checkpoint(self, run: RunUnderWay, path: Path) -> None:
        """Bring to the disk what belongs to the checkpoint."""
        if self._writer is not None:
            self._writer.flush()

    def on_end(self, run: RunUnderWay, summary: dict[str, Any]) -> None:
        """Write the settings with the scores that they led to, and close the file."""
        if self._writer is None:
            return
        plain = {name: value for name, value in settings_of(run.config).items()
                 if isinstance(value, (bool, int, float, str))}
        self._writer.add_hparams(plain, {"final/test_score": summary["test_score"],
                                         "final/val_score": summary["val_score"]}, run_name=".")
        self._writer.close()


class MLflow(Tracker):
    """Writes the run to MLflow, at the server that MLFLOW_TRACKING_URI names, else below ./mlruns.

    Parameters
    ----------
    experiment : str or None      MLflow's default experiment where it is not given

    Raises (when the run starts)
    ------
    TrainingError      the mlflow package is missing
    """

    def __init__(self, experiment: str | None = None):
        self.experiment, self._mlflow = experiment, None

    def on_start(self, run: RunUnderWay) -> None:
        """Begin a run of the experiment, named after the run folder, with the settings."""
        if run.comm.rank:
            return
        try:
            import mlflow
        except ImportError as error:
            raise TrainingError("MLflow's package is not installed; pip install 'hpcgnn[mlflow]'") from error
        self._mlflow = mlflow
        if self.experiment is not None:
            mlflow.set_experiment(self.experiment)
        mlflow.start_run(run_name=run.folder.path.name)
        mlflow.log_params(settings_of(run.config))

    def write(self, values: dict[str, float], step: int) -> None:
        """See `Tracker`."""
        self._mlflow.log_metrics(values, step=step)

    def on_end(self, run: RunUnderWay, summary: dict[str, Any]) -> None:
        """Write the scores of the run and end it."""
        if self._mlflow is not None:
            self._mlflow.log_metrics({"final_test_score": summary["test_score"],
                                      "final_val_score": summary["val_score"]})
            self._mlflow.end_run()


TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow}
