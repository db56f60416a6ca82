"""Labels made of in-degrees: equal classes by rank, learnable from the graph, and marked as made."""

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.data.labels import made_labels
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError


@pytest.mark.parametrize("num_classes", [2, 3, 7, 50])
def test_classes_are_of_equal_size_and_rise_with_the_in_degree(num_classes):
    dataset = random_dataset(50, 200, seed=1, directed=True)
    labels = made_labels(dataset.indptr, dataset.indices, num_classes, "g")
    size = np.bincount(labels)
    assert labels.dtype == np.int64 and len(size) == num_classes and size.max() - size.min() <= 1
    assert (np.diff(labels[np.argsort(dataset.in_degree(), kind="stable")]) >= 0).mean() > 0.5
    for low in range(num_classes - 1):
        assert dataset.in_degree()[labels == low].max() <= dataset.in_degree()[labels == low + 1].min()


def test_equal_in_degrees_are_ranked_by_their_neighbors():
    # A star of three leaves and a path of three: leaves of the star see degree 3, ends of the path see degree 2.
    indptr = np.array([0, 3, 4, 5, 6, 7, 9, 10])
    indices = np.array([1, 2, 3, 0, 0, 0, 5, 4, 6, 5])
    labels = made_labels(indptr, indices, 7, "g")
    assert labels.tolist() == [6, 2, 3, 4, 0, 5, 1]


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
    assert any("has no labels" in line and "--make-labels K" in line for line in dataset.cleaning.read.dubious)


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
