"""`hpcgnn bench device` keeps on the device all that meets there. Torch's device "meta" stands for it: its tensors have
a type, a shape and a place, and no values.

So nothing is computed here, but every launch is checked by `Kernel`, and elementwise operations of peers by torch.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.bench import device_products
from hpcgnn.bench.device import DeviceBenchmark
from hpcgnn.bench.device_chip import Chip
from hpcgnn.bench.device_graphs import draw_power_law
from hpcgnn.bench.device_timing import Device
from hpcgnn.errors import KernelError
from hpcgnn.ops import dispatch
from hpcgnn.ops.aggregation import add_product, from_csr
from hpcgnn.ops.cuda.module import use_backend

CHIP = Chip("Stand-in 9000", (9, 0), 1, 1 << 30, 1 << 20)
PLACE = "meta"


class Recorder:
    """A backend that starts nothing."""

    device_type = PLACE

    def __init__(self):
        self.names = set()

    def launch(self, launch):
        self.names.add(launch.name)


def timer(contestants, is_hot=False):
    """Every contestant runs once."""
    for work in contestants.values():
        work()
    return {name: [1.0] for name in contestants}


def refuse(*arguments, **settings):
    raise RuntimeError("sparse tensors have no values here")


@pytest.fixture
def backend(monkeypatch):
    """The recorder, with what has no answer without values set aside: counts, and cuSPARSE."""
    monkeypatch.setitem(dispatch._rooms, PLACE, "cuda")
    monkeypatch.setattr(torch.Tensor, "__int__", lambda tensor: 0)
    monkeypatch.setattr(device_products, "csr_of", lambda *arguments: None)
    monkeypatch.setattr(torch, "addmm", refuse)
    monkeypatch.setattr(torch.sparse, "sampled_addmm", refuse)
    with use_backend(Recorder()) as recorder:
        yield recorder


def test_a_tensor_that_stayed_on_the_host_is_found(backend):
    device = Device(CHIP, PLACE, timer)
    with pytest.raises(RuntimeError, match="device cpu is not on the expected device"):
        device.random_rows(3, 4) + torch.ones(4)
    with pytest.raises(KernelError, match="found a tensor on cpu, while kernels run on meta"):
        add_product(from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1), device.random_rows(1, 4), None,
                    torch.ones(1, 4))


def test_everything_that_meets_lies_on_the_device(backend, tmp_path):
    graph = draw_power_law(200, "cpu")
    np.savez(tmp_path / "small.npz", indptr=graph.indptr, indices=graph.indices)
    benchmark = DeviceBenchmark(Device(CHIP, PLACE, timer), (tmp_path / "small.npz",), 0, (8, 41),
                                ("fp32", "fp16", "bf16"), 9, 16, (32, 256), (8, 33), (1, 4), 1 << 12, 1)
    rows = list(benchmark.measure())
    assert benchmark.failures == []
    assert {row.group for row in rows} == {
        "ceiling", "quantize + pack", "unpack + dequantize", "norm + ReLU + dropout", "dropout", "bits", "batch",
        "reuse", "spmm", "sddmm"}
    assert backend.names >= {"gather_rows", "multiply_bits_mma16", "quantize_f32", "dequantize_f32", "mask_rows_f16",
                             "normalize_backward_bf16", "multiply_mma16", "aggregate_f32", "aggregate_half_f16"}
