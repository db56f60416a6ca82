"""Benchmarks keep on the device all that meets there. Torch's device "meta" stands for it: its tensors have a type, a
shape and a place, and no values.

So nothing is computed here, but every launch is checked by `Kernel`, and elementwise operations of peers by torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcgnn.bench.device import Chip, DevicePlace
from hpcgnn.bench.float_networks import FloatBatches, random_stack
from hpcgnn.bench.graphs import draw_power_law
from hpcgnn.bench.kernels import KernelBenchmark
from hpcgnn.bench.timing import Effort
from hpcgnn.errors import KernelError
from hpcgnn.lowbit.inference.batches import Batches
from hpcgnn.ops import dispatch
from hpcgnn.ops.aggregation import add_product, from_csr
from hpcgnn.ops.cuda.module import use_backend

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements.bits import BitsBenchmark

CHIP = Chip("Stand-in 9000", (9, 0), 1, 1 << 30, 1 << 20)
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
def place():
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


def test_a_tensor_that_stayed_on_the_host_is_found(backend, place):
    with pytest.raises(RuntimeError, match="device cpu is not on the expected device"):
        place.random_rows(3, 4) + torch.ones(4)
    with pytest.raises(KernelError, match="found a tensor on cpu, while kernels run on meta"):
        add_product(from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1), place.random_rows(1, 4), None,
                    torch.ones(1, 4))


@pytest.mark.parametrize("kind", ["gcn", "gin", "sage"])
def test_a_float_network_keeps_its_rows_and_weights_on_the_device(backend, place, monkeypatch, kind):
    monkeypatch.setattr(torch, "addmm", ADDMM)      # of dense rows
    whole = Batches(np.arange(3), np.array([0, 3]), np.array([0, 1, 2, 3]), np.array([1, 2, 0], np.int32))
    for storage in (torch.float32, torch.float16, torch.bfloat16):
        side = FloatBatches(random_stack(kind, [5, 8, 4], 8), whole, np.zeros((3, 5), np.float32), storage, place.name)
        found = side.compute()
        assert (found.shape, found.dtype, found.device.type) == ((3, 4), storage, META)


def test_everything_that_meets_lies_on_the_device(backend, place, tmp_path):
    graph = draw_power_law(200, "cpu")
    np.savez(tmp_path / "small.npz", indptr=graph.indptr, indices=graph.indices)
    sources = (str(tmp_path / "small.npz"),)
    benchmarks = (KernelBenchmark(place, sources, (8, 41), ("fp32", "fp16", "bf16"), ("torch",), 16),
                  BitsBenchmark(place, sources, 2, (32, 256), (8, 33), (1, 4)))
    groups = [{row.group for row in benchmark.measure()} for benchmark in benchmarks]
    assert [benchmark.failures for benchmark in benchmarks] == [[], []]
    assert groups == [{"ceiling", "quantize + pack", "unpack + dequantize", "rotate + pack", "unpack + rotate",
                       "norm + ReLU + dropout", "dropout", "spmm", "sddmm"},
                      {"ceiling", "product", "quantize + pack", "batches", "reuse"}]
    assert backend.names >= {"gather_rows", "multiply_bits_mma16", "quantize_f32", "dequantize_f32",
                             "quantize_rotated_f32", "dequantize_rotated_f32", "mask_rows_f16",
                             "normalize_backward_bf16", "multiply_mma16", "aggregate_f32", "aggregate_half_f16"}
