"""What graph.h5 says reaches all ranks, of which one reads it."""

from pathlib import Path

import pytest
from mpi4py import MPI

from hpcgnn.errors import CollectiveError, ShardError
from hpcgnn.shards.reader import read_graph_info
from hpcgnn.training import session
from hpcgnn.training.session import read_shared_info

COMM = MPI.COMM_WORLD


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
