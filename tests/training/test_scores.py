"""Scores over ranks equal scikit-learn's on the gathered arrays, however the nodes are spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mpi4py import MPI
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from hpcgnn.training.scores import SCORES, accuracy, macro_f1, micro_f1, roc_auc


def spread(comm, *arrays):
    """Rows of this rank: the last rank has none where there are several, the first most."""
    cuts = np.linspace(0, len(arrays[0]), comm.size + 1).astype(int)
    if comm.size > 1:
        cuts[-2] = cuts[-1]
    mine = slice(cuts[comm.rank], cuts[comm.rank + 1])
    return [torch.from_numpy(array[mine]) for array in arrays]


def draw(num_nodes, num_classes, seed):
    """Logits of few distinct values, so that many tie, and class ids."""
    rng = np.random.default_rng(seed)
    return rng.integers(-3, 4, (num_nodes, num_classes)).astype(np.float32) / 2, rng.integers(0, num_classes, num_nodes)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("num_nodes", [1, 7, 200])
def test_accuracy_equals_scikit_learn(num_nodes):
    logits, labels = draw(num_nodes, 5, seed=num_nodes)
    found = accuracy(MPI.COMM_WORLD, *spread(MPI.COMM_WORLD, logits, labels))
    assert found == accuracy_score(labels, logits.argmax(axis=1))


@pytest.mark.parallel([1, 2, 3, 4])
def test_micro_f1_equals_scikit_learn():
    logits, _ = draw(150, 6, seed=0)
    labels = (np.random.default_rng(1).random((150, 6)) < 0.3).astype(np.float32)
    found = micro_f1(MPI.COMM_WORLD, *spread(MPI.COMM_WORLD, logits, labels))
    assert found == pytest.approx(f1_score(labels, logits > 0, average="micro"), rel=1e-14)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("num_nodes", [1, 7, 200])
def test_macro_f1_equals_scikit_learn(num_nodes):
    """Class 4 is only a prediction and class 5 never occurs; -1 are the nodes of a class that a model does not know."""
    logits, labels = draw(num_nodes, 6, seed=num_nodes)
    logits[:, 5] = -9
    labels[labels >= 4] = -1
    found = macro_f1(MPI.COMM_WORLD, *spread(MPI.COMM_WORLD, logits, labels))
    assert found == pytest.approx(f1_score(labels, logits.argmax(axis=1), average="macro"), rel=1e-14)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_roc_auc_with_ties_equals_scikit_learn(seed):
    logits, labels = draw(300, 2, seed)
    margin = logits[:, 1] - logits[:, 0]
    assert len(np.unique(margin)) < 20
    found = roc_auc(MPI.COMM_WORLD, *spread(MPI.COMM_WORLD, logits, labels))
    assert found == pytest.approx(roc_auc_score(labels, margin), rel=1e-12)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("score", SCORES)
def test_score_of_no_node_is_nan(score):
    labels = np.empty(0, np.int64) if SCORES[score].task == "classes" else np.empty((0, 2), np.float32)
    found = SCORES[score](MPI.COMM_WORLD, *spread(MPI.COMM_WORLD, np.empty((0, 2), np.float32), labels))
    assert math.isnan(found)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("label", [0, 1])
def test_roc_auc_of_one_class_is_nan(label):
    logits, _ = draw(20, 2, seed=0)
    assert math.isnan(roc_auc(MPI.COMM_WORLD, *spread(MPI.COMM_WORLD, logits, np.full(20, label))))
