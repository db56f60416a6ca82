"""A trained model answers for a graph with other classes, or none: by the names that its training gave to classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch_geometric.nn import GCN
from training_setup import easy_graph, on_rank_zero, random_owner, write

import hpcgnn
from hpcgnn.errors import CollectiveError
from hpcgnn.training.evaluate import as_trained

COMM = MPI.COMM_WORLD
NAMES = ("ant", "bee", "cat", "dog")
RUN = {"hidden": 16, "layers": 2, "epochs": 25, "eval_every": 5, "lr": 0.02, "dropout": 0.2}


def opened(dataset, folder):
    """Collective: shards of a dataset, one part a rank."""
    return hpcgnn.open(on_rank_zero(COMM, lambda: write(dataset.check(), random_owner(dataset, COMM.size), COMM.size,
                                                        folder)), COMM)


def named(dataset, names):
    """The graph whose classes go by these names; nodes of others have no label and are in no split."""
    number = np.array([names.index(name) if name in names else -1 for name in NAMES])
    labels = number[dataset.labels]
    masks = {f"{split}_mask": getattr(dataset, f"{split}_mask") & (labels >= 0) for split in ("train", "val", "test")}
    return replace(dataset, labels=labels, num_classes=len(names), class_names=names, **masks)


@pytest.fixture
def trained(shared_path):
    graph = opened(named(easy_graph(), NAMES), shared_path / "shards")
    hpcgnn.fit("sage", graph, out=shared_path / "run", **RUN)
    return shared_path / "run"


@pytest.mark.parallel([1, 2])
def test_answers_have_the_names_of_the_training_and_scores_compare_names(trained, shared_path):
    new = easy_graph()      # the same nodes, so that labels are known by name
    for number, names in enumerate((("dog", "cat", "bee", "ant"), ("cat", "ant"), ("eel", "dog", "bee"),
                                    ("bee", "cat", "dog", "eel", "fox", "gnu"))):
        dataset = named(new, names)
        if "eel" in names:      # all nodes of class ant are eels now, which the model has never seen
            dataset = replace(dataset, labels=np.where(new.labels == 0, names.index("eel"), dataset.labels))
        run = hpcgnn.open_run(trained, opened(dataset, shared_path / f"new{number}"), other_graph=True)
        scores, answers = run.scores(run.answer()), run.predict()
        assert any("does not know" in line and "eel" in line for line in run.remarks) == ("eel" in names)
        if answers is None:
            continue
        assert answers.class_names == NAMES and answers.logits.shape[1] == 4
        told = np.array(answers.class_name)
        truth = np.array([*names, ""])[dataset.labels]
        for split in ("train", "val", "test"):
            mask = getattr(dataset, f"{split}_mask")
            assert scores[split] == pytest.approx((told == truth)[mask].mean())
        assert (told == np.array(NAMES)[new.labels]).mean() > 0.9


@pytest.mark.parallel([1, 2])
def test_a_graph_without_labels_is_answered_and_not_trained_on(trained, shared_path):
    dataset = easy_graph()
    nobody = np.zeros(dataset.num_nodes, bool)
    bare = replace(dataset, labels=np.full(dataset.num_nodes, -1), num_classes=1, train_mask=nobody, val_mask=nobody,
                   test_mask=nobody)
    graph = opened(bare, shared_path / "bare")
    run = hpcgnn.open_run(trained, graph, other_graph=True)
    assert all(np.isnan(score) for score in run.scores(run.answer()).values())
    answers = run.predict()
    if answers is not None:
        assert (np.array(answers.class_name) == np.array(NAMES)[dataset.labels]).mean() > 0.9
    with pytest.raises(CollectiveError, match="no training node in the whole graph"):
        hpcgnn.fit("sage", graph, out=shared_path / "other", **RUN)


@pytest.mark.parallel([1, 2])
def test_no_epochs_give_a_run_of_the_given_weights(shared_path):
    dataset = easy_graph()
    graph = opened(dataset, shared_path / "shards")
    torch.manual_seed(3)
    model = GCN(graph.num_features, 8, 2, graph.num_classes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run = hpcgnn.fit(model, graph, out=shared_path / "run", epochs=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert run.metrics == [] and run.summary["results"][0]["best_epoch"] == 0
    answers = hpcgnn.open_run(shared_path / "run", graph, model=lambda: GCN(graph.num_features, 8, 2,
                                                                             graph.num_classes)).predict()
    if answers is not None:
        target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
        edges = torch.from_numpy(np.stack([dataset.indices, target]).astype(np.int64))
        expected = model.eval()(torch.from_numpy(np.asarray(dataset.features, np.float32)), edges).detach().numpy()
        np.testing.assert_allclose(answers.logits, expected, atol=1e-5)
        assert run.test_score == pytest.approx((expected.argmax(1) == dataset.labels)[dataset.test_mask].mean())


def test_labels_of_several_columns_are_brought_into_the_models_order():
    known = {"task": "multi-label", "num_classes": 3, "class_names": ["art", "law", "war"]}
    found = as_trained(np.array([[1, 0], [0, 1]], np.uint8), Info("multi-label", 2, ("war", "zoo"), 2), known)
    np.testing.assert_array_equal(found, [[255, 255, 1], [255, 255, 0]])
    with pytest.raises(hpcgnn.HpcgnnError, match="predicts 2 targets, and new has 3"):
        as_trained(np.zeros((1, 3), np.float32), Info("regression", 3, (), 1),
                   {"task": "regression", "num_classes": 2, "class_names": []})
    with pytest.raises(hpcgnn.HpcgnnError, match="predicts labels that are a regression, and the labels of new are"):
        as_trained(np.zeros(1, np.int64), Info("classes", 3, (), 1),
                   {"task": "regression", "num_classes": 2, "class_names": []})
    assert np.isnan(as_trained(np.full(4, -1), Info("classes", 1, (), 0),
                               {"task": "regression", "num_classes": 2, "class_names": []})).all()


class Info:
    """What `as_trained` reads of a GraphInfo."""

    relation_names = feature_names = node_types = type_columns = relation_columns = ()
    num_features = 3

    def __init__(self, task, num_classes, class_names, num_train):
        self.name, self.task, self.num_classes, self.class_names = "new", task, num_classes, class_names
        self.num_train, self.num_val, self.num_test = num_train, 0, 0
