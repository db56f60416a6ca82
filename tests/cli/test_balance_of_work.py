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
    shards, run = made("g", balance="training", layers=2), shared_path / "run"
    settings = read_graph_info(shards).provenance.settings
    assert (settings["balance"], settings["layers"]) == ("training", 2)
    assert hpcgnn("train", shards, "--out", run, "--layers", 2, "--hidden", 8, "--epochs", 6, "--eval-every", 2)[0] == 0
    again = made("again", rebalance=run)
    settings = read_graph_info(again).provenance.settings
    assert (settings["balance"], settings["layers"], settings["rebalance"]) == ("training", 2, str(run))
    code, out, _ = hpcgnn("inspect", shards, "--run", run)      # it reads files and knows no ranks
    assert code == 0 and "an epoch of 2 layers, part by part" in out and "s over mean" in out
    shutil.rmtree(shards, ignore_errors=True)
    COMM.Barrier()
    with pytest.raises(package.HpcgnnError, match="g"):
        made("third", rebalance=run)


def test_shards_that_balance_otherwise_do_not_name_layers(hpcgnn, tmp_path):
    assert hpcgnn("preprocess", SOURCE, "--parts", 2, "--out", tmp_path / "g")[0] == 0
    assert {"layers", "rebalance"} & set(read_graph_info(tmp_path / "g").provenance.settings) == set()


def test_inspect_shows_the_work_of_each_part(hpcgnn, tmp_path):
    hpcgnn("preprocess", SOURCE, "--parts", 3, "--out", tmp_path / "g", "--balance", "training", "--layers", 2)
    code, out, _ = hpcgnn("inspect", tmp_path / "g", "--layers", 2)
    assert code == 0
    rows = [line.split() for line in out.partition("an epoch of 2 layers, part by part")[2].splitlines()]
    shares = [float(cells[1]) for cells in rows if len(cells) == 3 and cells[0] in "012"]
    assert len(shares) == 3 and sum(shares) == pytest.approx(1, abs=1e-3) and max(shares) * 3 < 1.1


@pytest.mark.parametrize("arguments, code, complaint", [
    (("--layers", 2), 2, "--layers has no effect on --balance both"),
    (("--rebalance", "missing"), 1, "missing"),
    (("--rebalance", "missing", "--balance", "both"), 2, "leave --balance and --layers out"),
    (("--rebalance", "missing", "--layers", 3), 2, "leave --balance and --layers out"),
    (("--partitioner", "ldg", "--balance", "training"), 1, "partitioner ldg balances nodes only"),
])
def test_each_fault_is_one_sentence(hpcgnn, tmp_path, arguments, code, complaint):
    found, out, err = hpcgnn("preprocess", SOURCE, "--parts", 2, "--out", tmp_path / "g", *arguments)
    assert (found, out) == (code, "") and complaint in err and err.count("\n") == 1


@TWO
def test_a_run_on_another_graph_is_refused(hpcgnn, made, shared_path):
    shards, run = made("g"), shared_path / "run"
    hpcgnn("train", shards, "--out", run, "--layers", 2, "--hidden", 8, "--epochs", 4, "--eval-every", 2)
    with pytest.raises(package.HpcgnnError, match=r"which holds 300 nodes and .* give a run on the same graph"):
        made("other", SOURCE.replace("300", "400"), rebalance=run)
    assert on_rank_zero(COMM, lambda: not (shared_path / "other" / "graph.h5").exists())
