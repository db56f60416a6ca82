"""Targets of a regression: loss and scores against NumPy, from preprocess to predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training_setup import losses

import hpcgnn
from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.training.objective import LOSSES, choose_loss, task_of
from hpcgnn.training.scores import SCORES, choose_score

COMM = MPI.COMM_WORLD
NUM_NODES = 300
RUN = {"hidden": 16, "layers": 2, "dropout": 0.0, "epochs": 20, "eval_every": 5, "lr": 0.1}


def regression() -> dict[str, np.ndarray]:
    """A graph whose targets are means over a node and its neighbors of two columns of the features."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_NODES, 6)).astype(np.float32)
    edges = rng.integers(0, NUM_NODES, (2, 1200))
    arcs = np.zeros((NUM_NODES, NUM_NODES), bool)
    arcs[edges[1], edges[0]] = arcs[edges[0], edges[1]] = True
    np.fill_diagonal(arcs, False)
    mean = arcs @ features / np.maximum(arcs.sum(axis=1, keepdims=True), 1)
    targets = (2 * features + mean)[:, :2].astype(np.float32)
    return {"features": features, "labels": targets, "edges": np.stack(np.nonzero(arcs.T))}


@pytest.fixture
def graph(shared_path):
    made = regression()
    hpcgnn.preprocess(made["edges"], parts=COMM.size, out=shared_path / "shards", features=made["features"],
                      labels=made["labels"], name="planted")
    return hpcgnn.open(shared_path / "shards")


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("loss, score", [("auto", "auto"), ("mae", "rmse")])
def test_a_model_learns_targets_and_is_scored_as_numpy_scores_its_predictions(graph, shared_path, loss, score):
    run = hpcgnn.fit("sage", graph, out=shared_path / "run", loss=loss, score=score, **RUN)
    assert run.summary["score_name"] == {"auto": "r2"}.get(score, score)
    answers = run.predict()
    if COMM.rank == 0:
        assert losses(run.metrics)[-1] < losses(run.metrics)[0] / 4
        targets = regression()["labels"]
        missed = answers.prediction - targets
        from hpcgnn.shards.reader import read_graph_info, read_partition
        info = read_graph_info(graph.shards)
        test = np.zeros(NUM_NODES, bool)
        for rank in range(COMM.size):
            part = read_partition(graph.shards, rank, COMM.size, info)
            test[part.inner_id] = part.test_mask
        spread = np.square(targets[test] - targets[test].mean(0)).sum(0)
        expected = {"auto": np.mean(1 - np.square(missed[test]).sum(0) / spread),
                    "rmse": np.sqrt(np.mean(np.square(missed[test])))}[score]
        assert run.test_score == pytest.approx(expected, rel=1e-4)
        best = [record["val_score"] for record in run.metrics if "val_score" in record]
        assert run.val_score == (max(best) if score == "auto" else min(best))


def test_losses_are_means_over_rows_and_targets():
    rng = np.random.default_rng(1)
    outputs, targets = rng.normal(size=(2, 7, 3)).astype(np.float32)
    tensors = torch.from_numpy(outputs), torch.from_numpy(targets)
    assert float(LOSSES["mse"][1](*tensors)) == pytest.approx(7 * np.mean(np.square(outputs - targets)), rel=1e-5)
    assert float(LOSSES["mae"][1](*tensors)) == pytest.approx(7 * np.mean(np.abs(outputs - targets)), rel=1e-5)


def test_a_target_that_never_changes_has_no_r2():
    rows = torch.ones(4, 1)
    assert np.isnan(SCORES["r2"](MPI.COMM_SELF, rows, rows)) and SCORES["mae"](MPI.COMM_SELF, rows, rows) == 0


@pytest.mark.parametrize("labels, task", [
    (np.zeros(3, np.int64), "classes"), (np.zeros((3, 2), np.uint8), "multi-label"),
    (np.zeros((3, 1), np.float32), "regression")])
def test_the_task_is_that_of_the_labels(labels, task):
    assert task_of(labels) == task


def test_a_loss_or_a_score_of_another_task_is_refused():
    with pytest.raises(TrainingError, match="loss cross_entropy does not fit these labels, which are a regression; use "
                                            "mse or mae"):
        choose_loss("cross_entropy", "regression")
    with pytest.raises(TrainingError, match="score accuracy does not fit houses, which is a regression; use r2"):
        choose_score("accuracy", "regression", 1, "houses")


def test_integers_are_of_classes(graph, shared_path):
    with pytest.raises(CollectiveError, match="planted is a regression, and models of integers predict classes"):
        hpcgnn.fit("sage", graph, out=shared_path / "run", quantize="uniform", layers=2, hidden=8)
    with pytest.raises(CollectiveError, match=r"planted is a regression, .*; use float rows on the whole graph"):
        hpcgnn.fit("sage", graph, out=shared_path / "run", clusters=4, layers=2, hidden=8)
