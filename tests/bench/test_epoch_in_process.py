"""Epochs of all contestants in one process: the same losses, phases and profiles, and what is said of others."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda.conftest import need_compiler
from cuda.separate_memory import CapturingBackend, separate_memory
from mpi4py import MPI

from hpcgnn.bench import epoch_in_process, epoch_phases
from hpcgnn.bench.epoch import Trained
from hpcgnn.bench.epoch_in_process import ALIKE, InProcessEpochs, unlike
from hpcgnn.bench.epoch_phases import PROFILED, Phase, PhaseClock, profile_record
from hpcgnn.bench.graphs import draw_training_graph, drawn_size
from hpcgnn.bench.peers import pyg_in_process
from hpcgnn.bench.timing import OURS
from hpcgnn.errors import ConfigError
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards

TINY = "drawn:2e3,120"


def benchmark(models, precisions=("fp32",), **more):
    return InProcessEpochs(MPI.COMM_WORLD, TINY, "cpu", models, precisions,
                           **{"has_peer": True, "epochs": 3, "hidden": 8, **more})


def test_ours_and_pyg_have_the_same_losses_without_dropout():
    made = benchmark(("sage", "gcn", "gat"))
    rows = list(made.measure())
    assert made.failures == []
    assert [row.case.split(" ", 1)[1] for row in rows] == [f"{model} 3 x 8 fp32" for model in ("sage", "gcn", "gat")]
    for row in rows:
        assert set(row.seconds) == {OURS, "pyg edges", *([] if " gat " in row.case else ["pyg CSR"])}
        assert all(len(seconds) == 3 and min(seconds) > 0 for seconds in row.seconds.values())
        ours, *peers = (losses[ALIKE] for losses in row.details["losses"].values())
        assert len(ours) == 3 and ours[2] < ours[0]
        for losses in peers:
            np.testing.assert_allclose(losses, ours, rtol=1e-4)
        assert row.details["profile"]["kernels"]


def test_replays_on_a_device_have_our_losses_in_every_phase(monkeypatch, tmp_path):
    need_compiler()
    write_shards(draw_training_graph(60, 20, "cpu"), np.zeros(20, np.int32), tmp_path, Making(reorder="none"),
                 Provenance("drawn", "contiguous", 0))
    for name in ("reset_peak_memory_stats", "ipc_collect"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    with separate_memory(CapturingBackend()) as device:
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
        made = InProcessEpochs(MPI.COMM_WORLD, str(tmp_path), "cuda", ("gcn",), ("fp32", "tf32"), epochs=3, hidden=8)
        rows = list(made.measure())
    assert [row.case.rsplit(" ", 1)[1] for row in rows] == ["fp32", "tf32"]
    assert made.failures == [] and len(device.backend.graphs) == 3      # fp32, tf32, and the profile in fp32
    for row in rows:
        assert row.details["losses"][OURS] == row.details["losses"]["step graph"]


def test_bfloat16_is_a_training_of_its_own_and_a_peer_that_can_not_is_named():
    made = benchmark(("gcn",), ("bf16",))
    (row,) = made.measure()
    assert made.failures == [] and row.case.endswith("gcn 3 x 8 bf16")
    assert "pyg edges" in row.seconds and np.isfinite(row.details["losses"][OURS][ALIKE]).all()
    assert "pyg CSR" in row.seconds or any("pyg CSR can't train" in remark for remark in row.remarks)


def test_a_peer_that_trains_something_else_fails_the_benchmark_after_its_rows(monkeypatch):
    made = benchmark(("sage",))
    convolution = pyg_in_process.SAGEConv
    monkeypatch.setattr(pyg_in_process, "SAGEConv", lambda *dims: convolution(*dims, aggr="sum"))
    (row,) = made.measure()
    assert len(row.seconds[OURS]) == 3
    (failure,) = made.failures
    assert "pyg edges does not train the same: losses without dropout are " in failure and "2e-03 is allowed" in failure


def test_the_compiled_peer_comes_last_and_trains_no_phase_without_dropout(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda stack, dynamic: compiled.append(stack) or stack)
    made = benchmark(("sage",), compiles=True)
    eager, last = made.measure()
    assert len(compiled) == 1 and set(last.seconds) == {OURS, "pyg edges, compiled"}
    assert last.seconds[OURS] == eager.seconds[OURS]
    assert ALIKE not in last.details["losses"]["pyg edges, compiled"]


def test_a_peer_that_fails_is_a_remark_and_stops_nothing(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("CUDA out of memory. Tried to allocate 59 GiB\nmore")

    monkeypatch.setattr(pyg_in_process.PeerTraining, "stack", refuse)
    made = benchmark(("sage",))
    (row,) = made.measure()
    assert made.failures == [] and set(row.seconds) == {OURS}
    assert [remark.split(": CUDA")[1] for remark in row.remarks if "can't train" in remark] == [
        " out of memory. Tried to allocate 59 GiB"] * 2


@pytest.mark.parametrize("loss, fails", [(1.5, True), (1.0005, False)])
def test_losses_of_several_ranks_are_compared(monkeypatch, tmp_path, loss, fails):
    def train(settings, shards, precision, ranks, threads, out, device):
        out.mkdir(exist_ok=True)
        (out / "metrics.jsonl").write_text(json.dumps({"loss": 1.0 if ranks == 1 else loss}) + "\n")
        (out / "summary.json").write_text(json.dumps({"transport": "staged"}))
        assert device == "cpu"
        return Trained([0.1 * ranks], 1, 0.5, "glibc")

    monkeypatch.setattr(epoch_in_process, "train_ours", train)
    cut = []
    monkeypatch.setattr(epoch_in_process, "write_shards", lambda graph, owner, *more: (
        cut.append(np.bincount(owner).tolist()), write_shards(graph, owner, *more)))
    made = benchmark(("sage",), has_peer=False, ranks=2)
    (row,) = made.measure()
    assert row.seconds == {OURS: [0.1], f"{OURS} 2 ranks": [0.2]} and "messages are staged" in row.remarks[0]
    assert bool(made.failures) == fails and cut == [[120], [60, 60]]


def test_shards_of_one_part_can_not_be_trained_on_by_several_ranks(tmp_path):
    made = InProcessEpochs(MPI.COMM_WORLD, str(tmp_path), "cpu", ("sage",), ("fp32",), ranks=2)
    with pytest.raises(ConfigError, match="is a folder of shards, and --ranks 2 needs the graph in so many parts"):
        next(made.measure())


def test_losses_apart_are_told_with_all_numbers():
    assert unlike([1.0, 0.5], [1.0, 0.5], 1e-3, "pyg") == []
    assert unlike([1.0, 0.5], [1.0, 0.6], 1e-3, "pyg") == [
        "pyg does not train the same: losses without dropout are 1, 0.6, and ours 1, 0.5, 2.0e-01 apart where 1e-03 is "
        "allowed"]


def test_a_clock_sets_dropout_and_precision_phase_by_phase():
    seen = []
    clock = PhaseClock((Phase("fp32", 2, 0.0), Phase("tf32", 1, 0.5)), "cpu", seen.append)
    clock.start()
    assert torch.get_float32_matmul_precision() == "highest"
    clock.tick(3.0)
    clock.tick(2.0)
    assert torch.get_float32_matmul_precision() == "high" and not clock.is_done
    clock.tick(1.0)
    assert clock.is_done and torch.get_float32_matmul_precision() == "highest"
    assert seen == [0.0, 0.5] and clock.losses == {"fp32": [3.0, 2.0], "tf32": [1.0]}


def test_a_profiler_that_fails_costs_nothing_but_the_profile(monkeypatch):
    def refuse(**arguments):
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr(epoch_phases, "profile", refuse)
    clock = PhaseClock((Phase(PROFILED, 1, 0.0),), "cpu", lambda probability: None)
    clock.start()
    clock.tick(1.0)
    assert clock.is_done and clock.profile == {"fault": "RuntimeError: no CUPTI"}


def event(name, start, end, device=torch.autograd.DeviceType.CUDA):
    spent = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, device_type=device, time_range=spent)


def test_a_profile_counts_time_in_which_kernels_overlap_once():
    events = [event("b", 5, 25), event("a", 0, 10), event("a", 40, 50), event("host", 0, 99,
                                                                             torch.autograd.DeviceType.CPU)]
    found = profile_record(SimpleNamespace(events=lambda: events), 2, "cuda")
    assert found["busy_seconds"] == pytest.approx(35e-6 / 2) and found["num_starts"] == 1.5
    assert [(name, count) for name, count, _ in found["kernels"]] == [("a", 1.0), ("b", 0.5)]
    assert found["gaps"] == [[pytest.approx(15e-6), "b", "a"]]


def test_a_drawn_graph_can_be_trained_on():
    dataset = draw_training_graph(4000, 200, "cpu")
    dataset.check()
    arcs = set(zip(dataset.indices.tolist(), np.repeat(np.arange(200), np.diff(dataset.indptr)).tolist(), strict=True))
    assert arcs == {(target, source) for source, target in arcs} and 2000 < dataset.num_edges <= 4000
    degrees = np.sort(np.diff(dataset.indptr))
    assert degrees[-20:].sum() > 3 * degrees[:20].sum()      # some have far more neighbors than others
    assert dataset.train_mask.any() and dataset.num_features == 100


@pytest.mark.parametrize("source, size", [("drawn:4e3,100", (4000, 100)), ("drawn:4e3", (4000, 200)), ("a.npz", None)])
def test_sizes_of_drawn_graphs(source, size):
    assert drawn_size(source) == size


@pytest.mark.parametrize("source", ["drawn:x", "drawn:4e3,x", "drawn:4e3,1", "drawn:3"])
def test_a_graph_that_can_not_be_drawn_is_refused(source):
    with pytest.raises(ConfigError, match="is no graph to draw"):
        drawn_size(source)


@pytest.mark.parametrize("arguments, sentence", [
    ((TINY, "--repeat", "2"), "--repeat is not for epochs in one process"),
    (("a.npz", "--peer", "pyg-in-process", "--repeat", "2"), "--repeat is not for epochs in one process"),
    (("a.npz", "--peer", "pyg-compiled", "--model", "gin"), "sage, gcn, gat"),
    ((TINY, "--precision", "fp16"), "fp32, tf32, bf16"),
    ((TINY, "--peer", "dgl"), "--peer has 'dgl'; expected a list of pyg, pyg-in-process, pyg-compiled"),
    (("a.npz", "--peer", "pyg-compiled,dgl"), "--peer has 'dgl'; expected a list of pyg, pyg-in-process, pyg-comp")])
def test_options_that_one_process_can_not_take_are_refused(bench, arguments, sentence):
    status, _, complaints = bench("epoch", *arguments)
    assert status and sentence in complaints


@pytest.mark.parametrize("arguments, form", [
    (("a.npz", "--peer", "pyg-in-process"), (True, False)), (("a.npz", "--peer", "pyg-compiled"), (True, True)),
    ((TINY,), (False, False)), ((TINY, "--peer", "pyg, pyg-compiled"), (True, True)),
    (("a.npz", "--device", "cuda", "--peer", "pyg"), (True, False))])
def test_the_names_of_peers_say_which_forms_train_in_one_process(bench, arguments, form, monkeypatch):
    made = []
    monkeypatch.setattr(epoch_in_process, "InProcessEpochs", lambda *fields: made.append(fields) or SimpleNamespace(
        failures=[]))
    for name in ("open_place", "finish"):
        monkeypatch.setattr(f"hpcgnn.cli.bench.{name}", lambda *given: ({}, None))
    monkeypatch.setattr("hpcgnn.run.launch.run_parallel", lambda step: step(None))
    assert bench("epoch", *arguments)[0] == 0 and [fields[5:7] for fields in made] == [form]
