"""Parts with equally much to train: asked for, by a run's seconds, shown by inspect, and each fault in one sentence."""

import shutil

import pytest
from mpi4py import MPI
from training_setup import on_rank_zero

import hpcgnn as package
from hpcgnn.shards.reader import read_graph_info

SOURCE = "synthetic:nodes=300,mean_degree=8,classes=3,features=8"
TWO = pytest.mark.parallel([2])
COMM = MPI.COMM_WORLD


@pytest.fixture
def made(shared_path):
    """made(name, **options): collective, a folder of shards in two parts."""
    def make(name, data=SOURCE, **options):
        package.preprocess(data, parts=2, out=shared_path / name, **options)
        return shared_path / name
    return make


@TWO
def test_a_run_balances_the_next_parts_and_inspect_shows_both(hpcgnn, made, shared_path):
    shards, run = made("g", balance="training:2"), shared_path / "run"
    settings = read_graph_info(shards).provenance.settings
    assert settings["balance"] == "training:2"
    assert hpcgnn("train", shards, "--out", run, "--layers", 2, "--hidden", 8, "--epochs", 6, "--eval-every", 2)[0] == 0
    again = made("again", balance=f"run:{run}")
    settings = read_graph_info(again).provenance.settings
    assert settings["balance"] == f"run:{run}"
    code, out, _ = hpcgnn("inspect", shards, run)      # it reads files and knows no ranks
    assert code == 0 and "an epoch of 2 layers, part by part" in out and "s over mean" in out
    shutil.rmtree(shards, ignore_errors=True)
    COMM.Barrier()
    with pytest.raises(package.HpcgnnError, match="g"):
        made("third", balance=f"run:{run}")


def test_inspect_shows_the_work_of_each_part(hpcgnn, tmp_path):
    hpcgnn("preprocess", SOURCE, "--parts", 3, "--out", tmp_path / "g", "--balance", "training:2")
    code, out, _ = hpcgnn("inspect", tmp_path / "g", 2)
    assert code == 0
    rows = [line.split() for line in out.partition("an epoch of 2 layers, part by part")[2].splitlines()]
    shares = [float(cells[1]) for cells in rows if len(cells) == 3 and cells[0] in "012"]
    assert len(shares) == 3 and sum(shares) == pytest.approx(1, abs=1e-3) and max(shares) * 3 < 1.1


@pytest.mark.parametrize("balance, code, complaint", [
    ("halo", 2, "'halo' is not one of"), ("training:0", 2, "'training:0' is not one of"),
    ("training:x", 2, "'training:x'"), ("both:2", 2, "'both:2'"), ("run:", 2, "'run:'"), ("run:missing", 1, "missing"),
])
def test_each_fault_is_one_sentence(hpcgnn, tmp_path, balance, code, complaint):
    found, out, err = hpcgnn("preprocess", SOURCE, "--parts", 2, "--out", tmp_path / "g", "--balance", balance)
    assert (found, out) == (code, "") and complaint in err and err.count("\n") == 1
    assert not (tmp_path / "g").exists()
    with pytest.raises(package.HpcgnnError, match="balance must be one of nodes, edges, both, training" if code == 2
                       else "missing"):
        package.preprocess(SOURCE, parts=2, out=tmp_path / "g", balance=balance)


@pytest.mark.parametrize("work, complaint", [("0", "an epoch is of 1 to 1024 layers, found 0"), ("none", "none")])
def test_work_of_nothing_is_refused(hpcgnn, tmp_path, work, complaint):
    hpcgnn("preprocess", SOURCE, "--parts", 2, "--out", tmp_path / "g")
    code, _, err = hpcgnn("inspect", tmp_path / "g", work)
    assert code == 1 and complaint in err and err.count("\n") == 1


@TWO
def test_a_run_on_another_graph_is_refused(hpcgnn, made, shared_path):
    shards, run = made("g"), shared_path / "run"
    hpcgnn("train", shards, "--out", run, "--layers", 2, "--hidden", 8, "--epochs", 4, "--eval-every", 2)
    with pytest.raises(package.HpcgnnError, match=r"\(300 nodes, .* has 400 nodes and .* give a run on the same graph"):
        made("other", SOURCE.replace("300", "400"), balance=f"run:{run}")
    assert on_rank_zero(COMM, lambda: not (shared_path / "other" / "graph.h5").exists())
