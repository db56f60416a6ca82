"""What a user does with a run besides training it, tried with every feature of `combinations`.

Each action raises the program's own HpcgnnError if the program refuses it, and AssertionError if it answers wrongly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

import hpcgnn
from hpcgnn.config import TrainConfig, settings_of
from hpcgnn.lowbit.inference.model_source import open_model
from hpcgnn.lowbit.inference.run import IntegerRun
from hpcgnn.planning.planner import Choices, make_plan
from hpcgnn.results.correct_and_smooth import CorrectAndSmooth
from hpcgnn.results.export import exported, write_exported
from hpcgnn.results.float_run import FloatRun
from hpcgnn.run.launch import together
from hpcgnn.training.batch_graph import ClusterCut
from hpcgnn.training.forecast import forecast
from hpcgnn.training.job import Finished, Job, train
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import read_shared_info

EXACT = 2e-5         # float32 sums in another order; relative to the loss
NEAR_LOSS = 0.1      # by which the last loss may differ where another cut sends other rounded rows; relative
NEAR_LOGITS = 1e-4   # of float32 answers, relative to the largest
NEAR_SCORE = 0.02    # of a model that was trained in 16 bits, or whose rows are rounded to 8
DRAWN = 0.2          # by which the bytes of rows that are drawn may differ from their mean; relative
OF_EDGES = ("edge_weight", "edge_attr", "edge_type")
FEWEST_EQUAL = 0.95  # share of the predictions in which integers agree with floats


@dataclass
class Trial:
    """A training of one feature, and its files; every method is collective.

    make : function or None      makes a model of one's own, for `num_out` columns
    """

    comm: MPI.Comm
    root: Path                   # with shards by graph and number of ranks
    graph: str
    settings: dict[str, Any]
    make: Callable[[], torch.nn.Module] | None = None

    def shards(self, num_ranks: int | None = None) -> Path:
        return self.root / f"{self.graph}-p{num_ranks or self.comm.size}"

    def job(self, num_ranks: int | None = None, out: str = "run", resume: bool = False, **changes: Any) -> Job:
        return Job(self.shards(num_ranks), {**self.settings, **changes}, out=self.root / out, resume=resume,
                   overwrite=not resume, recipe=None if self.make is None else Recipe(self.make))

    @property
    def folder(self) -> Path:
        return self.root / "run"

    @cached_property
    def finished(self) -> Finished:
        return train(self.comm, self.job())

    def losses(self, comm: MPI.Comm, job: Job) -> list[float]:
        """Train a job; its losses by epoch."""
        return losses_of(comm, train(comm, job))

    @cached_property
    def sent(self) -> list[int]:
        """Bytes of each epoch, of all ranks."""
        folder = self.finished.run.folder
        records = self.comm.bcast(folder.read_metrics() if self.comm.rank == 0 else None)
        return [one["sent_bytes_payload"] + one["sent_bytes_parameters"] for one in records]

    @cached_property
    def opened(self) -> FloatRun:
        self.finished  # noqa: B018
        return FloatRun.open(self.comm, self.folder, self.shards(), read_shared_info(self.comm, self.shards()),
                             model=self.make)

    @cached_property
    def answers(self):
        return self.opened.answer()


def losses_of(comm: MPI.Comm, finished: Finished) -> list[float]:
    """Collective: losses by epoch, on all ranks."""
    folder = finished.run.folder
    return comm.bcast([record["loss"] for record in folder.read_metrics()] if comm.rank == 0 else None)


def difference(found: list[float], expected: list[float]) -> float:
    """Largest relative difference of two lists of losses."""
    return max((abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True)), default=0.0)


def on_a_device(trial: Trial) -> None:
    """The settings with a device, which are all that is tried."""
    TrainConfig.of(**{**trial.settings, "device": "cuda"})


def dry_run(trial: Trial) -> None:
    """The forecast has numbers, and its bytes are those of the training."""
    found = forecast(trial.comm, trial.job())
    assert found.epoch_seconds > 0 and all(memory.process > memory.weights > 0 for memory in found.memory)
    sent = trial.sent
    assert not sent or (found.least_bytes <= min(sent) and max(sent) <= found.most_bytes), (
        f"an epoch sent {min(sent)} to {max(sent)} bytes, forecast {found.least_bytes} to {found.most_bytes}")


def resume(trial: Trial) -> str:
    """Half of the epochs on one rank less, the rest on all: "=" if the losses are those of an unstopped run.

    Where the cut itself changes what is computed, as a check against unstopped runs of both numbers shows, the last
    loss must be near that of one of them; then "~".
    """
    comm, epochs = trial.comm, trial.settings["epochs"]
    if comm.size == 1 or not epochs:
        return ""
    few = comm.size - 1
    part = comm.Split(0 if comm.rank < few else MPI.UNDEFINED)
    unstopped = None
    if part != MPI.COMM_NULL:
        unstopped = trial.losses(part, trial.job(few, "few"))
        trial.losses(part, trial.job(few, "resumed", epochs=epochs // 2))
        part.Free()
    unstopped = comm.bcast(unstopped)
    expected = losses_of(comm, trial.finished)
    found = trial.losses(comm, trial.job(out="resumed", resume=True))
    gap = difference(found, expected)
    if difference(unstopped, expected) <= EXACT and gap <= EXACT:
        return "="
    last = min(abs(found[-1] - whole[-1]) / whole[-1] for whole in (unstopped, expected))
    assert last <= NEAR_LOSS, f"the last loss differs by {last:.1%} from those of the unstopped runs"
    return "~"


def predict(trial: Trial) -> None:
    """Scores are those of the training's best evaluation, and logits those of its best model."""
    finished, opened, answers = trial.finished, trial.opened, trial.answers
    best, scores = finished.run.progress.best, opened.scores(answers)
    is_float = trial.settings.get("precision", "fp32") == "fp32"
    for split, score in scores.items():
        before = getattr(best, f"{split}_score")
        gap = 0.0 if np.isnan(score) and np.isnan(before) else abs(score - before)
        assert gap <= (1e-5 if is_float else NEAR_SCORE), f"the {split} score differs by {gap:.2e}"


def correct_and_smooth(trial: Trial) -> None:
    """Shares of classes, the training nodes' nearer to their labels."""
    shares = CorrectAndSmooth().answers(trial.opened.session, trial.answers).logits
    is_share = shares.shape == trial.answers.logits.shape and 0 <= shares.min() <= shares.max() <= 1
    assert trial.comm.allreduce(is_share, MPI.LAND), "an answer is no share"


def export(trial: Trial, as_pyg: bool = False) -> None:
    """The exported model in plain PyTorch has the logits of predict, for the rows and edges that the run reads."""
    comm, opened = trial.comm, trial.opened
    whole, rows = trial.answers.gather(comm), comm.gather(_rows_of(opened))
    gap = together(comm, lambda: _gap_of_exported(trial, whole.logits, rows, as_pyg) if comm.rank == 0 else None)
    gap = comm.bcast(gap)
    assert gap <= NEAR_LOGITS, f"logits differ by {gap:.2e} from those of predict"


def _rows_of(opened: FloatRun) -> tuple[np.ndarray, ...]:
    rows = opened.session.graph.rows
    target = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
    of_edges = [getattr(rows, name) for name in OF_EDGES]
    return (rows.node_id[:len(rows.indptr) - 1], opened.session.graph.x.numpy(), rows.node_id[rows.indices],
            rows.node_id[target], *(np.empty(0) if values is None else values for values in of_edges))


def _gap_of_exported(trial: Trial, logits: np.ndarray, rows: list[tuple[np.ndarray, ...]], as_pyg: bool) -> float:
    path = trial.root / "model.safetensors"
    write_exported(path, *exported(trial.folder, as_pyg))
    node_id, x, source, target, *of_edges = (torch.from_numpy(np.concatenate(own)) for own in zip(*rows, strict=True))
    model = hpcgnn.load_model(path, trial.make() if trial.make else None)
    taken = {"edge_weight"} if as_pyg else set(inspect.signature(model.forward).parameters)
    given = {name: values for name, values in zip(OF_EDGES, of_edges, strict=True) if len(values) and name in taken}
    with torch.no_grad():
        found = model(torch.empty_like(x).index_copy_(0, node_id, x), torch.stack([source, target]), **given).numpy()
    return float(np.abs(found - logits).max() / np.abs(logits).max())


def export_pyg(trial: Trial) -> None:
    export(trial, as_pyg=True)


def infer(trial: Trial) -> None:
    """Integers predict what floats predict, on the edges that the run was trained on."""
    from hpcgnn.cli.infer import run_in_batches

    comm = trial.comm
    trial.finished  # noqa: B018
    info, cut = read_shared_info(comm, trial.shards()), ClusterCut.of(settings_of(trial.finished.run.session.config))
    opened = open_model(comm, trial.folder, trial.shards(), info, None, None, False, 1, answered=cut)
    run = IntegerRun.open(comm, opened.model, opened.stored, info)
    logits, _ = (run if cut is None else run_in_batches(run, cut)).forward()
    floats = trial.answers.logits
    if "labels" in trial.graph:
        equal, number = ((logits > 0) == (floats > 0)).sum(), logits.size
    else:
        equal, number = (logits.argmax(1) == floats.argmax(1)).sum(), len(logits)
    share = comm.allreduce(int(equal)) / comm.allreduce(number)
    assert share >= FEWEST_EQUAL, f"{share:.1%} of the predictions are those of floats"


def plan(trial: Trial) -> None:
    """The planned bytes of the run's shards are those of the training, their range where widths are chosen in training,
    or of the mean where rows are drawn.
    """
    settings = {name: value for name, value in trial.settings.items() if name not in ("method", "bits")}
    own = {name: settings.pop(name) for name in ("model", "layers", "hidden", "precision", "norm", "dropout")
           if name in settings}
    bits = f":{trial.settings['bits']}" if "bits" in trial.settings else ""
    method = trial.settings.get("method", "vanilla") + bits
    found, = together(trial.comm, lambda: make_plan(str(trial.shards()), None, Choices(
        None, (method,), settings=settings, **own)).predictions)
    sent, least, most = trial.sent, found.least_bytes, found.sent.total
    margin = DRAWN * max(sent, default=0) * (found.messages.share < 1)
    assert found.peak_bytes > 0 and (least == most or not found.messages.is_exact)
    assert not sent or (least - margin <= min(sent) and max(sent) <= most + margin), (
        f"an epoch sent {sent}, planned {least} to {most}")


RESUME = "--resume"
ACTIONS: dict[str, Callable[[Trial], str | None]] = {
    "--device cuda": on_a_device, "--dry-run": dry_run, "plan": plan, RESUME: resume, "predict": predict,
    "--correct-and-smooth": correct_and_smooth, "export": export, "--format pyg": export_pyg, "infer": infer}
