"""`hpcgnn bench`: each subcommand on a tiny graph leaves a table, a picture and a consistent bench.json."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fork_server import served
from inference_setup import archive_of
from parallel_run import clean_environment
from small_benchmarks import make_small
from training_setup import easy_graph, random_owner, write

from hpcgnn.bench import result
from hpcgnn.bench.machine import describe_machine
from hpcgnn.bench.timing import CEILING, OURS, Measurement
from hpcgnn.cli import bench

TINY = "synthetic:nodes=40,mean_degree=8,classes=3,features=6"


@pytest.fixture
def small_bench(hpcgnn, monkeypatch):
    """Run a benchmark of small work in this process: (exit status, output, complaints)."""
    make_small(monkeypatch.setattr)
    return partial(hpcgnn, "bench")


def records_of(folder, kind):
    """The measurements of bench.json, after a check that each follows from its repetitions."""
    content = json.loads((folder / "bench.json").read_text())
    assert content["kind"] == kind
    assert {"processor", "cores", "threads", "simd", "load_average", "allocator", "versions", "commit",
            "command"} <= set(content["machine"])
    for row in content["measurements"]:
        medians = {name: statistics.median(spent) for name, spent in row["seconds"].items()}
        assert row["median_seconds"] == medians and min(medians.values()) > 0
        peers = medians.keys() - {"hpcgnn", "ceiling"}
        assert row["peer_ratio"] == {name: medians[name] / medians["hpcgnn"] for name in peers}
        share = medians["ceiling"] / medians["hpcgnn"] if "ceiling" in medians else None
        assert row["ceiling_share"] == share
        assert row["rate"] == (None if row["unit"] == "s" else row["amount"] / medians["hpcgnn"])
    return content["measurements"]


@pytest.fixture
def graph(tmp_path):
    """An .npz archive of 40 nodes with features, labels and splits."""
    return archive_of(tmp_path / "small.npz", easy_graph(spec=TINY))


def installed(*peers):
    packages = {"pyg": "torch_geometric"}
    return [peer for peer in peers if importlib.util.find_spec(packages.get(peer, peer))]


def test_kernels_are_measured_against_ceilings_and_peers(small_bench, graph, tmp_path):
    peers = installed("torch", "scipy", "pyg")
    status, printed, complaints = small_bench("kernels", graph, "drawn:2e4", "--widths", "5", "--repeat", 1,
                                              "--threads", 1, "--peer", ",".join(peers), "--out", tmp_path / "out")
    assert status == 0, complaints
    rows = records_of(tmp_path / "out", "kernels")
    groups = [row["group"] for row in rows]
    assert {group: groups.count(group) for group in groups} == {
        "ceiling": 5, "dense": 4, "spmm": 4, "sddmm": 4, "quantize + pack": 4, "unpack + dequantize": 4,
        "rotate + pack": 4, "unpack + rotate": 4,
        "norm + ReLU + dropout": 4, "dropout": 2}
    by_case = {row["case"]: row for row in rows if row["group"] != "sddmm"}
    assert set(by_case["small x5 fp32"]["seconds"]) == {"ceiling", "hpcgnn", *peers}
    assert "hpcgnn fp32" in by_case["small x5 bf16"]["seconds"] and "synthetic-0.02M x5 fp32" in by_case
    without_torch = ("ceiling", "dense", "spmm", "sddmm", "rotate + pack", "unpack + rotate")
    assert all("torch" in row["seconds"] for row in rows if row["group"] not in without_torch)
    assert set(by_case["rows @ weight x9 fp32"]["seconds"]) == {"ceiling", "hpcgnn", "torch", "numpy"}
    assert len(complaints.splitlines()) == len(rows) + 1 and complaints.startswith("hpcgnn: bench kernels on ")
    assert all("ceiling" in row["seconds"] for row in rows if row["group"] != "ceiling")
    assert (tmp_path / "out/bench.png").read_bytes().startswith(b"\x89PNG")
    assert "small x5 fp32" in printed and "scipy has no bf16 product" in printed
    assert f"results: {tmp_path / 'out'}" in printed


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mpirun") is None and "MPIRUN" not in os.environ, reason="there is no mpirun")
def test_epochs_of_ours_and_of_peers_are_measured_in_processes_of_their_own(graph, tmp_path):
    peers = installed("dgl", "pyg")
    command = served(["-m", "hpcgnn", "bench", "epoch", graph, "--model", "gcn", "--ranks", 2, "--threads", 1,
                      "--epochs", 4, "--hidden", 8, "--repeat", 1, "--peer", ",".join(peers), "--out",
                      tmp_path / "out"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=clean_environment())
    assert done.returncode == 0, done.stderr
    rows = records_of(tmp_path / "out", "epoch")
    assert [row["case"] for row in rows] == ["small gcn 3 x 8 fp32"]
    for row in rows:
        assert set(row["seconds"]) == {"ceiling", "hpcgnn", "hpcgnn 2 x 1", *peers}
        assert all(len(row["seconds"][name]) == 4 - 2 for name in ("hpcgnn", "hpcgnn 2 x 1", *peers))
        assert sum(row["ceiling_seconds"].values()) == pytest.approx(row["median_seconds"]["ceiling"])
        for trainings in row["runs"].values():
            assert len(trainings) == 1 and all(run["peak_bytes"] > 1e6 for run in trainings)
            assert all(0 <= run["test_score"] <= 1 for run in trainings)
        ranks = [[run["test_score"] for run in row["runs"][name]] for name in ("hpcgnn", "hpcgnn 2 x 1")]
        assert ranks[0] == ranks[1]
    assert "peak memory of the largest process: hpcgnn" in done.stdout


def test_shards_are_trained_as_they_are(small_bench, tmp_path):
    dataset = easy_graph(spec=TINY)
    shards = write(dataset, random_owner(dataset, 1), 1, tmp_path / "shards")
    status, printed, complaints = small_bench("epoch", shards, "--model", "gcn", "--epochs", 3, "--hidden", 4,
                                              "--repeat", 1, "--threads", 1)
    assert status == 0, complaints
    assert "synthetic gcn 3 x 4 fp32" in printed


def test_an_exchange_on_one_rank_is_refused(small_bench):
    status, _, complaints = small_bench("exchange")
    assert (status, complaints) == (1, "hpcgnn: hpcgnn bench exchange was started on 1 rank and needs two or more; "
                                       "run mpirun -n 2 hpcgnn bench exchange\n")


@pytest.mark.parametrize("arguments, status, complaint", [
    (["kernels", "--peer", "mxnet"], 1, "--peer has 'mxnet'; expected a list of torch, scipy, pyg, dgl"),
    (["epoch", "g.npz", "--peer", "scipy"], 1, "--peer has 'scipy'; expected a list of dgl, pyg, pyg-in-process, "
     "pyg-compiled"),
    (["kernels", "--widths", "64,x"], 2, "--widths is '64,x'; expected positive numbers with commas between them"),
    (["kernels", "--precision", "fp64"], 2, "--precision has 'fp64'; expected a list of fp32, fp16, bf16"),
    (["kernels", "--device", "cuda", "--peer", "scipy"], 1, "--peer has 'scipy'; expected a list of torch"),
    (["exchange", "--threads", "2"], 2,
     "--threads is not for this benchmark: set OMP_NUM_THREADS for the ranks"),
    (["exchange", "--repeat"], 2, "--repeat needs a value"),
    (["exchange", "--device", "cuda"], 2,
     "--device cuda is not for this benchmark, but for epoch, inference, kernels"),
    (["inference", "g.npz", "--device", "cuda", "--peer", "dgl"], 1, "--peer has 'dgl'; expected a list of torch"),
])
def test_what_can_not_be_measured_is_refused_before_anything_is(hpcgnn, arguments, status, complaint):
    assert hpcgnn("bench", *arguments) == (status, "", f"hpcgnn: {complaint}\n")


def test_a_source_that_is_missing_is_refused(small_bench, tmp_path):
    status, _, complaints = small_bench("epoch", tmp_path / "none.npz", "--epochs", 3)
    assert status == 1
    assert complaints.startswith("hpcgnn: ") and "none.npz" in complaints and "Traceback" not in complaints


@pytest.mark.parametrize("arguments", [
    ["--repeat", "4", "--threads", "2", "--out", "F", "--device", "cuda", "kernels"],
    ["kernels", "--repeat", "4", "--threads", "2", "--out", "F", "--device", "cuda"],
    ["--repeat=4", "kernels", "--out=F", "--device=cuda", "--threads", "2"]])
def test_the_groups_options_stand_before_or_behind_the_command(hpcgnn, arguments, monkeypatch):
    seen = []
    monkeypatch.setattr(bench, "open_place", lambda kind, shared, *more, **settings: (seen.append(shared), None))
    monkeypatch.setattr(bench, "finish", lambda *arguments: None)
    assert hpcgnn("bench", *arguments)[0] == 0 and seen == [bench.Shared(4, 2, Path("F"), "cuda")]


def test_a_graph_that_can_not_be_drawn_is_refused_before_anything_is(small_bench):
    status, _, complaints = small_bench("kernels", "drawn:many")
    assert status == 1
    assert complaints.splitlines()[1:] == [
        "hpcgnn: drawn:many is no graph to draw; expected drawn:EDGES with at least 20 edges, as in drawn:20e6"]


def test_without_matplotlib_the_numbers_are_there_and_the_reason_why_there_is_no_picture(tmp_path, monkeypatch, capsys):
    row = Measurement("spmm", "g", 1.0, "GB/s", {OURS: [0.5], CEILING: [0.25]})
    monkeypatch.setattr(result.importlib.util, "find_spec", lambda name: None)
    bench.prepare_output(tmp_path / "out")
    bench.finish("kernels", describe_machine(1), SimpleNamespace(measure=lambda: [row]),
                 bench.Shared(out=tmp_path / "out"))
    printed = capsys.readouterr().out
    assert "there is no bench.png: matplotlib is not installed" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.json", "table.txt"}
    assert printed.startswith((tmp_path / "out/table.txt").read_text())
