"""Runs are written to TensorBoard, MLflow and Weights & Biases while they train, and outlive them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from mpi4py import MPI
from training_setup import train

from hpcgnn.errors import CollectiveError

COMM = MPI.COMM_WORLD


class Writer:
    """Stands in for TensorBoard's writer."""

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.scalars, self.is_closed = folder, purge_step, {}, False
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.scalars.setdefault(name, {})[step] = value

    def add_hparams(self, settings, scores, run_name):
        self.settings, self.scores = settings, scores

    def close(self):
        self.is_closed = True


class Server:
    """Stands in for the mlflow module; it breaks down after so many steps."""

    def __init__(self, steps: int):
        self.steps, self.metrics, self.log = steps, {}, []

    def set_experiment(self, name):
        self.log.append(("experiment", name))

    def start_run(self, run_name):
        if self.steps == 0:
            raise ConnectionError("nobody answers")
        self.log.append(("start", run_name))

    def log_params(self, settings):
        self.settings = settings

    def log_metrics(self, values, step=None):
        if step is not None and step > self.steps:
            raise ConnectionError("nobody answers")
        self.metrics.update({(name, step): value for name, value in values.items()})

    def end_run(self, status="FINISHED"):
        self.log.append(("end", status))


@pytest.mark.parallel([1, 2])
def test_tensorboard_holds_what_metrics_hold(shards, shared_path, monkeypatch):
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    summary, metrics, _ = train(COMM, shards, shared_path / "run", track="tensorboard")
    if COMM.rank == 0:
        found = Writer.last
        assert found.folder == str(shared_path / "run" / "tensorboard") and found.purge_step == 1
        assert found.scalars["loss"] == {record["epoch"]: record["loss"] for record in metrics}
        assert found.scalars["val_score"] == {record["epoch"]: record["val_score"] for record in metrics
                                              if "val_score" in record}
        assert found.scores == {"final/test_score": summary["test_score"], "final/val_score": summary["val_score"]}
        assert found.settings["model"] == "gcn" and found.is_closed


def start_server(monkeypatch, steps: int) -> Server:
    server = Server(steps)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(
        **{name: getattr(server, name) for name in ("set_experiment", "start_run", "log_params", "log_metrics",
                                                    "end_run")}))
    return server


def test_mlflow_gets_settings_and_numbers(shards, shared_path, monkeypatch):
    server = start_server(monkeypatch, steps=100)
    summary, metrics, _ = train(COMM, shards, shared_path / "run", track="mlflow")
    assert server.log == [("start", "run"), ("end", "FINISHED")] and server.settings["track"] == "mlflow"
    assert server.metrics["loss", 3] == metrics[2]["loss"]
    assert server.metrics["final_test_score", None] == summary["test_score"]


def test_a_server_that_goes_away_is_named_once_and_the_run_goes_on(shards, shared_path, monkeypatch, capfd):
    server = start_server(monkeypatch, steps=2)
    _, metrics, _ = train(COMM, shards, shared_path / "run", track="mlflow")
    assert len(metrics) == 4 and ("loss", 2) in server.metrics and ("loss", 3) not in server.metrics
    assert capfd.readouterr().err.count("hpcgnn: MLflow fails (ConnectionError: nobody answers); the run goes on") == 1


def test_a_run_that_fails_is_ended_there_too(shards, shared_path, monkeypatch):
    server = start_server(monkeypatch, steps=100)
    with pytest.raises(CollectiveError, match="lower --lr"):
        train(COMM, shards, shared_path / "run", track="mlflow", lr=1e38)
    assert server.log[-1] == ("end", "KILLED")


def test_a_server_that_is_not_there_is_refused_before_the_first_epoch(shards, shared_path, monkeypatch):
    start_server(monkeypatch, steps=0)
    with pytest.raises(CollectiveError, match=r"MLflow can't begin a run .* set MLFLOW_TRACKING_URI"):
        train(COMM, shards, shared_path / "run", track="mlflow")
    assert not (shared_path / "run" / "metrics.jsonl").exists()


class Board:
    """Stands in for the wandb module, and for a run of it; it breaks down after so many steps."""

    def __init__(self, steps: int):
        self.steps, self.lines, self.summary, self.begun, self.ends = steps, {}, {}, [], []

    def init(self, project, name, config):
        if self.steps == 0:
            raise ConnectionError("nobody is logged in")
        self.begun.append((project, name, config["model"]))
        return self

    def log(self, values, step):
        if step > self.steps:
            raise ConnectionError("nobody answers")
        self.lines.setdefault(step, {}).update(values)

    def finish(self, exit_code=0):
        self.ends.append(exit_code)


def start_board(monkeypatch, steps: int) -> Board:
    board = Board(steps)
    monkeypatch.setitem(sys.modules, "wandb", board)
    return board


@pytest.mark.parallel([1, 2])
def test_wandb_gets_settings_and_numbers_from_rank_zero(shards, shared_path, monkeypatch):
    board = start_board(monkeypatch, steps=100)
    summary, metrics, _ = train(COMM, shards, shared_path / "run", track="wandb")
    if COMM.rank:
        assert board.begun == board.ends == [] and board.lines == {}
        return
    assert board.begun == [(None, "run", "gcn")] and board.ends == [0]
    assert {step: line["loss"] for step, line in board.lines.items()} == {
        record["epoch"]: record["loss"] for record in metrics}
    assert board.lines[len(metrics)]["val_score"] == metrics[-1]["val_score"]
    assert board.summary == {"final_test_score": summary["test_score"], "final_val_score": summary["val_score"]}


def test_wandb_that_goes_away_is_named_once_and_the_run_goes_on(shards, shared_path, monkeypatch, capfd):
    board = start_board(monkeypatch, steps=2)
    _, metrics, _ = train(COMM, shards, shared_path / "run", track="wandb")
    assert len(metrics) == 4 and list(board.lines) == [1, 2]
    assert capfd.readouterr().err.count("hpcgnn: WandB fails (ConnectionError: nobody answers); the run goes on") == 1


def test_a_run_that_fails_is_a_failed_one_of_wandb(shards, shared_path, monkeypatch):
    board = start_board(monkeypatch, steps=100)
    with pytest.raises(CollectiveError, match="lower --lr"):
        train(COMM, shards, shared_path / "run", track="wandb", lr=1e38)
    assert board.ends == [1]


def test_wandb_without_a_login_is_refused_before_the_first_epoch(shards, shared_path, monkeypatch):
    start_board(monkeypatch, steps=0)
    with pytest.raises(CollectiveError, match=r"Weights & Biases can't begin a run .* set WANDB_MODE=offline"):
        train(COMM, shards, shared_path / "run", track="wandb")
    assert not (shared_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("name, module", [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"),
                                          ("wandb", "wandb")])
def test_a_missing_package_is_named_on_all_ranks(shards, shared_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)      # as if it were not installed
    with pytest.raises(CollectiveError, match=rf"pip install 'hpcgnn\[{name}\]'"):
        train(COMM, shards, shared_path / "run", track=name)
