import json

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data.arrays import RowFile
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError


@pytest.fixture
def folder(small_graph, tmp_path):
    path = tmp_path / "Reddit"
    path.mkdir()
    values = np.ones(len(small_graph.source), dtype=bool)
    scipy.sparse.save_npz(path / "adj_full.npz", scipy.sparse.coo_matrix(
        (values, (small_graph.source, small_graph.target)), shape=(30, 30)).tocsr())
    np.save(path / "feats.npy", small_graph.features.astype(np.float64))
    write(path / "class_map.json", {str(k): int(label) for k, label in reversed(list(enumerate(small_graph.labels)))})
    write(path / "role.json", {role: ids.tolist() for role, ids in zip(("tr", "va", "te"), small_graph.split,
                                                                      strict=True)})
    return path


def write(path, content):
    path.write_text(json.dumps(content))


def load(folder, **options):
    return load_source(f"graphsaint:{folder}", SourceOptions(**options))


def test_a_folder_comes_back_whole(folder, small_graph, arcs_of, split_of):
    dataset = load(folder)
    assert dataset.name == "reddit"
    assert arcs_of(dataset) == small_graph.arcs()
    np.testing.assert_array_equal(dataset.features, small_graph.features)
    assert dataset.features.dtype == np.float32
    np.testing.assert_array_equal(dataset.labels, small_graph.labels)
    assert split_of(dataset) == [sorted(ids) for ids in small_graph.split]


def test_float32_features_stay_memory_mapped(folder, small_graph):
    np.save(folder / "feats.npy", small_graph.features)
    assert isinstance(load(folder).features.source, RowFile)


def test_lists_in_the_class_map_are_multi_label_indicators(folder):
    rows = np.random.default_rng(2).integers(0, 2, (30, 6))
    write(folder / "class_map.json", {str(k): row.tolist() for k, row in enumerate(rows)})
    dataset = load(folder)
    assert dataset.num_classes == 6
    np.testing.assert_array_equal(dataset.labels, rows)


@pytest.mark.parametrize(("file", "content", "match"), [
    ("class_map.json", {"0": 1}, "labels 1 nodes; expected each of the nodes 0 to 29 once"),
    ("class_map.json", {str(k): "a" for k in range(30)}, "labels that are not numbers"),
    ("class_map.json", {str(k): [0] * (1 + k % 2) for k in range(30)}, "can't be read as labels"),
    ("class_map.json", {str(k + 1): 0 for k in range(30)}, "expected each of the nodes 0 to 29 once"),
    ("class_map.json", [0] * 30, "expected a JSON object"),
    ("class_map.json", {str(k): -3 for k in range(30)}, "label -3"),
    ("role.json", {"tr": [0], "va": [1]}, "no list 'te'"),
    ("role.json", {"tr": [], "va": [1], "te": [2]}, "no training node"),
    ("role.json", {"tr": [40], "va": [1], "te": [2]}, "node 40 in its training split"),
    ("role.json", {"tr": ["x"], "va": [1], "te": [2]}, "no list of node ids"),
    *(("role.json", {"tr": [one], "va": [1], "te": [2]}, "expected whole numbers") for one in (0.5, True, "1", [1])),
    ("role.json", {"tr": [2**64], "va": [1], "te": [2]}, "no list of node ids"),
    ("role.json", "[" * 100_000, "can't be read as JSON"),
    ("class_map.json", {str(2**64): 1}, "can't be read as labels"),
    ("class_map.json", {str(k): 2**64 - 1 for k in range(30)}, "label 18446744073709551615"),
    ("class_map.json", {str(k): [] for k in range(30)}, r"labels of shape \(30, 0\)"),
])
def test_malformed_json_files_are_refused(folder, file, content, match):
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DatasetError, match=match):
        load(folder)


@pytest.mark.parametrize("file", ["adj_full.npz", "feats.npy", "class_map.json", "role.json"])
def test_truncated_and_missing_files_are_refused_by_name(folder, file):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:len(content) // 2])
    with pytest.raises(DatasetError, match=file):
        load(folder)
    (folder / file).unlink()
    missing = "reddit has no features" if file == "feats.npy" else f"{file} does not exist"
    with pytest.raises(DatasetError, match=missing):
        load(folder)


@pytest.mark.parametrize("value", [np.ones((30, 3), complex), np.array([["a"] * 3] * 30), np.ones(()), np.ones(30)])
def test_features_that_are_no_matrix_of_numbers_are_refused(folder, value):
    np.save(folder / "feats.npy", value)
    with pytest.raises(DatasetError, match="expected a matrix of numbers"):
        load(folder)


def test_a_matrix_of_another_layout_is_refused(folder):
    scipy.sparse.save_npz(folder / "adj_full.npz", scipy.sparse.eye(30, format="csc"))
    with pytest.raises(DatasetError, match="expected csr"):
        load(folder)


def test_weights_are_left_out_and_this_is_said(folder, small_graph, arcs_of):
    assert load(folder).cleaning.remarks == ()
    values = np.arange(len(small_graph.source)) + 1.0
    scipy.sparse.save_npz(folder / "adj_full.npz", scipy.sparse.coo_matrix(
        (values, (small_graph.source, small_graph.target)), shape=(30, 30)).tocsr())
    dataset = load(folder)
    assert arcs_of(dataset) == small_graph.arcs() and dataset.edge_weight is None
    assert dataset.cleaning.remarks == ("values of adj_full.npz other than 1 were left out",)
