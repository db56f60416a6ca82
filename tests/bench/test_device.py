"""`hpcgnn bench device`: contestants compute the same, rates follow from seconds, and no GPU is one sentence.

Kernels run under emulation and a stand-in for the timer calls each contestant once.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda.emulation import COMPILER, EmulatedBackend

from hpcgnn.__main__ import main
from hpcgnn.bench import device_bits, device_chip, device_pointwise, device_products, device_timing
from hpcgnn.bench.device import DeviceBenchmark
from hpcgnn.bench.device_bits import ALL_TILES, FP16, INT8, JUMPED, ONCE_A_PLANE
from hpcgnn.bench.device_ceilings import measure_ceilings
from hpcgnn.bench.device_chip import Chip
from hpcgnn.bench.device_graphs import arcs_that_fit, draw_power_law
from hpcgnn.bench.device_messages import BITS, measure_messages
from hpcgnn.bench.device_products import CUSPARSE, HALF_ARITHMETIC
from hpcgnn.bench.device_result import DeviceResult
from hpcgnn.bench.device_timing import Device, EventTimer, admit
from hpcgnn.bench.machine import describe_machine
from hpcgnn.bench.products import OURS_FP32
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement
from hpcgnn.cli.bench_device import publish_as_measured
from hpcgnn.errors import HpcgnnError
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu

CHIP = Chip("Stand-in 9000", (9, 0), 1, 1 << 30, 1 << 20)
SECONDS = {CEILING: 0.5, OURS: 1.0}     # of the stand-in; a peer's are 2


class StandInTimer:
    """Calls each contestant twice, as warm-up and measurement, and keeps what they return."""

    def __init__(self):
        self.results = []

    def __call__(self, contestants, is_hot=False):
        for work in contestants.values():
            work()
        self.results.append({name: work() for name, work in contestants.items()})
        return {name: [SECONDS.get(name, 2.0)] for name in contestants}


@pytest.fixture
def device():
    """A Device whose kernels are emulated."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed: kernels can't be emulated")
    torch.manual_seed(0)
    with use_backend(EmulatedBackend(0)), device_kernels_on_cpu():
        yield Device(CHIP, "cpu", StandInTimer())


def tiny(device, **settings):
    """Everything that the command measures, small."""
    return DeviceBenchmark(device, **{
        "graphs": (), "synthetic_edges": 400, "widths": (8,), "precisions": ("fp32", "bf16"), "num_rows": 9,
        "width": 16, "sizes": (32,), "dims": (8,), "bits": (1, 3), "num_stream_bytes": 1 << 12,
        "num_rounds": 1, **settings})


def test_every_part_is_measured(device, tmp_path, monkeypatch):
    monkeypatch.setattr(device_bits, "REUSE_WIDTHS", (2,))
    graph = draw_power_law(200, "cpu")
    np.savez(tmp_path / "small.npz", indptr=graph.indptr, indices=graph.indices)
    benchmark = tiny(device, graphs=(tmp_path / "small.npz",))
    rows = list(benchmark.measure())
    assert benchmark.failures == []
    groups = [row.group for row in rows]
    assert {group: groups.count(group) for group in groups} == {
        "ceiling": 4, "quantize + pack": len(BITS), "unpack + dequantize": len(BITS), "norm + ReLU + dropout": 4,
        "dropout": 2, "bits": 2, "batch": 2, "reuse": 1, "spmm": 4, "sddmm": 4}
    assert all(row.ceiling_share == 0.5 for row in rows if row.group in ("spmm", "sddmm", "dropout", "quantize + pack"))
    assert all(ratio == 2 for row in rows for ratio in row.peer_ratio.values())


def test_a_part_that_fails_is_noted_and_the_others_go_on(device, tmp_path):
    benchmark = tiny(device, graphs=(tmp_path / "missing.npz",), bits=(1,))
    rows = list(benchmark.measure())
    (failure,) = benchmark.failures
    assert failure.startswith(f"{tmp_path / 'missing.npz'}: DatasetError: ")
    assert [row.case for row in rows if row.group == "spmm"] == ["power-law-0.0004M x8 fp32",
                                                                 "power-law-0.0004M x8 bf16"]


def test_ceilings_count_the_bytes_and_operations_that_are_moved_and_done(device):
    copy, gather, mma8, mma16 = measure_ceilings(device, 1 << 12, 2)
    assert copy.rate == 2 * 4096 / 1e9 and gather.rate == 4096 / 1e9    # in one second of the stand-in
    num_tiles = 8 * 8 * 8 * 2    # blocks, warps, tiles and rounds
    assert mma8.rate == pytest.approx(num_tiles * 2 * 8 * 8 * 128 / 1e12)
    assert mma16.rate == pytest.approx(num_tiles * 2 * 16 * 8 * 256 / 1e12)


def test_a_chip_whose_tensor_cores_have_no_and_has_no_ceiling_of_bits(device):
    older = replace(device, chip=replace(CHIP, capability=(7, 5)))
    assert [row.case for row in measure_ceilings(older, 1 << 12, 1)] == ["copy", "gather of rows of 256 bytes"]
    (row,) = device_bits.measure_bits(older, (32,), (8,), (1,), None)
    assert row.ceiling_share is None


def test_a_message_counts_its_rows_and_its_bytes(device):
    rows = measure_messages(device, 9, 16)
    assert [row.group for row in rows] == ["quantize + pack"] * 4 + ["unpack + dequantize"] * 4
    for bits, row in zip(BITS * 2, rows, strict=True):
        assert row.rate == pytest.approx((9 * 16 * 4 + 9 * (4 + 2 * bits)) / 1e9)
        assert set(row.seconds) == {CEILING, OURS, "torch"}


@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-5), ("bf16", 2**-6), ("fp16", 2**-9)])
def test_contestants_of_a_product_agree(device, precision, tolerance):
    graph = draw_power_law(400, "cpu")
    mean, sampled = device_products.measure_products(device, graph, (8,), (precision,))
    halves = {OURS_FP32} if precision != "fp32" else set()
    can_sparse = not any(CUSPARSE in remark for remark in mean.remarks)
    assert set(mean.seconds) - {CUSPARSE} == {CEILING, OURS} | halves | ({HALF_ARITHMETIC} if halves else set())
    assert can_sparse == (CUSPARSE in mean.seconds)
    assert mean.rate == sampled.rate == 400 * 8 * {"fp32": 4}.get(precision, 2) / 1e9
    means, products = device.timer.results
    for name in set(means) - {CEILING, OURS}:
        assert torch.allclose(means[name].float(), means[OURS].float(), atol=4 * tolerance), name
    if CUSPARSE in products:
        assert torch.allclose(products[CUSPARSE].values(), products[OURS][:, 0], atol=1e-4)
    for name in set(products) & {OURS_FP32}:
        assert torch.allclose(products[name], products[OURS], rtol=1e-4, atol=1e-4)


def test_rows_that_are_no_whole_vectors_have_no_ceiling(device):
    mean, _ = device_products.measure_products(device, draw_power_law(100, "cpu"), (3,), ("fp32",))
    assert CEILING not in mean.seconds and OURS in mean.seconds


def test_contestants_of_a_product_of_bits_agree(device):
    rows = list(device_bits.measure_bits(device, (32,), (8,), (1, 4), 2.0))
    for row, results in zip(rows, device.timer.results, strict=True):
        assert np.array_equal(results[OURS].numpy(), results[INT8].numpy())
        assert np.array_equal(results[OURS].numpy(), results[FP16].float().numpy())
        assert row.rate == pytest.approx(2 * 32 * 32 * 8 / 1e12)
    # A plane at 2 TFLOP/s: four planes take four times as long.
    assert [row.median(CEILING) for row in rows] == pytest.approx([rows[0].amount / 2, rows[0].amount * 2])


def test_published_figures_stand_beside_their_shape_and_are_no_contestants():
    row = Measurement("bits", "", 1.0, "TFLOP/s", {OURS: [1.0]})
    device_bits._add_published(row, 4096, 64, 3)
    assert row.details["published_tflops"] == {"QGTC": 35.17, "CUTLASS int4": 24.66, "chip": "RTX 3090"}
    assert row.remarks == ["published, RTX 3090, 4096 x 4096 x 64: QGTC 89.18, 51.21, 35.17, 25.38 TFLOP/s at 1 to 4 "
                           "bits, CUTLASS int4 24.66"]
    assert row.peers == [] and row.as_record()["published_tflops"]["QGTC"] == 35.17
    for shape in ((4096, 65, 3), (4096, 64, 8)):
        unknown = Measurement("bits", "", 1.0, "TFLOP/s", {OURS: [1.0]})
        device_bits._add_published(unknown, *shape)
        assert unknown.remarks == [] and unknown.details == {}


def test_ways_through_tiles_agree(device, monkeypatch):
    monkeypatch.setattr(device_bits, "REUSE_WIDTHS", (2, 4))
    (batch,) = device_bits.measure_tiles(device, (256,), (8,), (3,))
    list(device_bits.measure_reuse(device, 16, 8))
    assert set(batch.seconds) == {OURS, ONCE_A_PLANE, JUMPED, ALL_TILES}
    assert batch.remarks == ["batch of 256: 50.0 % of the tiles are zero"]
    for results in device.timer.results:
        sums = {name: product.numpy() for name, (product, _) in results.items()}
        assert all(np.array_equal(found, sums[OURS]) for found in sums.values())
        assert sums[OURS].any()


def test_arcs_of_a_batch_stay_inside_their_clusters():
    indptr, indices = device_bits.clustered_arcs(512)
    target = np.repeat(np.arange(512), np.diff(indptr))
    assert (target // 32 == indices // 32).all()
    density = len(indices) / (512 * 32)
    assert abs(density - device_bits.BATCH_DENSITY) < 0.02


def test_backward_and_forward_have_gradients_of_all_sides(device):
    list(device_pointwise.measure_pointwise(device, 9, 16, torch.float32))
    forward, backward, alone = device.timer.results
    assert {name: len(found) for name, found in backward.items() if name != CEILING} == {OURS: 3, "torch": 3}
    assert all((forward[name] >= 0).all() for name in (OURS, "torch"))
    assert all(0 < int((alone[name] == 0).sum()) < alone[name].numel() for name in (OURS, "torch"))


def test_a_drawn_graph_is_a_csr_with_heavy_nodes():
    graph = draw_power_law(200_000, "cpu")
    assert graph.num_nodes == 10_000 and graph.num_edges == 200_000 and graph.indptr[-1] == 200_000
    assert graph.indptr.dtype == np.int64 and graph.indices.dtype == np.int32
    assert graph.indices.min() >= 0 and graph.indices.max() < 10_000
    assert all((np.diff(graph.indices[graph.indptr[v]:graph.indptr[v + 1]]) >= 0).all() for v in range(100))
    # A share s of all nodes has sqrt(s) of either end of the arcs.
    for degree in (np.diff(graph.indptr), np.bincount(graph.indices, minlength=10_000)):
        assert np.sort(degree)[-100:].sum() / 200_000 == pytest.approx(0.1, rel=0.1)


def test_a_graph_is_as_large_as_memory_allows():
    assert arcs_that_fit(100e6, 80 << 30) == 100_000_000
    assert arcs_that_fit(100e6, 4_000_000_000) == 10_000_000


def test_a_peer_that_refuses_is_remarked():
    def refuse():
        raise RuntimeError("no such product\nbacktrace")

    assert admit({"able": list, "other": refuse}, "spmm in fp16") == (
        {"able": list}, ["other refuses spmm in fp16: no such product"])


class FakeEvent:
    """Its time is in milliseconds, and goes on as memory is written and as work is done."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = FakeEvent.now

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.at - self.at


class FlushedMemory:
    """A write of it takes 0.75 milliseconds."""

    def __init__(self, num_bytes):
        self.num_bytes, self.num_written = num_bytes, 0

    def zero_(self):
        self.num_written += 1
        FakeEvent.now += 0.75


@pytest.mark.parametrize("is_hot", [False, True])
def test_the_timer_leaves_out_warm_up_and_flush(monkeypatch, is_hot):
    made = []
    monkeypatch.setattr(device_timing.torch, "empty",
                        lambda size, **kinds: made.append(FlushedMemory(size)) or made[-1])
    monkeypatch.setattr(device_timing.torch.cuda, "Event", FakeEvent)
    calls = []

    def work():
        calls.append(made[0].num_written)
        FakeEvent.now += 2

    seconds = EventTimer(Effort(5, 10.0), 400 << 20)({"a": work, "b": work}, is_hot)
    assert made[0].num_bytes == 1600 << 20
    assert seconds == {"a": [pytest.approx(0.002)] * 5, "b": [pytest.approx(0.002)] * 5}
    assert len(calls) == 2 + 2 * 5 * (2 if is_hot else 1)
    # Two writes find out that three take the two milliseconds that the device is to be busy.
    assert sorted(set(calls)) == [2 + 3 * number for number in range(11)]
    # Three repetitions at least, then no more than the seconds allow.
    assert len(EventTimer(Effort(5, 0.004), 0)({"a": work})["a"]) == 3


def test_the_table_and_the_json_name_the_chip_and_the_failures(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device_chip, "driver_version", lambda: "580.1")
    benchmark = tiny(device, graphs=(tmp_path / "none.npz",), synthetic_edges=0, bits=(1,), precisions=("fp32",))
    with pytest.raises(HpcgnnError, match=r"could not measure .*none\.npz: DatasetError"):
        publish_as_measured(benchmark, CHIP, tmp_path / "out")
    table = (tmp_path / "out/table.txt").read_text()
    assert capsys.readouterr().out == table
    for words in ("Stand-in 9000, compute capability 9.0, 1 multiprocessors, 1 GiB, 1 MiB of L2; driver 580.1",
                  "quantize + pack", "of the ceiling", "50 %", "not measured: "):
        assert words in table
    found = json.loads((tmp_path / "out/bench.json").read_text())
    assert found["machine"]["chip"]["name"] == "Stand-in 9000" and found["machine"]["versions"]["torch"]
    assert found["machine"]["commit"] == describe_machine(1)["commit"]
    assert len(found["failures"]) == 1 and {row["group"] for row in found["measurements"]} >= {"ceiling", "bits"}


def test_files_are_whole_after_every_row(tmp_path):
    result = DeviceResult("device", {**describe_machine(1), **CHIP.describe()}, [])
    for number in range(3):
        result.measurements.append(Measurement("spmm", str(number), 1.0, "GB/s", {OURS: [0.5], "cuSPARSE": [1.0]}))
        result.write(tmp_path)
        rows = json.loads((tmp_path / "bench.json").read_text())["measurements"]
        assert [row["peer_ratio"] for row in rows] == [{"cuSPARSE": 2.0}] * (number + 1)
        assert (tmp_path / "table.txt").read_text().count("2.0 GB/s") == number + 1


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "device", *arguments])
    return stop.value.code


def test_the_command_measures_what_its_options_say(monkeypatch, tmp_path, capsys):
    seen = []

    def measure(benchmark):
        seen.append(benchmark)
        yield Measurement("spmm", "a graph", 1.0, "GB/s", {OURS: [0.5], CEILING: [0.25]})

    properties = SimpleNamespace(name=CHIP.name, major=9, minor=0, multi_processor_count=1, total_memory=1 << 30,
                                 L2_cache_size=1 << 20)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(device_chip, "check_device", lambda: None)
    monkeypatch.setattr(device_timing, "EventTimer", lambda effort, l2_bytes: (effort, l2_bytes))
    monkeypatch.setattr(DeviceBenchmark, "measure", measure)
    assert not run("--graph", "a.npz", "--synthetic-edges", "2e6", "--widths", "8", "--precision", "fp16", "--rows",
                   "5", "--width", "16", "--sizes", "64", "--dims", "8,16", "--bits", "2", "--repeat", "7",
                   "--seconds", "1", "--out", str(tmp_path))
    (found,) = seen
    assert found.device == Device(CHIP, "cuda", (Effort(7, 1.0), 1 << 20))
    assert (found.graphs, found.synthetic_edges) == ((Path("a.npz"),), 2e6)
    assert (found.widths, found.precisions) == ((8,), ("fp16",))
    assert (found.num_rows, found.width, found.sizes, found.dims, found.bits) == (5, 16, (64,), (8, 16), (2,))
    printed = capsys.readouterr().out
    assert "2.0 GB/s" in printed and "50 %" in printed and printed == (tmp_path / "table.txt").read_text()


def test_without_a_gpu_the_command_says_so_in_one_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--out", str(tmp_path / "out")) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("hpcgnn: bench device needs a GPU with CUDA, and torch ")
    assert printed.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_cupy_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_chip.importlib.util, "find_spec", lambda name: None)
    assert run() == 1
    assert "run pip install 'hpcgnn[cuda13]'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, message", [
    (("--bits", "1,9"), "hpcgnn: --bits has 9; expected 1 to 8\n"),
    (("--widths", "0"), "hpcgnn: --widths is '0'; expected positive numbers with commas between them\n"),
    (("--precision", "fp8"), "hpcgnn: --precision has 'fp8'; expected a list of fp32, fp16, bf16\n")])
def test_wrong_usage_is_one_sentence(arguments, message, capsys):
    assert run(*arguments) == 2
    assert capsys.readouterr().err == message
