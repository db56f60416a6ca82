"""Callbacks that write a run to TensorBoard, MLflow or Weights & Biases while it trains, on rank 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.config import settings_of
from hpcgnn.errors import TrainingError
from hpcgnn.run.launch import together
from hpcgnn.run.output import tell
from hpcgnn.training.callbacks import Callback, RunUnderWay

if TYPE_CHECKING:
    from hpcgnn.training.evaluate import Evaluation

# Keys of an epoch's record that are drawn.
DRAWN = ("loss", "lr", "epoch_seconds", "compute_seconds", "blocked_seconds", "sent_bytes_payload",
         "sent_bytes_parameters", "mean_bits", "staleness")


class Tracker(Callback):
    """Writes numbers by step, counted in epochs over all seeds, on rank 0.

    A broken tracker does not end a run: after the start, an error is reported once, and the run continues.
    """

    def __init__(self) -> None:
        self._is_open = False

    def open(self, run: RunUnderWay) -> None:
        """Begin to write a run; raises TrainingError if that fails."""
        raise NotImplementedError("a tracker says how it begins")

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name."""
        raise NotImplementedError("a tracker says how it writes")

    def close(self, run: RunUnderWay, scores: dict[str, float]) -> None:
        """Write the final scores, by name, and end."""
        raise NotImplementedError("a tracker says how it ends")

    def on_start(self, run: RunUnderWay) -> None:
        """Begin on rank 0, before the first epoch.

        Raises CollectiveError: the package is missing, or the tracker can't begin.
        """
        together(run.comm, lambda: self.open(run) if run.comm.rank == 0 else None)
        self._is_open = run.comm.rank == 0

    def on_epoch_end(self, run: RunUnderWay, record: dict[str, Any]) -> None:
        numbers = {name: record[name] for name in DRAWN if record.get(name) is not None}
        self._try(lambda: self.write(numbers, run.progress.num_epochs))

    def on_evaluation(self, run: RunUnderWay, evaluation: Evaluation) -> None:
        numbers = {name: value for name, value in asdict(evaluation).items() if isinstance(value, float)}
        self._try(lambda: self.write(numbers, run.progress.num_epochs))

    def on_end(self, run: RunUnderWay, summary: dict[str, Any]) -> None:
        self._try(lambda: self.close(run, {name: summary[name] for name in ("test_score", "val_score")}))

    def on_failure(self, run: RunUnderWay, error: BaseException) -> None:
        self._try(self.give_up)

    def give_up(self) -> None:
        """End a run that did not finish."""
        raise NotImplementedError("a tracker says how it gives up")

    def _try(self, step: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            step()
        except Exception as error:      # any error of the library, its server or the disk
            self._is_open = False
            tell(f"hpcgnn: {type(self).__name__} fails ({type(error).__name__}: {error}); the run goes on without it")


class TensorBoard(Tracker):
    """Writes event files for TensorBoard.

    Parameters
    ----------
    folder : path or None      by default the run folder's `tensorboard`
    """

    def __init__(self, folder: str | Path | None = None):
        super().__init__()
        self.folder = folder
        self._writer: Any = None

    def open(self, run: RunUnderWay) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrainingError("TensorBoard's package is not installed; pip install 'hpcgnn[tensorboard]'") from error
        # Events written after the checkpoint that the run goes on from are removed.
        self._writer = SummaryWriter(str(self.folder or run.folder.path / "tensorboard"),
                                     purge_step=run.progress.num_epochs + 1)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, run: RunUnderWay, scores: dict[str, float]) -> None:
        plain = {name: value for name, value in settings_of(run.config).items()
                 if isinstance(value, (bool, int, float, str))}
        self._writer.add_hparams(plain, {f"final/{name}": score for name, score in scores.items()}, run_name=".")
        self._writer.close()

    def give_up(self) -> None:
        self._writer.close()


class MLflow(Tracker):
    """Writes the run to the MLflow server that MLFLOW_TRACKING_URI names.

    Parameters
    ----------
    experiment : str or None      by default MLflow's default experiment
    """

    def __init__(self, experiment: str | None = None):
        super().__init__()
        self.experiment = experiment
        self._mlflow: Any = None

    def open(self, run: RunUnderWay) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise TrainingError("MLflow's package is not installed; pip install 'hpcgnn[mlflow]'") from error
        try:
            if self.experiment is not None:
                mlflow.set_experiment(self.experiment)
            mlflow.start_run(run_name=run.folder.path.name)
            mlflow.log_params(settings_of(run.config))
        except Exception as error:
            raise TrainingError(f"MLflow can't begin a run ({type(error).__name__}: {error}); set MLFLOW_TRACKING_URI "
                                "to your server") from error
        self._mlflow = mlflow

    def write(self, values: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(values, step=step)

    def close(self, run: RunUnderWay, scores: dict[str, float]) -> None:
        self._mlflow.log_metrics({f"final_{name}": score for name, score in scores.items()})
        self._mlflow.end_run()

    def give_up(self) -> None:
        self._mlflow.end_run(status="KILLED")


class WandB(Tracker):
    """Writes the run to Weights & Biases, or into a folder that `wandb sync` sends later if WANDB_MODE is offline.

    Parameters
    ----------
    project : str or None      by default the one that WANDB_PROJECT names
    """

    def __init__(self, project: str | None = None):
        super().__init__()
        self.project = project
        self._run: Any = None

    def open(self, run: RunUnderWay) -> None:
        try:
            import wandb
        except ImportError as error:
            raise TrainingError("the package of Weights & Biases is not installed; pip install 'hpcgnn[wandb]'") \
                from error
        try:
            self._run = wandb.init(project=self.project, name=run.folder.path.name, config=settings_of(run.config))
        except Exception as error:
            raise TrainingError(f"Weights & Biases can't begin a run ({type(error).__name__}: {error}); log in by "
                                "wandb login, or set WANDB_MODE=offline") from error

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self, run: RunUnderWay, scores: dict[str, float]) -> None:
        self._run.summary.update({f"final_{name}": score for name, score in scores.items()})
        self._run.finish()

    def give_up(self) -> None:
        self._run.finish(exit_code=1)


TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
