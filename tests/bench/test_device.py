"""Benchmarks on a device: contestants compute the same, rates follow from seconds, and no GPU is one sentence.

Kernels run under emulation, and a stand-in for the device's events calls each contestant once.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda.emulation import COMPILER, EmulatedBackend

from hpcgnn import command_line
from hpcgnn.bench import device, inference, kernels
from hpcgnn.bench.device import Chip, DevicePlace
from hpcgnn.bench.float_networks import FloatBatches, random_stack
from hpcgnn.bench.graphs import arcs_that_fit, draw_power_law
from hpcgnn.bench.inference import InferenceBenchmark
from hpcgnn.bench.kernels import BITS, HALF_ARITHMETIC, OURS_FP32, WITH_VALUES, KernelBenchmark
from hpcgnn.bench.machine import describe_machine
from hpcgnn.bench.peers.spmm import CUSPARSE
from hpcgnn.bench.result import BenchmarkResult
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement
from hpcgnn.cli.bench import Shared, finish
from hpcgnn.errors import HpcgnnError, KernelError
from hpcgnn.lowbit.inference.batches import Batches
from hpcgnn.ops import dispatch
from hpcgnn.ops.aggregation import add_product, from_csr
from hpcgnn.ops.cuda.module import use_backend
from hpcgnn.ops.dispatch import device_kernels_on_cpu

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements import bits
from measurements.bits import ALL_TILES, GATHER, INT8, JUMPED, ONCE_A_PLANE, BitsBenchmark

CHIP = Chip("Stand-in 9000", (9, 0), 1, 1 << 30, 1 << 20)
SECONDS = {CEILING: 0.5, OURS: 1.0}     # of the stand-in; a peer's are 2
FP16 = "torch fp16"


class StandInPlace(DevicePlace):
    """Calls each contestant twice, as warm-up and measurement, and keeps what they return."""

    def interleave(self, contestants, is_hot=False):
        for work in contestants.values():
            work()
        self.results.append({name: work() for name, work in contestants.items()})
        return {name: [SECONDS.get(name, 2.0)] for name in contestants}

    @property
    def results(self):
        return self.__dict__.setdefault("kept", [])


@pytest.fixture
def place():
    """A DevicePlace whose kernels are emulated."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed: kernels can't be emulated")
    torch.manual_seed(0)
    with use_backend(EmulatedBackend(0)), device_kernels_on_cpu():
        yield StandInPlace(Effort(1), "cpu", 1 << 12, 9, num_rounds=1, chip=CHIP)


def tiny_kernels(place, **settings):
    """What `bench kernels` measures, small."""
    return KernelBenchmark(place, **{"graphs": ("drawn:400",), "widths": (8,), "precisions": ("fp32", "bf16"),
                                     "peers": ("torch",), "width": 16, **settings})


def tiny_bits(place, **settings):
    """What jobs/measurements/bits.py measures, small."""
    return BitsBenchmark(place, **{"graphs": ("drawn:400",), "num_clusters": 4, "sizes": (32,), "dims": (8,),
                                   "widths": (1, 3), **settings})


def counts_of(rows):
    groups = [row.group for row in rows]
    return {group: groups.count(group) for group in groups}


def test_every_part_is_measured(place, tmp_path, monkeypatch):
    monkeypatch.setattr(bits, "REUSE_WIDTHS", (2,))
    graph = draw_power_law(200, "cpu")
    np.savez(tmp_path / "small.npz", indptr=graph.indptr, indices=graph.indices)
    sources = (str(tmp_path / "small.npz"), "drawn:400")
    benchmarks = tiny_kernels(place, graphs=sources), tiny_bits(place, graphs=sources)
    of_kernels, of_bits = (list(benchmark.measure()) for benchmark in benchmarks)
    assert [benchmark.failures for benchmark in benchmarks] == [[], []]
    assert counts_of(of_kernels) == {
        "ceiling": 2, "quantize + pack": len(BITS), "unpack + dequantize": len(BITS), "rotate + pack": len(BITS),
        "unpack + rotate": len(BITS), "norm + ReLU + dropout": 4,
        "dropout": 2, "spmm": 4, "sddmm": 4}
    assert counts_of(of_bits) == {"ceiling": 2, "product": 2, "quantize + pack": 1, "batches": 6, "reuse": 1}
    assert all(row.ceiling_share == 0.5 for row in of_kernels if row.group != "ceiling")
    assert all(ratio == 2 for row in of_kernels + of_bits for ratio in row.peer_ratio.values())


def test_a_part_that_fails_is_noted_and_the_others_go_on(place, tmp_path):
    benchmark = tiny_kernels(place, graphs=(str(tmp_path / "missing.npz"), "drawn:400"))
    rows = list(benchmark.measure())
    (failure,) = benchmark.failures
    assert failure.startswith(f"{tmp_path / 'missing.npz'}: DatasetError: ")
    assert [row.case for row in rows if row.group == "spmm"] == ["power-law-0.0004M x8 fp32",
                                                                 "power-law-0.0004M x8 bf16"]


def test_ceilings_count_the_bytes_and_operations_that_are_moved_and_done(place):
    place = replace(place, num_rounds=2)
    (copy, gather), (mma8, mma16) = place.ceilings(), place.bit_ceilings()
    assert copy.rate == 2 * 4096 / 1e9 and gather.rate == 4096 / 1e9    # in one second of the stand-in
    num_tiles = 8 * 8 * 8 * 2    # blocks, warps, tiles and rounds
    assert mma8.rate == pytest.approx(num_tiles * 2 * 8 * 8 * 128 / 1e12)
    assert mma16.rate == pytest.approx(num_tiles * 2 * 16 * 8 * 256 / 1e12)
    # The larger peak is what products of bits are held against.
    assert place.multiplying_bits(1000) == pytest.approx(2 * 1000 / 1e12 / mma16.rate)


def test_a_copy_moves_half_of_the_bytes_each_way(place):
    assert place.moving(6, 2)().nbytes == place.moving(0, 8)().nbytes == 4


def test_a_chip_whose_tensor_cores_have_no_and_has_no_ceiling_of_bits(place):
    older = replace(place, chip=replace(CHIP, capability=(7, 5)))
    assert [row.case for row in older.ceilings()] == ["copy", "gather of rows of 256 bytes"]
    assert older.bit_ceilings() == []
    row, _ = bits.measure_products(older, 32, 8, (1,))
    assert row.ceiling_share is None


def test_a_message_counts_its_rows_and_its_bytes(place):
    rows = kernels.measure_messages(place, 16, ("torch",))
    assert [row.group for row in rows] == ["quantize + pack"] * 4 + ["unpack + dequantize"] * 4
    for width, row in zip(BITS * 2, rows, strict=True):
        assert row.rate == pytest.approx((9 * 16 * 4 + 9 * (4 + 2 * width)) / 1e9)
        assert set(row.seconds) == {CEILING, OURS, "torch"}


def test_a_rotated_message_has_one_parameter_a_row_and_no_peer(place):
    rows = kernels.measure_messages(place, 16, ("torch",), "rotated")
    assert [row.group for row in rows] == ["rotate + pack"] * 4 + ["unpack + rotate"] * 4
    for width, row in zip(BITS * 2, rows, strict=True):
        assert row.rate == pytest.approx((9 * 16 * 4 + 9 * (2 + 2 * width)) / 1e9)
        assert set(row.seconds) == {CEILING, OURS}


@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-5), ("bf16", 2**-6), ("fp16", 2**-9)])
def test_contestants_of_a_product_agree(place, precision, tolerance, monkeypatch):
    monkeypatch.setattr("hpcgnn.bench.peers.spmm.HOST", None)     # the stand-in is named as the host is
    graph = draw_power_law(400, "cpu")
    mean, sampled = kernels.measure_products(place, graph, (8,), (precision,), ("torch",))
    halves = {OURS_FP32} if precision != "fp32" else set()
    can_sparse = not any(CUSPARSE in remark for remark in mean.remarks)
    assert set(mean.seconds) - {CUSPARSE} == ({CEILING, OURS, WITH_VALUES} | halves
                                              | ({HALF_ARITHMETIC} if halves else set()))
    assert can_sparse == (CUSPARSE in mean.seconds)
    assert mean.rate == sampled.rate == 400 * 8 * {"fp32": 4}.get(precision, 2) / 1e9
    means, sampled_values = place.results
    for name in set(means) - {CEILING, OURS}:
        assert torch.allclose(means[name].float(), means[OURS].float(), atol=4 * tolerance), name
    if CUSPARSE in sampled_values:
        assert torch.allclose(sampled_values[CUSPARSE].values(), sampled_values[OURS][:, 0], atol=1e-4)
    for name in set(sampled_values) & {OURS_FP32}:
        # Stored in the rows' type, of sums in two orders.
        assert torch.allclose(sampled_values[name].float(), sampled_values[OURS].float(), rtol=1e-4 + tolerance / 2,
                              atol=1e-4)


def test_rows_that_are_no_whole_vectors_have_no_ceiling(place):
    mean, _ = kernels.measure_products(place, draw_power_law(100, "cpu"), (3,), ("fp32",), ())
    assert CEILING not in mean.seconds and OURS in mean.seconds


def test_contestants_of_a_product_of_bits_agree(place, monkeypatch):
    monkeypatch.setattr(StandInPlace, "bit_ceilings",
                        lambda self: [Measurement("ceiling", "1-bit", 2.0, "TOP/s", {OURS: [1.0]})])
    *rows, packing = bits.measure_products(place, 32, 8, (1, 4))
    for row, results in zip(rows, place.results, strict=False):
        assert np.array_equal(results[OURS].numpy(), results[INT8].numpy())
        assert np.array_equal(results[OURS].numpy(), results[FP16].float().numpy())
        assert row.rate == pytest.approx(2 * 32 * 32 * 8 / 1e12)
    # A plane at 2 TOP/s: four planes take four times as long.
    assert [row.median(CEILING) for row in rows] == pytest.approx([rows[0].amount / 2, rows[0].amount * 2])
    assert packing.amount == 32 * 8 * 4 / 1e9


def test_published_figures_stand_beside_their_shape_and_are_no_contestants():
    row = Measurement("product", "", 1.0, "TOP/s", {OURS: [1.0]})
    bits.add_published(row, 4096, 64, 3)
    assert row.details["published_tflops"] == {"QGTC": 35.17, "CUTLASS int4": 24.66, "chip": "RTX 3090"}
    assert row.remarks == ["published, RTX 3090, 4096 x 4096 x 64: QGTC 89.18, 51.21, 35.17, 25.38 TOP/s at 1 to 4 "
                           "bits, CUTLASS int4 24.66"]
    assert row.peers == [] and row.as_record()["published_tflops"]["QGTC"] == 35.17
    for shape in ((4096, 65, 3), (4096, 64, 8)):
        unknown = Measurement("product", "", 1.0, "TOP/s", {OURS: [1.0]})
        bits.add_published(unknown, *shape)
        assert unknown.remarks == [] and unknown.details == {}


def test_ways_through_tiles_agree(place, monkeypatch):
    monkeypatch.setattr(bits, "REUSE_WIDTHS", (2, 4))
    (batch,) = bits.measure_batches(place, "drawn", [bits.drawn_batch(256)], (8,), (3,))
    list(bits.measure_reuse(place, 16, 8))
    assert set(batch.seconds) == {CEILING, OURS, ONCE_A_PLANE, JUMPED, ALL_TILES, GATHER}
    assert batch.remarks == ["drawn: 50.0 % of 64 tiles are zero and jumped"]
    for results in place.results[1:]:       # behind the ceilings
        sums = {name: found[0].numpy() for name, found in results.items() if name != GATHER}
        if OURS in sums and len(sums) > 1:
            assert all(np.array_equal(found, sums[OURS]) for found in sums.values())
            assert sums[OURS].any()


def test_arcs_of_a_drawn_batch_stay_inside_their_clusters():
    batch = bits.drawn_batch(512)
    target = np.repeat(np.arange(512), np.diff(batch.indptr))
    assert (target // 32 == batch.indices // 32).all()
    assert abs(batch.nnz / (512 * 32) - bits.BATCH_DENSITY) < 0.02


def test_backward_and_forward_have_gradients_of_all_sides(place):
    list(kernels.measure_pointwise(place, 16, "fp32", ("torch",)))
    forward, backward, alone = place.results
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
    monkeypatch.setattr(device.torch, "empty",
                        lambda size, **kinds: made.append(FlushedMemory(size)) or made[-1])
    monkeypatch.setattr(device.torch.cuda, "Event", FakeEvent)
    calls = []

    def work():
        calls.append(made[0].num_written if made else 0)
        FakeEvent.now += 2

    chip = replace(CHIP, l2_bytes=400 << 20)
    seconds = DevicePlace(Effort(5, 10.0), chip=chip).interleave({"a": work, "b": work}, is_hot)
    assert made[0].num_bytes == 1600 << 20
    assert seconds == {"a": [pytest.approx(0.002)] * 5, "b": [pytest.approx(0.002)] * 5}
    assert len(calls) == 2 + 2 * 5 * (2 if is_hot else 1)
    # The first calls come before the writes. Two of these find out that three take the two milliseconds that the device
    # is to be busy.
    assert sorted(set(calls)) == [0, *(2 + 3 * number for number in range(1, 11))]
    # Three repetitions at least, then no more than the seconds allow.
    assert len(DevicePlace(Effort(5, 0.004), chip=chip).interleave({"a": work})["a"]) == 3


def test_the_table_and_the_json_name_the_chip_and_the_failures(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device, "driver_version", lambda: "580.1")
    benchmark = tiny_kernels(place, graphs=(str(tmp_path / "none.npz"),), precisions=("fp32",))
    with pytest.raises(HpcgnnError, match=r"bench kernels could not measure .*none\.npz: DatasetError"):
        finish("kernels", {**describe_machine(1), **place.describe()}, benchmark, Shared(out=tmp_path),
               benchmark.failures)
    table = (tmp_path / "table.txt").read_text()
    assert capsys.readouterr().out.startswith(table)
    for words in ("Stand-in 9000, compute capability 9.0, 1 multiprocessors, 1 GiB, 1 MiB of L2; driver 580.1",
                  "quantize + pack", "of the ceiling", "50 %", "not measured: "):
        assert words in table
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["machine"]["chip"]["name"] == "Stand-in 9000" and found["machine"]["versions"]["torch"]
    assert found["machine"]["commit"] == describe_machine(1)["commit"]
    assert len(found["failures"]) == 1 and {row["group"] for row in found["measurements"]} >= {"ceiling", "dropout"}


def test_files_are_whole_after_every_row(tmp_path):
    result = BenchmarkResult("kernels", {**describe_machine(1), **CHIP.describe()})
    for number in range(3):
        result.measurements.append(Measurement("spmm", str(number), 1.0, "GB/s", {OURS: [0.5], "cuSPARSE": [1.0]}))
        result.write(tmp_path)
        rows = json.loads((tmp_path / "bench.json").read_text())["measurements"]
        assert [row["peer_ratio"] for row in rows] == [{"cuSPARSE": 2.0}] * (number + 1)
        assert (tmp_path / "table.txt").read_text().count("2.00 GB/s") == number + 1


def run(kind, *arguments):
    if kind == "bits":
        return command_line.run([*arguments], bits.command)
    return command_line.run(["bench", kind, *arguments])


@pytest.fixture
def found_device(monkeypatch):
    """A device that torch and cupy are said to have."""
    properties = SimpleNamespace(name=CHIP.name, major=9, minor=0, multi_processor_count=1, total_memory=1 << 30,
                                 L2_cache_size=1 << 20)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(device, "check_device", lambda: None)
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *wanted: None)    # this process is small enough


@pytest.mark.parametrize("kind, module, name, arguments", [
    ("kernels", kernels, "KernelBenchmark", ("a.npz", "drawn:2e6", "--widths", "8", "--precision", "fp16", "--peer",
                                             "torch")),
    ("bits", bits, "BitsBenchmark", ("a.npz", "drawn:2e6", "--clusters", "5")),
    ("inference", inference, "InferenceBenchmark", ("a.npz", "m.h5", "--bits", "2", "--model", "gin", "--clusters", "5",
                                                    "--peer", "torch"))])
def test_a_command_measures_on_the_device_what_its_options_say(found_device, monkeypatch, tmp_path, capsys, kind,
                                                               module, name, arguments):
    seen = []

    def measure(benchmark):
        seen.append(benchmark)
        yield Measurement("spmm", "a graph", 1.0, "GB/s", {OURS: [0.5], CEILING: [0.25]})

    monkeypatch.setattr(getattr(module, name), "measure", measure)
    assert not run(kind, "--device", "cuda", "--repeat", "7", "--out", str(tmp_path), *arguments)
    (found,) = seen
    assert found.place == DevicePlace(Effort(7, 0.2), chip=CHIP) and found.place.name == "cuda"
    expected = {"kernels": KernelBenchmark(found.place, ("a.npz", "drawn:2e6"), (8,), ("fp16",), ("torch",)),
                "bits": BitsBenchmark(found.place, ("a.npz", "drawn:2e6"), 5),
                "inference": InferenceBenchmark(found.place, (Path("a.npz"),), (Path("m.h5"),), ("gin",), (2,), 5,
                                                ("torch",))}
    assert found == expected[kind]
    printed = capsys.readouterr().out
    assert "2.00 GB/s" in printed and "50 %" in printed and "Stand-in 9000, compute capability 9.0" in printed
    assert printed.startswith((tmp_path / "table.txt").read_text())
    assert json.loads((tmp_path / "bench.json").read_text())["machine"]["chip"]["l2_bytes"] == 1 << 20


@pytest.mark.parametrize("kind", [("kernels",), ("bits",), ("inference", "a.npz")])
def test_without_a_gpu_the_command_says_so_in_one_sentence(monkeypatch, capsys, tmp_path, kind):
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *wanted: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(*kind, "--device", "cuda", "--out", str(tmp_path / "out")) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("hpcgnn: --device cuda needs a GPU with CUDA, and torch ")
    assert printed.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_cupy_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *wanted: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert run("kernels", "--device", "cuda") == 1
    assert "run pip install 'hpcgnn[cuda13]'" in capsys.readouterr().err


# Benchmarks keep on the device all that meets there. Torch's device "meta" stands for it: its tensors have a type, a
# shape and a place, and no values. So nothing is computed here, but every launch is checked by `Kernel`, and
# elementwise operations of peers by torch.

META = "meta"
ADDMM = torch.addmm


class Recorder:
    """A backend that starts nothing."""

    device_type = META

    def __init__(self):
        self.names = set()

    def launch(self, launch):
        self.names.add(launch.name)


class MetaPlace(DevicePlace):
    """Runs every contestant once."""

    def interleave(self, contestants, is_hot=False):
        for work in contestants.values():
            work()
        return {name: [1.0] for name in contestants}


def refuse(*arguments, **settings):
    raise RuntimeError("sparse tensors have no values here")


@pytest.fixture
def meta_place():
    return MetaPlace(Effort(1), META, 1 << 12, 9, num_rounds=1, chip=CHIP)


@pytest.fixture
def backend(monkeypatch):
    """The recorder, with what has no answer without values set aside: counts, ranges, errors and cuSPARSE."""
    before = dispatch._device_types
    dispatch._switch(before | {META})
    monkeypatch.setattr(torch.Tensor, "__int__", lambda tensor: 0)
    monkeypatch.setattr("measurements.bits.to_bit", lambda values, *arguments: values)
    monkeypatch.setattr("hpcgnn.bench.peers.spmm.weights_of", lambda *arguments: None)
    monkeypatch.setattr(torch, "addmm", refuse)
    monkeypatch.setattr(torch.sparse, "sampled_addmm", refuse)
    with use_backend(Recorder()) as recorder:
        yield recorder
    dispatch._switch(before)


def test_a_tensor_that_stayed_on_the_host_is_found(backend, meta_place):
    with pytest.raises(RuntimeError, match="device cpu is not on the expected device"):
        meta_place.random_rows(3, 4) + torch.ones(4)
    with pytest.raises(KernelError, match="found a tensor on cpu, while kernels run on meta"):
        add_product(from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1), meta_place.random_rows(1, 4), None,
                    torch.ones(1, 4))


@pytest.mark.parametrize("kind", ["gcn", "gin", "sage"])
def test_a_float_network_keeps_its_rows_and_weights_on_the_device(backend, monkeypatch, kind):
    monkeypatch.setattr(torch, "addmm", ADDMM)      # of dense rows
    whole = Batches(np.arange(3), np.array([0, 3]), np.array([0, 1, 2, 3]), np.array([1, 2, 0], np.int32))
    for storage in (torch.float32, torch.float16, torch.bfloat16):
        side = FloatBatches(random_stack(kind, [5, 8, 4], 8), whole, np.zeros((3, 5), np.float32), storage, META)
        found = side.compute()
        assert (found.shape, found.dtype, found.device.type) == ((3, 4), storage, META)


def test_everything_that_meets_lies_on_the_device(backend, meta_place, tmp_path):
    graph = draw_power_law(200, "cpu")
    np.savez(tmp_path / "small.npz", indptr=graph.indptr, indices=graph.indices)
    sources = (str(tmp_path / "small.npz"),)
    benchmarks = (KernelBenchmark(meta_place, sources, (8, 41), ("fp32", "fp16", "bf16"), ("torch",), 16),
                  BitsBenchmark(meta_place, sources, 2, (32, 256), (8, 33), (1, 4)))
    groups = [{row.group for row in benchmark.measure()} for benchmark in benchmarks]
    assert [benchmark.failures for benchmark in benchmarks] == [[], []]
    assert groups == [{"ceiling", "quantize + pack", "unpack + dequantize", "rotate + pack", "unpack + rotate",
                       "norm + ReLU + dropout", "dropout", "spmm", "sddmm"},
                      {"ceiling", "product", "quantize + pack", "batches", "reuse"}]
    assert backend.names >= {"gather_rows", "multiply_bits_mma16", "quantize_f32", "dequantize_f32",
                             "quantize_rotated_f32", "dequantize_rotated_f32", "mask_rows_f16",
                             "normalize_backward_bf16", "multiply_mma16", "aggregate_f32", "aggregate_half_f16"}
