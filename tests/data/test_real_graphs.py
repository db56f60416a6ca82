"""Real graphs in the npz form, from the folder that HPCGNN_DATASETS names."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source

FOLDER = os.environ.get("HPCGNN_DATASETS")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="HPCGNN_DATASETS does not name a folder of npz graphs")


def load(name, **options):
    path = Path(FOLDER) / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the folder HPCGNN_DATASETS has no {path.name}")
    return load_source(f"npz:{path}", SourceOptions(**options))


@pytest.mark.parametrize(("name", "num_nodes", "num_edges", "num_features", "num_classes", "split"), [
    ("cora", 2708, 10556, 1433, 7, (140, 500, 1000)),
    ("citeseer", 3327, 9104, 3703, 6, (120, 500, 1000)),
    ("pubmed", 19717, 88648, 500, 3, (60, 500, 1000)),
    ("tolokers", 11758, 1038000, 10, 2, (5879, 2939, 2940)),
    ("github_social", 37700, 578006, 4005, 2, (22620, 7540, 7540)),
])
def test_graphs_have_their_published_sizes(name, num_nodes, num_edges, num_features, num_classes, split):
    dataset = load(name)
    assert (dataset.name, dataset.num_nodes, dataset.num_edges) == (name, num_nodes, num_edges)
    assert (dataset.num_features, dataset.num_classes) == (num_features, num_classes)
    assert tuple(int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)) == split
    report = dataset.cleaning
    assert report.is_symmetric
    assert report.duplicate_edges_removed == report.self_loops_removed == report.reverse_edges_added == 0


def test_tolokers_has_dense_features_and_cora_sparse_ones():
    assert isinstance(load("tolokers").features, np.ndarray)
    assert scipy.sparse.issparse(load("cora").features)


@pytest.mark.long
def test_deezer_is_multi_label_with_structural_features():
    dataset = load("deezer_hu_multilabel", feature_kind="structural")
    assert dataset.is_multi_label
    assert dataset.labels.shape == (47538, 84)
    assert dataset.features.shape == (47538, 128)
    np.testing.assert_allclose(np.asarray(dataset.features).std(axis=0), 1, atol=1e-4)


@pytest.mark.long
def test_an_unlabeled_topology_is_for_answers_alone():
    dataset = load("topo_wing_mesh", feature_kind="structural")
    assert not dataset.is_labeled and dataset.num_classes == 1 and (dataset.labels == -1).all()
    assert any("topo_wing_mesh has no labels" in sentence for sentence in dataset.cleaning.read.dubious)
