"""This module chooses the widths to start from: it shares bits among layers and in-degrees by errors of a first fit.

Widths are learned from there on, which is not known here.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch

from hpcgnn.nn.quantized.quantizer import RowQuantizer
from hpcgnn.quantized.integer_model import MAX_BIT_WIDTH


@torch.no_grad()
def share_bits(quantizers: list[RowQuantizer], num_bits: float) -> None:
    """Set the widths of fitted quantizers, so that all rows together take at most `num_bits` and lose least.

    What a layer loses is the energy of its errors relative to that of its rows; a bit more makes an error four times
    smaller. All in-degrees start at the least width, and bit by bit goes where it saves most for what it costs, as long
    as it fits: a layer that is narrow, or an in-degree with few nodes, is cheap. A width whose fitted codes needed
    fewer bits stays there.
    """
    widths = [np.full(len(quantizer.counts), quantizer.least_bits) for quantizer in quantizers]
    limits = [_limits(quantizer) for quantizer in quantizers]
    losses = [_losses(quantizer) for quantizer in quantizers]
    costs = [quantizer.counts.cpu().numpy() * quantizer.dim for quantizer in quantizers]
    left = num_bits - sum(float(width @ cost) for width, cost in zip(widths, costs, strict=True))
    # In order of saving for cost, then of layer and in-degree: the same on all ranks.
    queue = [(-losses[layer][entry] / costs[layer][entry], layer, entry)
             for layer, cost in enumerate(costs) for entry in np.flatnonzero(cost)]
    heapq.heapify(queue)
    while queue:
        saving, layer, entry = heapq.heappop(queue)
        cost = costs[layer][entry]
        if cost <= left and widths[layer][entry] < limits[layer][entry]:
            widths[layer][entry] += 1
            left -= cost
            heapq.heappush(queue, (saving / 4, layer, entry))
    for quantizer, width in zip(quantizers, widths, strict=True):
        quantizer.width.copy_(torch.from_numpy(width))


def _limits(quantizer: RowQuantizer) -> np.ndarray:
    """Return (num_entries,) int: the largest useful width."""
    width = quantizer.whole_width().cpu().numpy().astype(int)
    return np.where(width < quantizer.bits, width, MAX_BIT_WIDTH)


def _losses(quantizer: RowQuantizer) -> np.ndarray:
    """Return (num_entries,) float64: squared errors at the least width, relative to the sum of squares of the layer."""
    fit = quantizer.fit
    steps_back = quantizer.whole_width().cpu().numpy() - quantizer.least_bits
    return fit.error * 4.0 ** steps_back / max(fit.energy.sum(), np.finfo(np.float64).tiny)
