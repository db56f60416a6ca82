"""Degree-Quant's quantizers: ranges follow running percentiles, and random nodes are protected while training.

A protected node's rows are not quantized in that pass. High in-degrees are protected more often, since sums over many
neighbors make the largest errors.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.integer_model import ColumnScale, IntegerMap, RowScale
from hpcgnn.lowbit.training.quantizer import MOMENTUM, Nodes, Quantizer, SharedComm, codes_of, fake_quantize
from hpcgnn.ops.counter import PROTECT, CounterKey
from hpcgnn.ops.pointwise import dropout

PERCENTILE = 0.999      # share of the non-zero magnitudes below the range's end
NUM_BINS = 1 << 15      # magnitudes are counted by 15 bits: bfloat16 without the sign
DRAW_BITS = 16


class TrackedRange(Quantizer):
    """Clips at a running mean, over all ranks, of a percentile of the magnitudes."""

    def __init__(self, comm, bits: int, is_signed: bool):
        super().__init__()
        self._shared, self.bits, self.is_signed = SharedComm(comm), bits, is_signed
        self.register_buffer("largest", torch.ones(1))

    @property
    def step(self) -> torch.Tensor:
        return self.largest / (2 ** (self.bits - self.is_signed) - 1)

    def forward(self, rows: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        """Collective: return (n, dim) float32, quantized except protected rows; training moves the range."""
        if self.fitting_comm is not None or self.training:
            self._follow(rows.detach(), 1.0 if self.fitting_comm is not None else MOMENTUM)
        # A copy, since the range moves before the backward pass of a layer that runs twice.
        step, width = self.step.clone()[:, None], torch.full((1, 1), float(self.bits), device=rows.device)
        quantized = fake_quantize(rows, step, width, self.is_signed)
        if nodes.is_protected is None:
            return quantized
        return torch.where(nodes.is_protected[:, None], rows, quantized)

    def _follow(self, rows: torch.Tensor, momentum: float) -> None:
        """Collective: move the range to the percentile of counted magnitudes, the same for any number of ranks."""
        bins = rows.contiguous().view(torch.int32).reshape(-1).bitwise_and(0x7FFFFFFF).bitwise_right_shift(16)
        counts = self._shared.comm.allreduce(torch.bincount(bins, minlength=NUM_BINS).cpu().numpy())
        counts[0] = 0
        if not counts.sum():
            return
        place = np.searchsorted(np.cumsum(counts), PERCENTILE * counts.sum())
        newest = np.array([(place << 16) | 0xFFFF], np.int32).view(np.float32)     # the upper end of the bin
        self.largest.lerp_(torch.from_numpy(newest).to(self.largest.device), momentum)


class TrackedRowQuantizer(TrackedRange):
    def __init__(self, comm, dim: int, num_nodes: int, bits: int, is_signed: bool):
        super().__init__(comm, bits, is_signed)
        self.dim, self.num_nodes = dim, num_nodes

    def num_bits(self) -> torch.Tensor:
        return torch.tensor(float(self.num_nodes * self.dim * self.bits), dtype=torch.float64)

    def scale(self) -> RowScale:
        return RowScale(self.step.cpu().numpy(), np.array([self.bits], np.uint8), self.is_signed)


class TrackedColumnQuantizer(TrackedRange):
    def __init__(self, comm, dim: int, bits: int):
        super().__init__(comm, bits, is_signed=True)
        self.dim = dim

    def scale(self) -> ColumnScale:
        return ColumnScale(self.step.expand(self.dim).cpu().numpy().copy(), self.bits)


class LargestWeightQuantizer(Quantizer):
    def __init__(self, bits: int):
        super().__init__()
        self.bits = bits

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        width = torch.full((1, 1), float(self.bits), device=weight.device)
        return fake_quantize(weight, self._step(weight), width, is_signed=True)

    @torch.no_grad()
    def integers(self, weight: torch.Tensor) -> IntegerMap:
        weight = weight.cpu()
        step = self._step(weight)
        codes = codes_of(weight, step, torch.tensor(2.0 ** (self.bits - 1) - 1))
        return IntegerMap(codes.numpy().astype(np.int8), ColumnScale(step[:, 0].numpy(), self.bits))

    def _step(self, weight: torch.Tensor) -> torch.Tensor:
        peak = (weight.detach().abs().amax(dim=1, keepdim=True) if weight.shape[1]
                else torch.ones(len(weight), 1, device=weight.device))
        return torch.where(peak > 0, peak, torch.ones((), device=weight.device)) / (2 ** (self.bits - 1) - 1)


def protection_by_degree(counts: np.ndarray, low: float, high: float) -> torch.Tensor:
    """Probability of protection by in-degree, (num_entries,) float32.

    It is low + (high - low) * share of nodes with this in-degree or a lower one.

    Reference: Tailor et al., ICLR 2021, Section 3.2.
    """
    return torch.from_numpy(low + (high - low) * np.cumsum(counts) / max(1, counts.sum())).float()


def draw_protected(graph: LocalGraph, probability: torch.Tensor) -> torch.Tensor:
    """Draw the inner nodes protected in this pass, (num_inner,) bool, each with its own probability."""
    current = graph.current_pass
    key = CounterKey(current.seed, current.epoch, PROTECT, 0)
    device, num_inner = graph.x.device, graph.num_inner
    # Draws are keyed by global id without the layer: all layers, and any number of ranks, protect the same nodes.
    coins = dropout(torch.ones(num_inner, DRAW_BITS, device=device), 0.5, graph.ids(0, num_inner), key) > 0
    return coins.float() @ 0.5 ** torch.arange(1.0, DRAW_BITS + 1, device=device) < probability
