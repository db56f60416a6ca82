"""`hpcgnn preprocess` under mpirun: the shards of one process, one table, and one sentence for a fault of any rank."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from training_setup import shared_path  # noqa: F401

from hpcgnn.shards.reader import read_graph_info, read_partition, verify_shards

COMM = MPI.COMM_WORLD
SOURCE = "synthetic:nodes=300,mean_degree=8,features=12"


@pytest.mark.parallel([2, 3])
def test_ranks_make_one_folder_and_rank_0_shows_it_once(hpcgnn, shared_path):  # noqa: F811
    code, out, err = hpcgnn("preprocess", SOURCE, "--out", shared_path / "g", "--parts", 4,
                            "--normalize-features", "standard")
    assert (code, err) == (0, "") and out.count("4 parts by kaminpar") == 1
    info = verify_shards(shared_path / "g")
    parts = [read_partition(shared_path / "g", part, 4) for part in range(4)]
    assert info.num_nodes == 300 == sum(part.num_inner for part in parts)
    assert sum(part.num_edges for part in parts) == info.num_edges
    COMM.Barrier()
    assert sorted(path.name for path in (shared_path / "g").iterdir()) == [
        "graph.h5", *(f"part-000{part}.h5" for part in range(4))]


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize(("source", "complaint"), [("npz:missing.npz", "missing.npz does not exist"),
                                                   ("synthetic:nodes=8", "synthetic: has nodes=8")])
def test_a_source_that_rank_0_can_t_read_ends_all_ranks_with_its_sentence(hpcgnn, shared_path, source,  # noqa: F811
                                                                          complaint):
    code, out, err = hpcgnn("preprocess", source, "--out", shared_path / "g", "--parts", 2)
    assert (code, out) == (1, "") and complaint in err and err.count("\n") == 1
    assert not (shared_path / "g").exists()


@pytest.mark.parallel(2)
def test_a_taken_folder_is_refused_on_all_ranks_before_the_source_is_read(hpcgnn, shared_path):  # noqa: F811
    arguments = ("preprocess", SOURCE, "--out", shared_path / "g", "--parts", 2)
    assert hpcgnn(*arguments)[0] == 0
    before = read_graph_info(shared_path / "g").run_id
    COMM.Barrier()
    code, _, err = hpcgnn("preprocess", "npz:missing.npz", *arguments[2:])
    assert code == 1 and "already holds shards" in err
    assert hpcgnn(*arguments, "--overwrite")[0] == 0
    assert read_graph_info(shared_path / "g").run_id != before
