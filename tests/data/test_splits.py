"""Splits that are drawn; and labels made of in-degrees: equal classes by rank, which the graph can teach."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.data.assemble import masks_from_ids, random_split
from hpcgnn.data.labels import made_labels
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError


@pytest.mark.parametrize("num_nodes", [5, 10, 97, 1000])
def test_the_default_split_is_one_permutation_cut_at_60_and_80_percent(num_nodes):
    order = np.random.default_rng(0).permutation(num_nodes)
    first, second = int(0.6 * num_nodes), int(0.8 * num_nodes)
    masks = random_split(np.zeros(num_nodes, dtype=np.int64), SourceOptions())
    for mask, expected in zip(masks, (order[:first], order[first:second], order[second:]), strict=True):
        assert np.flatnonzero(mask).tolist() == sorted(expected)


def test_a_node_without_a_label_is_in_no_split():
    labels = np.array([0, -1, 1, -1, 2, 0, 1])
    train, val, test = random_split(labels, SourceOptions())
    assert ((train | val | test) == (labels >= 0)).all()


def test_another_seed_gives_another_split():
    labels = np.zeros(50, dtype=np.int64)
    assert (random_split(labels, SourceOptions(seed=1))[0] != random_split(labels, SourceOptions(seed=2))[0]).any()


@pytest.mark.parametrize("bad", [10, -1, 2**64 - 1])
def test_a_split_that_names_a_missing_node_is_refused(bad):
    with pytest.raises(DatasetError, match=f"g has node {bad} in its validation split"):
        masks_from_ids((np.array([0]), np.array([1, bad], np.uint64 if bad > 10 else np.int64), np.array([2])), 10, "g")


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_made_labels_rank_by_in_degree_then_by_that_of_the_neighbors(chunk, monkeypatch):
    rng = np.random.default_rng(5)
    matrix = np.triu(rng.random((24, 24)) < 0.2, 1)
    matrix |= matrix.T
    matrix[3] = False
    indptr, indices = np.append(0, np.cumsum(matrix.sum(axis=1))), np.nonzero(matrix)[1].astype(np.int32)
    monkeypatch.setattr("hpcgnn.data.labels.ARCS_A_CHUNK", chunk)
    degree = matrix.sum(axis=1)
    mean = [degree[row].sum() / max(1, row.sum()) for row in matrix]
    order = sorted(range(24), key=lambda v: (degree[v], mean[v], v))
    assert made_labels(indptr, indices, 4, "g")[order].tolist() == [k // 6 for k in range(24)]


@pytest.fixture
def edges(tmp_path):
    path = tmp_path / "web.csv"
    path.write_text("0,1\n1,2\n2,0\n3,0\n4,1\n5,4\n")
    return path


def test_an_edge_list_without_labels_has_the_nodes_that_it_names(edges):
    dataset = load_source(f"edges:{edges}", SourceOptions(make_labels=2, feature_kind="auto", symmetrize=True))
    assert (dataset.name, dataset.num_nodes, dataset.num_classes) == ("web-made-labels-2", 6, 2)
    assert np.bincount(dataset.labels).tolist() == [3, 3]
    assert (dataset.train_mask.sum(), dataset.val_mask.sum(), dataset.test_mask.sum()) == (3, 1, 2)
    assert dataset.cleaning.remarks[0].startswith("MADE LABELS: the source has none; 2 classes")


def test_an_edge_list_without_labels_is_for_answers_alone_unless_asked(edges):
    dataset = load_source(f"edges:{edges}", SourceOptions(feature_kind="auto"))
    assert dataset.name == "web" and not dataset.is_labeled and not dataset.train_mask.any()
    assert any(all(words in line for words in ("has no labels", "labels=FILE", "--make-labels K"))
               for line in dataset.cleaning.read.dubious)


@pytest.mark.parametrize(("source", "options", "complaint"), [
    ("synthetic:nodes=100", {"make_labels": 3}, "synthetic:nodes=100 has labels of its own"),
    ("edges:{edges},labels={labels}", {"make_labels": 3}, "has labels of its own; leave out --make-labels"),
    ("edges:{edges}", {"make_labels": 7}, "has 6 nodes, too few for 7 made classes"),
])
def test_labels_that_cannot_be_made_are_refused(edges, tmp_path, source, options, complaint):
    (tmp_path / "labels.csv").write_text("0\n1\n0\n1\n0\n1\n")
    with pytest.raises(DatasetError, match=complaint):
        load_source(source.format(edges=edges, labels=tmp_path / "labels.csv"), SourceOptions(**options))


def test_fewer_than_two_made_classes_are_refused():
    with pytest.raises(DatasetError, match="make-labels is 1; expected at least 2"):
        SourceOptions(make_labels=1)
