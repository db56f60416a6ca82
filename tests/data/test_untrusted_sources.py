"""Numbers that a cast would turn into others, and sources that no memory or no time suffices for, are one sentence."""

from __future__ import annotations

import gzip
import json
import os

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data import planetoid, text_stream
from hpcgnn.data.assemble import masks_from_ids
from hpcgnn.data.labels import class_ids, indicator_rows
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.data.text_table import TextTable, read_matrix
from hpcgnn.errors import DatasetError


@pytest.fixture
def arrays():
    """A ring of 12 nodes."""
    nodes = np.arange(12)
    return {"indptr": np.arange(13), "indices": np.roll(nodes, 1), "features": np.ones((12, 3), np.float32),
            "labels": nodes % 3, "num_classes": np.int64(3), "train_mask": nodes < 6,
            "val_mask": (nodes >= 6) & (nodes < 9), "test_mask": nodes >= 9}


def load(tmp_path, arrays, name="ring.npz"):
    np.savez(tmp_path / "made.npz", **arrays)
    (tmp_path / "made.npz").rename(tmp_path / name)
    return load_source(f"npz:{tmp_path / name}", SourceOptions())


def with_value(array, value):
    array = array.copy()
    array[0] = value
    return array


REFUSED = {
    "a label of 2^64 - 1": ("labels", with_value(np.zeros(12, np.uint64), 2**64 - 1), "label 18446744073709551615"),
    "a label of 2^63": ("labels", np.array([2**63] + [0] * 11, np.uint64), "label 9223372036854775808"),
    "a label of 1e300": ("labels", with_value(np.zeros(12), 1e300), "label 1e[+]300 at node 0"),
    "a label of infinity": ("labels", with_value(np.zeros(12), np.inf), "label inf at node 0"),
    "labels without columns": ("labels", np.zeros((12, 0), np.uint8), r"labels of shape \(12, 0\)"),
    "labels of three axes": ("labels", np.zeros((12, 1, 1), np.int64), r"labels of shape \(12, 1, 1\)"),
    "one label for all": ("labels", np.int64(1), "the labels are a single value, 1"),
    "complex labels": ("labels", np.zeros(12, complex), "the labels are complex numbers .complex128."),
    "dates as labels": ("labels", np.zeros(12, "M8[s]"), "the labels are times .datetime64"),
    "masks of texts": ("train_mask", np.array(["False"] * 12), "train_mask is <U5 and holds more than 0 and 1"),
    "masks of NaN": ("train_mask", np.full(12, np.nan), "train_mask is float64 and holds more than 0 and 1"),
    "masks of ids": ("train_mask", np.arange(12), "train_mask is int64 and holds more than 0 and 1"),
    "masks of -1": ("val_mask", np.full(12, -1), "val_mask is int64"),
    "indptr of uint64 that falls": ("indptr", with_value(np.arange(13, dtype=np.uint64), 5), "indptr does not rise"),
    "indptr of uint64 past all offsets": ("indptr", np.full(13, 2**64 - 1, np.uint64), "past any id or offset"),
    "indptr of int8 that falls": ("indptr", np.array([0, 127, -128, *range(3, 13)], np.int8), "indptr does not rise"),
    "indptr of nothing": ("indptr", np.zeros(0, np.int64), "indptr does not rise"),
    "indices of uint64 past all ids": ("indices", np.full(12, 2**64 - 1, np.uint64), "past any id or offset"),
    "no feature column": ("features", np.zeros((12, 0), np.float32), "0 feature columns; expected 1 to"),
    "complex features": ("features", np.zeros((12, 3), complex), "expected a matrix of numbers"),
    "features of 1e300": ("features", np.full((12, 3), 1e300), "NaN or infinite"),
    "10^12 classes": ("num_classes", np.int64(10**12), "1000000000000 classes; expected 1 to 1048576"),
    "no class": ("num_classes", np.int64(0), "0 classes; expected 1 to"),
    "2^64 - 1 classes": ("num_classes", np.uint64(2**64 - 1), "18446744073709551615 classes"),
}


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_number_that_is_none_is_refused(tmp_path, arrays, how):
    key, value, complaint = REFUSED[how]
    with pytest.raises(DatasetError, match=complaint):
        load(tmp_path, {**arrays, key: value})


TAKEN = {
    "masks of 0 and 1": lambda arrays: {f"{split}_mask": arrays[f"{split}_mask"].astype(np.float32)
                                        for split in ("train", "val", "test")},
    "unsigned offsets and ids": lambda arrays: {"indptr": arrays["indptr"].astype(np.uint64),
                                                "indices": arrays["indices"].astype(np.uint64)},
    "small unsigned labels": lambda arrays: {"labels": arrays["labels"].astype(np.uint64)},
    "labels as floats": lambda arrays: {"labels": arrays["labels"].astype(np.float16)},
}


@pytest.mark.parametrize("how", TAKEN)
def test_other_types_of_the_same_numbers_are_the_same(tmp_path, arrays, how):
    expected, found = load(tmp_path, arrays), load(tmp_path, {**arrays, **TAKEN[how](arrays)})
    for name in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name, strict=True)


@pytest.mark.parametrize("name", ["..npz", "a\nb.npz", "\x1b[31m.npz", "a" * 200 + ".npz"])
def test_a_name_that_is_no_folders_is_refused(tmp_path, arrays, name):
    with pytest.raises(DatasetError, match=r"the graph would be called .* after its file; rename that"):
        load(tmp_path, arrays, name)


def test_sparse_features_of_complex_numbers_are_refused(tmp_path, arrays):
    features = scipy.sparse.eye(12, 5, dtype=complex, format="csr")
    del arrays["features"]
    arrays |= {"feat_indptr": features.indptr, "feat_indices": features.indices, "feat_data": features.data,
               "num_features": np.int64(5)}
    with pytest.raises(DatasetError, match="feat_data is complex128"):
        load(tmp_path, arrays)
    with pytest.raises(DatasetError, match="1000000000000 feature columns; expected 1 to 16777216"):
        load(tmp_path, {**arrays, "feat_data": features.data.real, "num_features": np.int64(10**12)})


@pytest.mark.parametrize("values", [np.array([-1.0, np.nan, 2.0]), np.array([-1, -1, 2], np.int8)])
def test_unknown_labels_are_minus_one(values):
    np.testing.assert_array_equal(class_ids(values, "x"), [-1, -1, 2])


def test_indicators_that_are_nan_are_refused():
    with pytest.raises(DatasetError, match="multi-label value nan at node 0"):
        indicator_rows(np.full((2, 2), np.nan), "x")


def test_ids_beyond_the_nodes_are_refused_in_any_type():
    none = np.zeros(0, np.int64)
    with pytest.raises(DatasetError, match="node 18446744073709551615 in its validation split"):
        masks_from_ids((np.arange(2), np.array([2**64 - 1], np.uint64), none), 9, "x")


@pytest.mark.parametrize("kind", ["npz", "edges"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DatasetError, match=r"pipe\.npz is a pipe or a device; expected a file"):
        load_source(f"{kind}:{tmp_path}/pipe.npz", SourceOptions(make_labels=2))


def test_a_line_without_end_is_refused_before_memory_is_filled(tmp_path, monkeypatch):
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(text_stream, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"1 " * (1 << 20))
    with pytest.raises(DatasetError, match=r"bomb\.csv\.gz has a line of more than 1 MiB; expected one row per line"):
        load_source(f"edges:{path}", SourceOptions(make_labels=2))


def test_millions_of_empty_lines_are_no_rows(tmp_path):
    path = tmp_path / "empty.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"\n" * (1 << 23) + b"0 1\n" + b"\r\n" * (1 << 20))
    assert read_matrix(TextTable(path), np.int64).tolist() == [[0, 1]]


def test_an_id_below_zero_is_refused(tmp_path):
    (tmp_path / "web.txt").write_text("0 1\n-1 0\n")
    with pytest.raises(DatasetError, match="an edge to node -1, which does not exist"):
        load_source(f"edges:{tmp_path}/web.txt", SourceOptions(make_labels=2, feature_kind="structural"))


def test_a_synthetic_graph_that_no_memory_holds_is_refused():
    with pytest.raises(DatasetError, match=r"synthetic has 1,000,000,000,000 nodes and .* edges, which take"):
        load_source(f"synthetic:nodes={10**12}", SourceOptions())


def test_memory_that_ends_is_a_sentence(tmp_path, arrays, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("hpcgnn.data.given.build_csr", fail)
    with pytest.raises(DatasetError, match=r"ring\.npz needs more memory than this machine gives"):
        load(tmp_path, arrays)


@pytest.mark.parametrize("kind", ["npz", "edges", "graphsaint", "planetoid"])
def test_a_name_that_no_file_system_takes_is_a_sentence(kind):
    with pytest.raises(DatasetError, match="File name too long"):
        load_source(f"{kind}:{'a' * 300}", SourceOptions(make_labels=2 if kind in ("npz", "edges") else None))


@pytest.mark.parametrize("neighbors", [{0: [0.5]}, {0: [True]}, {0.5: [0]}, {0: [2**70]}, {0: 1}])
def test_planetoid_nodes_that_are_no_ids_are_refused(tmp_path, neighbors):
    with pytest.raises(DatasetError, match=r"ind\.x\.graph (names nodes that are no|is no map)"):
        planetoid._arcs(neighbors, tmp_path, "x")


def test_a_class_number_of_twelve_digits_is_one_class(tmp_path):
    (tmp_path / "web.txt").write_text("0 1\n1 0\n")
    (tmp_path / "labels.csv").write_text(f"0\n{10**12}\n")
    found = load_source(f"edges:{tmp_path}/web.txt,labels={tmp_path}/labels.csv",
                        SourceOptions(feature_kind="structural"))
    assert (found.num_classes, found.class_names) == (2, ("0", "1000000000000"))


@pytest.fixture
def graphsaint(tmp_path):
    folder = tmp_path / "ring"
    folder.mkdir()
    np.savez(folder / "adj_full.npz", format=b"csr", indptr=np.arange(13), indices=np.roll(np.arange(12), 1),
             data=np.ones(12), shape=np.array([12, 12]))
    np.save(folder / "feats.npy", np.ones((12, 3), np.float32))
    (folder / "class_map.json").write_text(json.dumps({str(node): node % 3 for node in range(12)}))
    (folder / "role.json").write_text(json.dumps({"tr": [0, 1, 2, 3], "va": [4, 5], "te": [6, 7]}))
    return folder


@pytest.mark.parametrize("file, content, complaint", [
    ("role.json", '{"tr": [0.5], "va": [1], "te": [2]}', "expected whole numbers"),
    ("role.json", '{"tr": [true], "va": [1], "te": [2]}', "expected whole numbers"),
    ("role.json", '{"tr": ["1"], "va": [1], "te": [2]}', "expected whole numbers"),
    ("role.json", '{"tr": [[1]], "va": [1], "te": [2]}', "expected whole numbers"),
    ("role.json", f'{{"tr": [{2**64}], "va": [1], "te": [2]}}', "no list of node ids"),
    ("role.json", "[" * 100_000, "can't be read as JSON"),
    ("class_map.json", f'{{"{2**64}": 1}}', "can't be read as labels"),
    ("class_map.json", json.dumps({str(node): 2**64 - 1 for node in range(12)}), "label 18446744073709551615"),
    ("class_map.json", json.dumps({str(node): [] for node in range(12)}), r"labels of shape \(12, 0\)"),
])
def test_graphsaint_files_that_say_something_else_are_refused(graphsaint, file, content, complaint):
    load_source(f"graphsaint:{graphsaint}", SourceOptions())
    (graphsaint / file).write_text(content)
    with pytest.raises(DatasetError, match=complaint):
        load_source(f"graphsaint:{graphsaint}", SourceOptions())


@pytest.mark.parametrize("value", [np.ones((12, 3), complex), np.array([["a"] * 3] * 12), np.ones(()), np.ones(12)])
def test_graphsaint_features_that_are_no_matrix_of_numbers_are_refused(graphsaint, value):
    np.save(graphsaint / "feats.npy", value)
    with pytest.raises(DatasetError, match="expected a matrix of numbers"):
        load_source(f"graphsaint:{graphsaint}", SourceOptions())
