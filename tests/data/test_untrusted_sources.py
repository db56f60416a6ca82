"""Numbers that a cast would turn into others, and sources that no memory or no time suffices for, are one sentence."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
import scipy.sparse

from hpcgnn.data import planetoid, text_stream
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
