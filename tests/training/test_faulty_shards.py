"""One rank reads graph.h5 and tells all; shards that a faulty program sealed end all ranks with one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from resealing import attribute, put, reseal
from training_setup import easy_graph, on_rank_zero, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ShardError
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.training import session
from hpcgnn.training.session import Session, read_shared_info

COMM = MPI.COMM_WORLD


def changed_last(value):
    def change(array):
        array[-1] = value
        return array

    return change


FAULTS = {
    "another validation node": ("graph.h5", attribute("num_val", lambda n: n - 1), "nodes in the splits of its parts"),
    "a name that is a path": ("graph.h5", attribute("name", "../../x"), "names its graph '../../x'"),
    "a source of -1": ("part-0000.h5", put("indices", changed_last(-1)), "indices from -1"),
    "importance that its peer does not hold": ("part-0000.h5", put("importance", lambda a: a * 0), "differ from the"),
    "a halo that its peer does not send": ("part-0000.h5", put("halo_offset", lambda a: a * 0), "halo_offset"),
}


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_is_one_sentence_on_all_ranks(shared_path, how):
    comm, (name, change, complaint) = COMM, FAULTS[how]
    shards = write_once(comm, easy_graph(), shared_path / "shards")
    on_rank_zero(comm, lambda: reseal(shards / name, change))
    with pytest.raises(CollectiveError, match=complaint) as refused:
        Session.open(comm, shards, TrainConfig())
    assert "\n" not in str(refused.value)


@pytest.mark.parallel([1, 2])
def test_a_graph_without_features_is_refused(shared_path):
    dataset = replace(easy_graph(), features=np.empty((240, 0), np.float32))
    shards = write_once(MPI.COMM_WORLD, dataset, shared_path / "shards")
    with pytest.raises(CollectiveError, match="has no features to train on; run hpcgnn preprocess"):
        Session.open(MPI.COMM_WORLD, shards, TrainConfig())


@pytest.mark.parallel([1, 2, 3])
def test_one_rank_reads_and_each_is_told_of_its_own_part(shards, monkeypatch):
    expected, readers = read_graph_info(shards), []
    monkeypatch.setattr(session, "read_graph_info", lambda folder: readers.append(folder) or read_graph_info(folder))
    info = read_shared_info(COMM, shards)
    assert readers == ([shards] if COMM.rank == 0 else [])
    assert info.statistics == {COMM.rank: expected.statistics[COMM.rank]}
    assert (info.run_id, info.num_nodes, info.provenance) == (expected.run_id, expected.num_nodes, expected.provenance)


@pytest.mark.parallel([1, 2, 3])
def test_all_ranks_have_the_sentence_of_the_one_that_reads(shards):
    with pytest.raises(CollectiveError, match=r"graph\.h5"):
        read_shared_info(COMM, Path("/nowhere"))
    alone = COMM.Split(COMM.rank)
    if COMM.size > 1:
        with pytest.raises(CollectiveError) as raised:
            read_shared_info(alone, shards)
        assert str(raised.value) == str(_refusal(shards))
    alone.Free()


def _refusal(shards):
    with pytest.raises(ShardError) as raised:
        session.check_num_parts(read_graph_info(shards), 1)
    return raised.value
