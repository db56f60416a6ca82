"""QuantizedStack: a stack of convolutions trained as integers, its stored size, and its export to an IntegerModel.

`QuantizedStack.fit` runs the float stack once and fits all steps. If widths are learned, `share_bits` then deals out
the target size: every in-degree of every layer starts at its smallest width, and the next bit always goes where it
saves most error per stored bit. Then training learns the widths, and `penalty` pulls their total to the target.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.integer_model import MAX_BIT_WIDTH, IntegerModel, Normalization
from hpcgnn.lowbit.training.convolutions import (
    SPARSE_SHARE,
    QuantizationScheme,
    QuantizedConvolution,
    QuantizedGAT,
    QuantizedGCN,
    QuantizedGIN,
    QuantizedSAGE,
    QuantizerMaker,
    array_of,
)
from hpcgnn.lowbit.training.quantizer import (
    BITS_A_KB,
    Nodes,
    Quantizer,
    RowQuantizer,
    count_in_degrees,
    draw_protected,
    protection_by_degree,
)
from hpcgnn.nn.attention import GATConvolution
from hpcgnn.nn.convolution import GCNConvolution, SAGEConvolution
from hpcgnn.nn.isomorphism import GINConvolution
from hpcgnn.nn.linear import layer_norm_of
from hpcgnn.nn.models import INTEGERS_REFUSE
from hpcgnn.nn.stack import ConvolutionStack
from hpcgnn.training.model_hooks import ModelHooks


@torch.no_grad()
def share_bits(quantizers: list[RowQuantizer], num_bits: float) -> None:
    """Set the widths of fitted quantizers so that all rows take at most `num_bits`, with the least error."""
    # The loss of a layer is the energy of the errors relative to the rows; one more bit divides that energy by four.
    widths = [np.full(len(quantizer.counts), quantizer.least_bits) for quantizer in quantizers]
    limits, losses = zip(*(_limits_and_losses(quantizer) for quantizer in quantizers), strict=True)
    costs = [quantizer.counts.cpu().numpy() * quantizer.dim for quantizer in quantizers]
    left = num_bits - sum(float(width @ cost) for width, cost in zip(widths, costs, strict=True))
    # Ties are broken by layer and in-degree, so all ranks find the same widths.
    # Greedy: the next bit goes where it saves most per stored bit, as long as it fits. Narrow layers and rare
    # in-degrees are cheap.
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


def _limits_and_losses(quantizer: RowQuantizer) -> tuple[np.ndarray, np.ndarray]:
    # Per in-degree, the largest useful width, and the loss at the smallest one. If the fitted codes need fewer bits
    # than they have, more bits gain nothing.
    fit, width = quantizer.fit, quantizer.whole_width().cpu().numpy()
    losses = fit.error * 4.0 ** (width - quantizer.least_bits) / max(fit.energy.sum(), np.finfo(np.float64).tiny)
    return np.where(width < quantizer.bits, width.astype(int), MAX_BIT_WIDTH), losses


KINDS: dict[type[nn.Module], Callable[..., QuantizedConvolution]] = {
    GCNConvolution: QuantizedGCN, SAGEConvolution: QuantizedSAGE, GINConvolution: QuantizedGIN,
    GATConvolution: QuantizedGAT,
}
DEFAULT_TARGET_BITS = 2
TARGET_TOLERANCE = 0.01
PRESSURE_RATE = 0.1                 # share of an epoch's excess that is added to the pressure on widths
FLOAT_BITS, WIDTH_BITS = 32, 4      # bits of a float, and of a number from 1 to 8 in a table


class StoredBits(NamedTuple):
    weights: int
    scales: int    # steps, widths, biases, norms and attention
    floats: int    # bits of the same numbers in float32


class QuantizedStack(nn.Module, ModelHooks):
    """Quantized convolution → norm → ReLU, once per convolution of the stack.

    stack : ConvolutionStack         of gcn, sage, gin or gat; its weights become this model's
    counts : (num_entries,) int64    see `count_in_degrees`
    comm : MPI communicator          for ranges and magnitudes, which all ranks agree on
    has_negative_input : bool        input rows have negative values on some rank
    has_sparse_input : bool          input rows are mostly zeros over all ranks, and mapped value by value
    """

    num_hops = None     # every row is computed, since sizes and ranges count all nodes

    def __init__(self, stack: ConvolutionStack, scheme: QuantizationScheme, counts: np.ndarray, comm,
                 has_negative_input: bool, has_sparse_input: bool = False):
        super().__init__()
        self.scheme, make = scheme, QuantizerMaker(scheme, counts, comm)
        # Rows between layers come from ReLU.
        self.convolutions = nn.ModuleList(
            KINDS[type(convolution)](convolution, make, is_signed=number == 0 and has_negative_input)
            for number, convolution in enumerate(stack.convolutions))
        self.convolutions[0].has_sparse_input = has_sparse_input
        self.norms = stack.norms
        self.num_nodes = int(counts.sum())
        self.pressure: torch.Tensor
        self.register_buffer("pressure", torch.zeros((), dtype=torch.float64))
        self.register_buffer("_protection", protection_by_degree(counts, *scheme.protection), persistent=False)

    @classmethod
    def from_settings(cls, model: ConvolutionStack, config: TrainConfig, graph: LocalGraph, comm) -> QuantizedStack:
        return cls.fit(model, QuantizationScheme.of(config), graph, comm)

    @classmethod
    def fit(cls, stack: ConvolutionStack, scheme: QuantizationScheme, graph: LocalGraph, comm) -> QuantizedStack:
        """Collective: quantize a stack with the steps that best fit its rows on this graph.

        Raises CollectiveError for non-finite input rows, a target below the least size, or a graph with edge weights.
        """
        # The pass is exact in float32, whatever the training method, and counts as an evaluation.
        if graph.edge_weight is not None:
            raise CollectiveError(INTEGERS_REFUSE)
        counts, x = count_in_degrees(graph, comm), graph.x
        counted = ~torch.isfinite(x).all(), (x < 0).any(), x.count_nonzero()
        seen = comm.allreduce(np.array([*map(int, counted), x.numel()], np.int64))
        if seen[0]:
            raise CollectiveError("input rows to quantize hold NaN or infinity; expected finite features")
        model = cls(stack, scheme, counts, comm, has_negative_input=bool(seen[1]),
                    has_sparse_input=bool(seen[2] <= SPARSE_SHARE * seen[3])).to(graph.x.device)
        model._check_target()
        model._fit(graph, comm)
        if scheme.learns_width:
            share_bits(model.row_quantizers, model.target_kb * BITS_A_KB)
            model._fit(graph, comm)
        return model

    def _check_target(self) -> None:
        if not self.scheme.learns_width:
            return
        num_bits = sum(quantizer.least_bits * quantizer.dim for quantizer in self.row_quantizers) * self.num_nodes
        if num_bits > self.target_kb * BITS_A_KB:
            raise CollectiveError(f"target_kb is {self.target_kb:g}, and rows of the smallest widths, 1 bit or 2 with "
                                  f"values below zero, take {num_bits / BITS_A_KB:g} KB; raise target_kb")

    @torch.no_grad()
    def _fit(self, graph: LocalGraph, comm) -> None:
        """Collective: fit all quantizers, first to last, each to the output of the quantizers before it."""
        quantizers = [module for module in self.modules() if isinstance(module, Quantizer)]
        for quantizer in quantizers:
            quantizer.fitting_comm = comm
        was_training = self.training
        graph.begin_forward(seed=0, epoch=0, is_training=False)
        self.eval()(graph, graph.x)
        self.train(was_training)
        for quantizer in quantizers:
            quantizer.fitting_comm = None

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, in_dim) input rows to (num_inner, out_dim) logits."""
        nodes, h = self._nodes(graph), x
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            h = graph.activate(convolution(graph, h, nodes), layer_norm_of(norm), 0.0, is_dropped=False)
        return self.convolutions[-1](graph, h, nodes)

    def _nodes(self, graph: LocalGraph) -> Nodes:
        in_degree = graph.inner_degree
        if self.scheme.name != "degree-quant" or not graph.current_pass.is_training:
            return Nodes(in_degree)
        return Nodes(in_degree, draw_protected(graph, self._protection[in_degree.clamp(max=len(self._protection) - 1)]))

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return list(self.convolutions[0].convolution.parameters())

    def scale_parameters(self) -> list[nn.Parameter]:
        widths = {id(width) for width in self.width_parameters()}
        return [parameter for module in self.modules() if isinstance(module, Quantizer)
                for parameter in module.parameters(recurse=False) if id(parameter) not in widths]

    def width_parameters(self) -> list[nn.Parameter]:
        return [quantizer.width for quantizer in self.row_quantizers if getattr(quantizer, "learns_width", False)]

    @property
    def row_quantizers(self) -> list[nn.Module]:
        return [quantizer for convolution in self.convolutions for quantizer in convolution.row_quantizers]

    @property
    def target_kb(self) -> float:
        return self.scheme.target_kb or DEFAULT_TARGET_BITS * self.num_features / BITS_A_KB

    @property
    def num_features(self) -> int:
        return self.num_nodes * sum(quantizer.dim for quantizer in self.row_quantizers)

    def feature_kb(self) -> torch.Tensor:
        """Stored size of all layers' rows of all nodes, () float64 in KB, differentiable in the widths."""
        return torch.stack([quantizer.num_bits() for quantizer in self.row_quantizers]).sum() / BITS_A_KB

    @torch.no_grad()
    def feature_size(self) -> dict[str, Any]:
        """Stored size of rows, signs included: `feature_kb`, and bits per value overall and by layer (two per gin)."""
        bits = [quantizer.num_bits().item() for quantizer in self.row_quantizers]
        return {"feature_kb": sum(bits) / BITS_A_KB, "mean_feature_bits": sum(bits) / max(1, self.num_features),
                "feature_bits": [one / max(1, self.num_nodes * quantizer.dim)
                                 for one, quantizer in zip(bits, self.row_quantizers, strict=True)]}

    def stored_bits(self) -> StoredBits:
        exported = self.export("").convolutions
        maps = [one for convolution in exported for one in convolution.maps]
        num_floats = sum(parameter.numel() for parameter in self.parameters()) - sum(
            parameter.numel() for parameter in [*self.scale_parameters(), *self.width_parameters()])
        num_codes = sum(one.codes.size for one in maps)
        rows = [scale for one in exported for scale in (one.rows, one.second_rows) if scale is not None]
        num_steps = sum(len(one.scale.step) for one in maps) + sum(len(one.mapped.step) for one in exported)
        num_entries = sum(len(scale.step) for scale in rows)
        scales = FLOAT_BITS * (num_floats - num_codes + num_steps + num_entries) + WIDTH_BITS * num_entries
        return StoredBits(sum(one.num_bits for one in maps), scales, FLOAT_BITS * (num_floats + self.num_features))

    def meets_target(self, feature_kb: float) -> bool:
        return not self.scheme.learns_width or feature_kb <= (1 + TARGET_TOLERANCE) * self.target_kb

    def penalty(self) -> torch.Tensor:
        """Return size_weight (max(p + e, 0)^2 - p^2), the same on every rank; 0 if no width is learned.

        e is the relative excess over the target, p the pressure that `move_pressure` raises.

        Reference: MEGA, Eq. (4)-(5). Deviations: the excess is relative to the target, so that size_weight is not tuned
        to one graph; as in the authors' program, a size below the target is not pulled up; and p is the multiplier of
        an augmented Lagrangian (Nocedal and Wright, Numerical Optimization, 2006, sec. 17.4).
        """
        # The pressure is 0 until the target is missed by more than its tolerance, then rises every step. So the target
        # is met even if wider rows would save much error, as in sums over thousands of neighbors.
        if not self.width_parameters():
            return torch.zeros(())
        penalty = torch.relu(self.pressure + self._excess()).square() - self.pressure.square()
        return (self.scheme.size_weight * penalty).float()

    def _excess(self) -> torch.Tensor:
        return self.feature_kb() / self.target_kb - 1.0

    @torch.no_grad()
    def move_pressure(self) -> None:
        """Move the pressure by a share of the excess: once per step, after the penalty is read, before widths move."""
        if self.width_parameters():
            # A new tensor: the penalty's backward pass reads the old one.
            self.pressure = (self.pressure + PRESSURE_RATE * (self._excess() - TARGET_TOLERANCE)).clamp(min=0.0)

    def clamp_widths(self) -> None:
        for quantizer in self.row_quantizers:
            if isinstance(quantizer, RowQuantizer):
                quantizer.clamp_width()

    def with_penalty(self, loss: torch.Tensor, num_ranks: int) -> torch.Tensor:
        # All ranks have the whole penalty; gradients and losses are sums over ranks.
        loss = loss + self.penalty() / num_ranks
        self.move_pressure()
        return loss

    def end_step(self) -> None:
        self.clamp_widths()

    def last_layer(self) -> nn.Module:
        return self.convolutions[-1]

    def summary(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Sizes of the integers, means over the seeds' best models.

        `feature_kb`, `mean_feature_bits` and `feature_bits` are as in `feature_size`; `weight_bits` counts weights,
        `scale_bits` steps, widths, biases, norms and attention; `stored_kb` is the sum of features, weights and these,
        `float_kb` the same in float32. `widths_by_degree` has, per row quantizer that learns widths, the in-degrees
        that occur, the number of nodes with each, and their bits.
        """
        columns = zip(*(result["feature_bits"] for result in results), strict=True)
        feature_kb = statistics.fmean(result["feature_kb"] for result in results)
        sizes = self.stored_bits()
        return {
            "quantize": self.scheme.name, "target_kb": self.target_kb, "feature_kb": feature_kb,
            "mean_feature_bits": statistics.fmean(result["mean_feature_bits"] for result in results),
            "feature_bits": [statistics.fmean(column) for column in columns],
            "meets_target": all(result["meets_target"] for result in results),
            "widths_by_degree": [_widths_of(quantizer) for quantizer in self.row_quantizers
                                 if isinstance(quantizer, RowQuantizer) and quantizer.learns_width],
            "weight_bits": sizes.weights, "scale_bits": sizes.scales,
            "stored_kb": feature_kb + (sizes.weights + sizes.scales) / BITS_A_KB, "float_kb": sizes.floats / BITS_A_KB,
        }

    def export(self, dataset: str, is_multi_label: bool = False) -> IntegerModel:
        """The model as integers; `dataset` and `is_multi_label` describe the graph."""
        convolutions = []
        for number, convolution in enumerate(self.convolutions):
            norm = layer_norm_of(self.norms[number]) if number < len(self.norms) else None
            convolutions.append(replace(convolution.export(), norm=None if norm is None else Normalization(
                array_of(norm.weight), array_of(norm.bias), norm.eps)))
        first, last = self.convolutions[0].convolution, self.convolutions[-1].convolution
        return IntegerModel(convolutions, dataset, self.num_nodes, first.in_dim, last.out_dim, is_multi_label,
                            self.scheme.name)


def calibrate(stack: ConvolutionStack, graph: LocalGraph, comm, bits: int = 8, row_bits: int = 8) -> QuantizedStack:
    """Collective: quantize a trained stack without training, with the steps of least squared error on this graph.

    All ranks get the same model; its rows have one step per in-degree. Weights are shared with `stack`, not copied.
    Mapped rows and weights have `bits` bits, rows `row_bits`, both 2 to 8. Raises CollectiveError for non-finite input
    rows, or a model that can't be quantized.
    """
    convolutions = getattr(stack, "convolutions", [stack])
    unfit = [type(one).__name__ for one in convolutions if type(one) not in KINDS
             or (isinstance(one, GINConvolution) and one.reduction != "sum")]
    if unfit:
        raise CollectiveError("only stacks of gcn, sage, gin (that sums) or gat convolutions become integers, found "
                              f"{unfit[0]}")
    return QuantizedStack.fit(stack, QuantizationScheme("calibrated", bits, row_bits), graph, comm)


def _widths_of(quantizer: RowQuantizer) -> dict[str, list[int]]:
    counts, width = quantizer.counts.long().cpu(), quantizer.scale().bit_width
    degree = counts.nonzero()[:, 0]
    return {"in_degree": degree.tolist(), "num_nodes": counts[degree].tolist(), "bit_width": width[degree].tolist()}
