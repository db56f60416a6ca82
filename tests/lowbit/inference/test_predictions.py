"""Predictions of all ranks lie in one file by global id, or nothing is there."""

from __future__ import annotations

import contextlib
import resource

import numpy as np
import pytest
from integer_models import some_model
from mpi4py import MPI
from training_setup import on_rank_zero

from hpcgnn.errors import CheckpointError, CollectiveError
from hpcgnn.lowbit.inference.predictions import read_predictions, write_predictions
from hpcgnn.results import answers as answers_module
from hpcgnn.results.answer_file import check_writable


def parts_of(comm, num_nodes, seed=0):
    """Ids of this rank's nodes, in no order; the last of several ranks has none."""
    rng = np.random.default_rng(seed)
    owner = rng.integers(0, max(1, comm.size - 1), num_nodes)
    return rng.permutation(num_nodes)[owner == comm.rank].astype(np.int64)


def write_some(comm, path, num_nodes=100, is_multi_label=False, hidden=3):
    model = some_model("gcn", num_classes=4, is_multi_label=is_multi_label)
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(num_nodes, 4)).astype(np.float32)
    embeddings = rng.normal(size=(num_nodes, hidden)).astype(np.float32)
    node_id = parts_of(comm, num_nodes)
    write_predictions(comm, path, model, num_nodes, node_id, logits[node_id], embeddings[node_id])
    return logits, embeddings


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("is_multi_label", [False, True])
@pytest.mark.parametrize("piece_bytes", [1, 300, 1 << 20])
def test_rows_lie_in_the_order_of_global_ids(shared_path, is_multi_label, piece_bytes, monkeypatch):
    monkeypatch.setattr(answers_module, "PIECE_BYTES", piece_bytes)
    comm, path = MPI.COMM_WORLD, shared_path / "p.h5"
    logits, embeddings = write_some(comm, path, is_multi_label=is_multi_label)
    found = on_rank_zero(comm, lambda: read_predictions(path))
    assert (found.dataset, found.scheme, found.is_multi_label) == ("synthetic", "calibrated", is_multi_label)
    np.testing.assert_array_equal(found.logits, logits)
    np.testing.assert_array_equal(found.embeddings, embeddings)
    expected = (logits > 0).astype(np.uint8) if is_multi_label else logits.argmax(axis=1).astype(np.int32)
    assert found.prediction.dtype == expected.dtype
    np.testing.assert_array_equal(found.prediction, expected)


@pytest.mark.parallel([2])
def test_a_graph_without_nodes_and_a_model_without_hidden_rows_are_written(shared_path):
    comm = MPI.COMM_WORLD
    for name, options in (("empty.h5", {"num_nodes": 0}), ("flat.h5", {"hidden": 0})):
        logits, embeddings = write_some(comm, shared_path / name, **options)
        found = on_rank_zero(comm, lambda name=name: read_predictions(shared_path / name))
        assert found.logits.shape == logits.shape and found.embeddings.shape == embeddings.shape
        np.testing.assert_array_equal(found.logits, logits)


@pytest.mark.parallel([2])
def test_a_full_disk_stops_all_ranks_and_leaves_what_was_there(shared_path, monkeypatch):
    monkeypatch.setattr(answers_module, "PIECE_BYTES", 300)
    comm, path = MPI.COMM_WORLD, shared_path / "p.h5"
    on_rank_zero(comm, lambda: path.write_text("before"))
    with file_size_limit(2000), pytest.raises(CollectiveError, match=r"p\.h5 can't be written: File too large; "):
        write_some(comm, path, num_nodes=1000)
    assert on_rank_zero(comm, lambda: [(file.name, file.read_text()) for file in shared_path.iterdir()]) == [
        ("p.h5", "before")]


@pytest.mark.parallel([2])
def test_a_folder_that_is_missing_stops_all_ranks(shared_path):
    with pytest.raises(CollectiveError, match="can't be written"):
        write_some(MPI.COMM_WORLD, shared_path / "none" / "p.h5")


def test_where_a_file_can_be_written_is_known_before(tmp_path):
    check_writable(tmp_path / "p.h5")
    for path in (tmp_path, tmp_path / "none" / "p.h5"):
        with pytest.raises(CheckpointError, match="can't be written: its folder does not exist"):
            check_writable(path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "p.h5"
    path.write_bytes(b"hpcgnn")
    with pytest.raises(CheckpointError, match="run hpcgnn infer again"):
        read_predictions(path)


@contextlib.contextmanager
def file_size_limit(num_bytes):
    """A disk that is full after that many bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
