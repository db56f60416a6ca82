"""Several ranks write the shards that one process writes, to the byte; what one of them can't do is an error of all."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from mpi4py import MPI
from reference_partition import random_dataset
from training_setup import shared_path  # noqa: F401

from hpcgnn.data.arrays import keep_rows
from hpcgnn.data.features import FeatureRows, scaled_columns
from hpcgnn.errors import CollectiveError, ShardError
from hpcgnn.library.preprocess import Ranks
from hpcgnn.shards import writer
from hpcgnn.shards.folder import ALONE
from hpcgnn.shards.reader import verify_shards
from hpcgnn.shards.writer import Making, make_shards

COMM = MPI.COMM_WORLD
CREW = Ranks(COMM)
NUM_NODES, NUM_FEATURES = 120, 5


@pytest.fixture(autouse=True)
def one_id(monkeypatch):
    """All runs of preprocess draw the same id, so that their files are the same where their content is."""
    monkeypatch.setattr(writer.uuid, "uuid4", lambda: uuid.UUID(int=7))


def filed(features, folder):
    return FeatureRows(keep_rows([features[:50], features[50:]], folder, "x"))


FEATURES = {
    "an array": lambda features, folder: features,
    "a file": filed,
    "treated rows of a file": lambda features, folder: filed(features, folder).treated(
        partial(scaled_columns, np.arange(5.0), np.full(5, 0.5))),
    "sparse": lambda features, folder: scipy.sparse.csr_matrix(np.where(features > 0.7, features, 0)),
    "treated sparse rows": lambda features, folder: FeatureRows(
        scipy.sparse.csr_matrix(np.where(features > 0.7, features, 0)),
        (partial(scaled_columns, np.zeros(5), np.ones(5)),)),
}
MAKING = {
    "as by default": Making(parts=4), "packages": Making(parts=3, feature_format="package", reorder="rcm"),
    "one part": Making(parts=1), "clusters": Making(parts=4, cluster_rows=20, reorder="degree", partitioner="random"),
}


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("how", MAKING.values(), ids=MAKING)
@pytest.mark.parametrize("form", FEATURES.values(), ids=FEATURES)
@pytest.mark.covering(1)
def test_files_are_the_same_for_any_number_of_ranks(form, how, shared_path):  # noqa: F811
    dataset = None
    if COMM.rank == 0:
        dataset = random_dataset(NUM_NODES, 900, seed=3, num_features=NUM_FEATURES)
        names = np.array([f"node {v}" for v in range(NUM_NODES)], dtype=object)
        weight = np.linspace(1, 2, dataset.num_edges, dtype=np.float32)
        dataset = replace(dataset, features=form(dataset.features, shared_path), node_name=names, edge_weight=weight)
        make_shards(dataset, shared_path / "alone", how, "test", {"as": "given"}, crew=ALONE)
    info = make_shards(dataset, shared_path / "crew", how, "test", {"as": "given"}, crew=CREW)
    COMM.Barrier()
    assert info == verify_shards(shared_path / "crew")
    assert files_of(shared_path / "crew") == files_of(shared_path / "alone")


@pytest.mark.parallel([2, 3])
def test_what_the_last_rank_can_t_write_is_one_sentence_of_all_and_the_old_shards_stay(shared_path, monkeypatch):  # noqa: F811
    dataset = random_dataset(NUM_NODES, 900, seed=3, num_features=NUM_FEATURES) if COMM.rank == 0 else None
    make_shards(dataset, shared_path / "g", Making(parts=4), "test", {}, crew=CREW)
    COMM.Barrier()
    before, last = files_of(shared_path / "g"), COMM.size - 1

    def full(path, *arguments):
        raise ShardError(f"{path.name} can't be written: the disk is full")

    if COMM.rank == last:
        monkeypatch.setattr(writer, "write_sealed", full)
    with pytest.raises(CollectiveError, match=rf"^rank {last}: part-000{last}\.h5 can't be written: the disk is full$"):
        make_shards(dataset, shared_path / "g", Making(parts=4, overwrite=True), "test", {}, crew=CREW)
    COMM.Barrier()
    assert files_of(shared_path / "g") == before


@pytest.mark.parallel(2)
@pytest.mark.parametrize(("how", "complaint"), [
    (Making(parts=NUM_NODES + 1), "parts were asked for"),
    (Making(parts=2, feature_format="float8"), "feature format is 'float8'"),
])
def test_what_rank_0_refuses_all_raise(how, complaint, shared_path):  # noqa: F811
    dataset = random_dataset(NUM_NODES, 900, seed=3, num_features=NUM_FEATURES) if COMM.rank == 0 else None
    with pytest.raises(CollectiveError, match=f"rank 0: .*{complaint}"):
        make_shards(dataset, shared_path / "g", how, "test", {}, crew=CREW)
    assert not (shared_path / "g").exists()
