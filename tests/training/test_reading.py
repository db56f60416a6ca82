"""What answers mean, and whether loss and score take them so: read rightly, or refused in a sentence."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from sklearn.metrics import f1_score, roc_auc_score
from torch.nn import functional
from training_setup import easy_graph, write_once

import hpcgnn
from hpcgnn.errors import CollectiveError, TrainingError
from hpcgnn.results.answers import Answers
from hpcgnn.training.objective import LOSSES
from hpcgnn.training.own_loss import OwnLoss
from hpcgnn.training.reading import Reading, check_answers, reading_of
from hpcgnn.training.scores import CLASSES, MULTI_LABEL, REGRESSION, SCORES, own_score
from hpcgnn.training.trial import Tried

COMM, RNG = MPI.COMM_SELF, np.random.default_rng(0)
TWO, FOUR = torch.from_numpy(RNG.integers(0, 2, 40)), torch.from_numpy(RNG.integers(0, 4, 40))
ONE = torch.from_numpy(RNG.normal(size=(40, 1)).astype(np.float32)) + TWO[:, None] - 0.5
INDICATORS = torch.from_numpy(RNG.integers(0, 2, (40, 3)).astype(np.float32))
WIDE = torch.from_numpy(RNG.normal(size=(40, 3)).astype(np.float32))
OWN = own_score(lambda outputs, labels: 0.0, False)


def made(task, logits, reading, num_classes, names=()):
    ids = np.arange(len(logits))
    return Answers(task, len(ids), ids, ids, logits.numpy(), np.empty((len(ids), 0), np.float32), names, reading,
                   num_classes)


def test_one_column_of_two_classes_is_scored_and_predicted_as_scikit_learn_does():
    for reading, outputs, threshold in ((Reading.LOGITS, ONE, 0.0), (Reading.PROBABILITIES, torch.sigmoid(ONE), 0.5)):
        expected = (outputs[:, 0] > threshold).long()
        accuracy, auc = (reading.of_score(SCORES[name], CLASSES, 2) for name in ("accuracy", "roc_auc"))
        assert accuracy(COMM, outputs, TWO) == float((expected == TWO).double().mean())
        assert auc(COMM, outputs, TWO) == pytest.approx(roc_auc_score(TWO, ONE[:, 0]), abs=1e-6)
        answers = made(CLASSES, outputs, reading, 2, ("no", "yes"))
        assert np.array_equal(answers.prediction, expected) and set(answers.class_name) == {"no", "yes"}
        p = torch.sigmoid(ONE[:, 0])
        assert np.allclose(answers.probability, torch.where(expected == 1, p, 1 - p), atol=1e-6)
        assert answers.logits.shape == (40, 1)


def test_probabilities_are_taken_as_they_are():
    p = torch.sigmoid(WIDE)
    score = Reading.PROBABILITIES.of_score(SCORES["micro_f1"], MULTI_LABEL, 3)
    assert score(COMM, p, INDICATORS) == pytest.approx(f1_score(INDICATORS, p > 0.5, average="micro"))
    answers = made(MULTI_LABEL, p, Reading.PROBABILITIES, 3)
    assert np.array_equal(answers.prediction, p > 0.5) and np.array_equal(answers.probability, p)
    shares = made(CLASSES, torch.softmax(WIDE, 1), Reading.PROBABILITIES, 3)
    logits = made(CLASSES, WIDE, Reading.LOGITS, 3)
    assert np.array_equal(shares.prediction, logits.prediction)
    assert np.allclose(shares.probability, logits.probability, atol=1e-6)
    with pytest.raises(TrainingError, match=r"returns 3 columns, and only the program.* from answers\.logits"):
        made(CLASSES, WIDE, Reading.UNKNOWN, 5).prediction.sum()
    assert set(made(CLASSES, WIDE, Reading.LOGITS, 2, ("a", "b")).class_name) == {"a", "b", "2"}


def case(outputs, labels, task, loss=None, score=None, ending=""):
    """What is said of a model with these answers, and how they are read."""
    num_classes = {CLASSES: 1 + int(labels.max())}.get(task) or labels.shape[1]
    objective = SimpleNamespace(task=task, labels=labels, rows={"train": torch.arange(len(labels))},
                                loss=OwnLoss(loss) if callable(loss) else LOSSES[loss or {
                                    CLASSES: "cross_entropy", MULTI_LABEL: "binary_cross_entropy",
                                    REGRESSION: "mse"}[task]][1])
    name = {CLASSES: "accuracy", MULTI_LABEL: "micro_f1", REGRESSION: "r2"}[task]
    tried = Tried("Net", outputs, np.arange(len(labels)), (ending, ending))
    return (check_answers(tried, objective, score or SCORES[name], num_classes),
            reading_of(tried, task, num_classes, score is not None))


bce, bce_logits = functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits
LOGITS, PROBABILITIES, UNKNOWN = Reading
SIGMOIDS, SOFTMAX, LOGS = torch.sigmoid(WIDE), torch.softmax(WIDE, 1), torch.log_softmax(WIDE, 1)
THREE = FOUR % 3


@pytest.mark.parametrize("arguments, reading", [
    ((WIDE, THREE, CLASSES), LOGITS),
    ((WIDE, THREE, CLASSES, functional.cross_entropy), LOGITS),
    ((LOGS, THREE, CLASSES, functional.nll_loss, None, "log_softmax"), LOGITS),
    ((LOGS, THREE, CLASSES, None, None, "log_softmax"), LOGITS),
    ((SOFTMAX, THREE, CLASSES, lambda o, y: functional.nll_loss((o + 1e-9).log(), y), None, "softmax"), PROBABILITIES),
    ((ONE, TWO, CLASSES, lambda o, y: bce_logits(o[:, 0], y.float())), LOGITS),
    ((ONE, TWO, CLASSES, lambda o, y: functional.soft_margin_loss(o.squeeze(1), 2.0 * y - 1)), LOGITS),
    ((torch.sigmoid(ONE), TWO, CLASSES, lambda o, y: bce(o[:, 0], y.float()), None, "sigmoid"), PROBABILITIES),
    ((WIDE, INDICATORS, MULTI_LABEL), LOGITS),
    ((WIDE, INDICATORS, MULTI_LABEL, torch.nn.BCEWithLogitsLoss()), LOGITS),
    ((SIGMOIDS, INDICATORS, MULTI_LABEL, bce, None, "sigmoid"), PROBABILITIES),
    ((WIDE, WIDE, REGRESSION), LOGITS),
    ((SIGMOIDS, WIDE, REGRESSION, None, None, "sigmoid"), LOGITS),
    ((WIDE, FOUR, CLASSES, lambda o, y: (o.sum(1) - y) ** 2, OWN), UNKNOWN),
    ((WIDE, WIDE[:, :1], REGRESSION, lambda o, y: (o[:, :1] - y).square().mean(), OWN), LOGITS),
])
def test_answers_that_fit_are_taken(arguments, reading):
    assert case(*arguments) == ([], reading)


def test_a_head_that_fits_behind_one_that_does_not_is_named():
    with pytest.raises(TrainingError, match="this is its first head, which is scored, and the entry 'out' has 2"):
        case({"hidden": WIDE, "out": WIDE[:, :2]}, TWO, CLASSES)


def test_columns_of_classes_that_no_node_has_are_remarked():
    remark, = case(WIDE, TWO, CLASSES)[0]
    assert remark == "Net returns 3 columns, and the graph has 2 classes; column 2 is a class that no node has"
    assert case(WIDE, TWO, CLASSES, torch.nn.CrossEntropyLoss(label_smoothing=0.1))[0] == [remark]


@pytest.mark.parametrize("arguments, complaint", [
    ((WIDE, FOUR, CLASSES), "3 columns, and the graph has 4 classes; make it with 4 outputs"),
    ((WIDE, FOUR, CLASSES, functional.cross_entropy), "3 columns, and the graph has 4 classes; make it with 4 outputs"),
    ((ONE, TWO, CLASSES), "1 column, and the graph has 2 classes; make it with 2 outputs, or give a loss for"),
    ((ONE, TWO, CLASSES, lambda o, y: functional.mse_loss(o[:, 0], y.float())), "does not show whether this column"),
    ((ONE, FOUR, CLASSES, lambda o, y: (o[:, 0] - y) ** 2), "1 column, and the graph has 4 classes; make it with 4"),
    ((WIDE, TWO, CLASSES, lambda o, y: functional.cross_entropy(o[:, :2], y) + o[:, 2].mean()),
     "3 columns, and the graph has 2 classes; make it with 2 outputs, or give score=FUNCTION too"),
    ((SOFTMAX, THREE, CLASSES, None, None, "softmax"), "ends with a softmax, and the loss cross_entropy takes logits"),
    ((SIGMOIDS, THREE, CLASSES, torch.nn.CrossEntropyLoss(), None, "sigmoid"), "ends with a sigmoid, and the loss"),
    ((SOFTMAX, THREE, CLASSES, lambda o, y: functional.cross_entropy(o, y, label_smoothing=0.1), None, "softmax"),
     "ends with a softmax, and the loss cross_entropy takes logits and applies a softmax itself"),
    ((WIDE, THREE, CLASSES, torch.nn.NLLLoss()), "nll_loss takes log-probabilities, and Net ends without"),
    ((ONE, TWO, CLASSES, lambda o, y: bce(o[:, 0], y.float())), "binary_cross_entropy takes probabilities, and Net"),
    ((SIGMOIDS, INDICATORS, MULTI_LABEL, None, None, "sigmoid"), "loss binary_cross_entropy_with_logits takes logits"),
    ((SIGMOIDS, INDICATORS, MULTI_LABEL, bce_logits, None, "sigmoid"), "takes logits and applies a sigmoid itself"),
    ((WIDE, INDICATORS, MULTI_LABEL, bce), "binary_cross_entropy takes probabilities, and Net ends without a sigmoid"),
    ((WIDE[:, :2], INDICATORS, MULTI_LABEL), "2 columns, and the graph has 3 labels; make it with 3 outputs"),
    ((ONE, WIDE, REGRESSION), "1 column, and the graph has 3 targets; make it with 3 outputs"),
    ((WIDE[:, :2], ONE, REGRESSION, lambda o, y: functional.gaussian_nll_loss(o[:, :1], y, o[:, 1:].exp())),
     "make it with 1 output, or give score=FUNCTION too, which says what its columns mean"),
])
def test_answers_that_would_be_read_wrongly_are_refused(arguments, complaint):
    with pytest.raises(TrainingError) as refused:
        case(*arguments)
    assert complaint in str(refused.value) and str(refused.value).count(". ") == 0


class OneLogit(torch.nn.Module):
    def __init__(self, width=1, end=lambda h: h):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.end = torch.nn.Linear(12, width), end

    def forward(self, graph, x):
        return self.end(self.lin(graph.aggregate(graph.halo(x), "mean")))


@pytest.mark.parallel([1, 2])
def test_fit_tells_the_score_of_one_logit_and_refuses_a_sigmoid_before_a_sigmoid(shared_path):
    dataset = copy.copy(easy_graph())
    object.__setattr__(dataset, "labels", (dataset.labels > 1).astype(np.int64))
    object.__setattr__(dataset, "num_classes", 2)
    graph = hpcgnn.open(write_once(MPI.COMM_WORLD, dataset, shared_path / "shards"))

    def loss(outputs, labels):
        return bce_logits(outputs[:, 0], labels.float())

    run = hpcgnn.fit(OneLogit(), graph, out=shared_path / "run", epochs=20, lr=0.1, loss=loss)
    answers, again = run.predict(), hpcgnn.open_run(run.path, graph, model=OneLogit()).predict()
    if graph.comm.rank == 0:
        right = (answers.logits[:, 0] > 0) == dataset.labels
        assert run.test_score == right[dataset.test_mask].mean() and len(set(answers.prediction)) == 2
        assert np.array_equal(again.prediction, answers.prediction)
    with pytest.raises(CollectiveError, match="OneLogit ends with a sigmoid, and the loss binary_cross_entropy_with_"):
        hpcgnn.fit(OneLogit(end=torch.sigmoid), graph, out=shared_path / "other", epochs=1, loss=loss)
    with pytest.raises(CollectiveError, match="OneLogit returns 1 column, and the graph has 2 classes; make it"):
        hpcgnn.fit(OneLogit(), graph, out=shared_path / "other", epochs=1)
