"""Quantizers with learned steps: for rows by in-degree, for mapped rows by column, for weights by output.

`fake_quantize` rounds values to multiples of a step, with gradients for values, steps and widths. Each quantizer is
first fitted to the values of one pass: `search_steps` tries a grid of steps for each group of values and takes the one
of least squared error, summed over all ranks. Training then moves the step as a factor on the fitted one.

Degree-Quant's quantizers follow running percentiles instead (`TrackedRange`), and random nodes are protected while
training: their rows are not quantized in that pass. High in-degrees are protected more often, since sums over many
neighbors make the largest errors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import CollectiveError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.integer_model import MAX_BIT_WIDTH, ColumnScale, IntegerMap, RowScale
from hpcgnn.ops.counter import PROTECT, CounterKey
from hpcgnn.ops.dense import column_magnitudes
from hpcgnn.ops.fake_quantization import quantize_values, quantize_values_backward
from hpcgnn.ops.pointwise import dropout

CLIPPED = (1.1, 1.25, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0)     # tried peaks, as multiples of the largest code
TOLERANCE = 1e-3                 # among errors within this relative distance the largest step wins, to use fewer codes
NEGLIGIBLE = 1e-10               # share of the sum of squares
VALUES_AT_ONCE = 1 << 20

MAX_DEGREES = 1024      # entries of a table; larger in-degrees are few and share the last entry
BITS_A_KB = 8 * 1024    # the paper's eta
# Factor on fitted steps of mapped rows: values there are multiples of a unit, and many would lie between two codes.
OFF_EDGES = 1 + 2 ** -10
SMALLEST_MEAN = 1e-8    # mean magnitude of an output with zero weights
MOMENTUM = 0.1          # weight of the newest value in a running mean

PERCENTILE = 0.999      # share of the non-zero magnitudes below the range's end
NUM_BINS = 1 << 15      # magnitudes are counted by 15 bits: bfloat16 without the sign
DRAW_BITS = 16


class Nodes(NamedTuple):
    """Nodes of the rows to quantize: (n,) int64 in-degrees, and (n,) bool, rows that stay unquantized, or None."""

    in_degree: torch.Tensor
    is_protected: torch.Tensor | None = None


class Quantizer(nn.Module):
    """Base of quantizers; while `fitting_comm` is set, the next values are fitted first, which is collective."""

    def __init__(self):
        super().__init__()
        self.fitting_comm = None


class RowQuantizer(Quantizer):
    """Rows of a layer as codes, with step and width chosen by a node's in-degree.

    counts : (num_entries,) int64        nodes of the whole graph by in-degree; the last entry has all larger ones, too
    bits : int                           width for which steps are fitted
    is_signed : bool                     rows have negative values
    learns_width : bool                  widths are parameters
    shrinks : bool                       widths start at the fewest bits that hold the fitted codes
    is_local : bool                      steps and widths follow the rows' own error, see `fake_quantize`
    """
    # Besides the width, training learns the largest unclipped magnitude, as a factor on the fitted one. If a width
    # changes, the step changes too, so fewer bits make codes coarser and do not clip values.

    def __init__(self, comm, dim: int, counts: np.ndarray, bits: int, is_signed: bool, learns_width: bool = False,
                 shrinks: bool = False, is_local: bool = False):
        super().__init__()
        self._shared, self.dim, self.bits = SharedComm(comm), dim, bits
        self.register_buffer("counts", torch.from_numpy(counts.astype(np.float64)), persistent=False)
        self.is_signed, self.learns_width, self.shrinks = is_signed, learns_width, shrinks
        self.local_weight = 1.0 / max(1.0, dim * float(counts.sum())) if is_local else None
        self.fit: StepFit | None = None
        width = torch.full((len(counts),), float(bits))
        self.register_buffer("fitted_range", self._largest(width))
        self.log_range = nn.Parameter(torch.zeros(len(counts)))
        if learns_width:
            self.width = nn.Parameter(width)
        else:
            self.register_buffer("width", width)

    @property
    def least_bits(self) -> int:
        return 1 + self.is_signed

    @property
    def step(self) -> torch.Tensor:
        """(num_entries,) float32, differentiable in the range; a width's gradient comes from clipped values."""
        return self.fitted_range * self.log_range.exp() / self._largest(self.whole_width().detach())

    def forward(self, rows: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        """Return (n, dim) float32, quantized. Collective if widths are learned."""
        entry = nodes.in_degree.clamp(max=len(self.counts) - 1)
        if self.fitting_comm is not None:
            self._fit(rows, entry)
        step, width = look_up(self.step, entry), look_up(self.whole_width(), entry)
        return fake_quantize(rows, step[:, None], width[:, None], self.is_signed, self._error_weight(rows.detach()))

    def _error_weight(self, rows: torch.Tensor) -> float | None:
        """Collective: the weight of the rows' own error, or None."""
        if self.local_weight is None or not (self.learns_width and self.training):
            return self.local_weight
        # If widths follow the error, it is relative to the rows, so that a layer of large values doesn't take all bits.
        return 1.0 / max(self._shared.comm.allreduce(column_magnitudes(rows).sum().item()), SMALLEST_MEAN)

    def whole_width(self) -> torch.Tensor:
        return round_through(self.width)

    @torch.no_grad()
    def clamp_width(self) -> None:
        if self.learns_width:
            self.width.clamp_(self.least_bits, MAX_BIT_WIDTH)

    def num_bits(self) -> torch.Tensor:
        """Stored bits of the rows of all nodes, () float64, differentiable in the widths."""
        return (self.whole_width().double() * self.counts).sum() * self.dim

    @torch.no_grad()
    def _fit(self, rows: torch.Tensor, entry: torch.Tensor) -> None:
        """Collective: start from the steps of least squared error."""
        place = rows.nonzero(as_tuple=True)
        values, group = rows[place], entry[place[0]]
        limit = self._largest(self.whole_width()).cpu().numpy().astype(int)
        self.fit = search_steps(self.fitting_comm, values, group, limit)
        if self.shrinks:
            self._shrink(values, group)
        step = torch.from_numpy(self.fit.step).to(self.fitted_range.device)
        self.fitted_range.copy_(step * self._largest(self.whole_width()))

    def _shrink(self, values: torch.Tensor, group: torch.Tensor) -> None:
        """Collective: set the fewest bits that hold the codes in use; rows of 0 and 1 need one bit."""
        values, group = values.cpu(), group.cpu()
        limit, step = self._largest(self.whole_width()).cpu()[group], torch.from_numpy(self.fit.step)[group]
        codes = torch.zeros(len(self.counts)).scatter_reduce_(0, group, codes_of(values.abs(), step, limit), "amax")
        largest = np.max(self.fitting_comm.allgather(codes.numpy()), axis=0)
        needed = np.ceil(np.log2(np.maximum(largest, 1) + 1)) + self.is_signed
        self.width.copy_(torch.from_numpy(take_nearest(needed, largest > 0, self.least_bits)))

    def _largest(self, width: torch.Tensor) -> torch.Tensor:
        return largest_code(width, self.is_signed)

    @torch.no_grad()
    def scale(self) -> RowScale:
        is_known = self.counts.cpu().numpy() > 0
        step = take_nearest(self.step.cpu().numpy(), is_known, 1.0)
        width = take_nearest(self.whole_width().cpu().numpy(), is_known, MAX_BIT_WIDTH)
        return RowScale(step, width.astype(np.uint8), self.is_signed)


class ColumnQuantizer(Quantizer):
    """Mapped rows as signed codes of 2 to 8 bits; a column's step is a learned multiple of its recent mean magnitude.

    With is_local, steps follow the mapped rows' own error, see `fake_quantize`.
    """
    # Mapped rows grow faster than the weights that map them. With steps as multiples of the weights' magnitudes, most
    # values of the last layer were clipped from the first epochs on, and training did not undo it.

    def __init__(self, comm, dim: int, num_nodes: int, bits: int, is_local: bool = False):
        super().__init__()
        self._shared, self.bits = SharedComm(comm), bits
        self.local_weight = 1.0 / max(1, dim * num_nodes) if is_local else None
        self.log_step = nn.Parameter(torch.zeros(dim))
        self.magnitude: torch.Tensor
        self.register_buffer("magnitude", torch.ones(dim))

    @property
    def step(self) -> torch.Tensor:
        return self.log_step.exp() * self.magnitude

    def forward(self, rows: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        """Collective: return (n, dim) float32, quantized, protected rows too; training moves the magnitudes."""
        if self.fitting_comm is not None:
            self._fit(rows.detach())
        elif self.training:
            newest = self._mean_magnitude(rows.detach())
            self.magnitude = torch.where(newest > 0, self.magnitude.lerp(newest, MOMENTUM), self.magnitude)
        width = torch.full((1, 1), float(self.bits), device=rows.device)
        return fake_quantize(rows, self.step[None], width, is_signed=True, local_weight=self.local_weight)

    @torch.no_grad()
    def _fit(self, rows: torch.Tensor) -> None:
        """Collective: start from the steps of least squared error."""
        column, max_code = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape), _max_code(self.bits)
        fit = search_steps(self.fitting_comm, rows.reshape(-1), column.reshape(-1), np.full(rows.shape[1], max_code))
        step, mean = torch.from_numpy(fit.step).to(rows.device) * OFF_EDGES, self._mean_magnitude(rows)
        # A column of zeros takes its neighbor's step, as if its values were about half the largest code.
        self.magnitude = torch.where(mean > 0, mean, step * max_code / 2)
        self.log_step.copy_((step / self.magnitude).log())

    def _mean_magnitude(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective: return (dim,) float32 over the rows of all ranks."""
        total = self._shared.comm.allreduce(np.append(column_magnitudes(rows).cpu().numpy(), len(rows)))
        return torch.from_numpy(total[:-1] / max(total[-1], 1.0)).to(rows)

    @torch.no_grad()
    def scale(self) -> ColumnScale:
        return ColumnScale(self.step.cpu().numpy(), self.bits)


class WeightCodes(Quantizer, ABC):
    """Weights as signed codes of 2 to 8 bits, with a step per output."""

    def __init__(self, bits: int):
        super().__init__()
        self.bits = bits

    @abstractmethod
    def step(self, weight: torch.Tensor) -> torch.Tensor:
        """(out_dim,) float32."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        width = torch.full((1, 1), float(self.bits), device=weight.device)
        return fake_quantize(weight, self.step(weight)[:, None], width, is_signed=True)

    @torch.no_grad()
    def integers(self, weight: torch.Tensor) -> IntegerMap:
        weight, step = weight.cpu(), self.step(weight).cpu()
        codes = codes_of(weight, step[:, None], torch.tensor(float(_max_code(self.bits))))
        return IntegerMap(codes.numpy().astype(np.int8), ColumnScale(step.numpy(), self.bits))


class WeightQuantizer(WeightCodes):
    """An output's step is a learned multiple of its mean magnitude."""
    # Weights grow tenfold within some epochs of Adam. Steps that are multiples of the mean magnitude keep up; their
    # learning rate is relative.

    def __init__(self, dim: int, bits: int):
        super().__init__(bits)
        self.log_step = nn.Parameter(torch.zeros(dim))

    def step(self, weight: torch.Tensor) -> torch.Tensor:
        return self.log_step.exp() * _mean_weight(weight)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        if self.fitting_comm is not None:
            self._fit(weight)
        return super().forward(weight)

    @torch.no_grad()
    def _fit(self, weight: torch.Tensor) -> None:
        output = torch.arange(len(weight), device=weight.device)[:, None].expand(weight.shape)
        fit = search_steps(None, weight.reshape(-1), output.reshape(-1), np.full(len(weight), _max_code(self.bits)))
        self.log_step.copy_((torch.from_numpy(fit.step).to(weight.device) / _mean_weight(weight)).log())


class LargestWeightQuantizer(WeightCodes):
    """An output's largest magnitude takes the largest code."""

    def step(self, weight: torch.Tensor) -> torch.Tensor:
        peak = (weight.detach().abs().amax(dim=1) if weight.shape[1]
                else torch.ones(len(weight), device=weight.device))
        return torch.where(peak > 0, peak, torch.ones((), device=weight.device)) / _max_code(self.bits)


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


@dataclass(frozen=True)
class SharedComm:
    # Copies of a module share a communicator, since most can't be copied.
    comm: Any

    def __deepcopy__(self, memo: dict) -> SharedComm:
        return self


def count_in_degrees(graph: LocalGraph, comm) -> np.ndarray:
    """Collective: return the number of nodes of the whole graph by in-degree, (largest in-degree + 1,) int64."""
    # In-degrees from MAX_DEGREES - 1 on share the last entry.
    degree = np.minimum(graph.in_degree[:graph.num_inner], MAX_DEGREES - 1)
    counts = comm.allreduce(np.bincount(degree, minlength=MAX_DEGREES))
    return counts[:np.flatnonzero(counts).max(initial=0) + 1]


def _max_code(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _mean_weight(weight: torch.Tensor) -> torch.Tensor:
    mean = weight.detach().abs().mean(dim=1) if weight.shape[1] else torch.ones(len(weight), device=weight.device)
    return mean.clamp(min=SMALLEST_MEAN)


class StepFit(NamedTuple):
    """Per group over all ranks: (num_groups,) float32 step, its float64 squared error, and the sum of squares."""

    step: np.ndarray
    error: np.ndarray
    energy: np.ndarray


def search_steps(comm, values: torch.Tensor, group: torch.Tensor, max_code: np.ndarray) -> StepFit:
    """Collective: return the step of least squared error for each group of values.

    comm : MPI communicator, or None if all ranks hold the same values
    values : (n,) float32, group : (n,) int64 below num_groups         zeros fit any step and may be left out
    max_code : (num_groups,) int                                       at least 1

    A group of zeros takes the step of the nearest other group, or 1. Raises CollectiveError for non-finite values.
    """
    magnitude, group = values.detach().cpu().abs(), group.cpu()     # once, before training
    is_kept = magnitude != 0
    magnitude, group = magnitude[is_kept], group[is_kept]
    peak = _peaks(comm, magnitude, group, len(max_code))
    if not np.isfinite(peak).all():
        raise CollectiveError("rows to quantize hold NaN or infinity; look for extreme values in the features")
    steps = np.maximum(peak / _divisors(max_code), np.finfo(np.float32).tiny).astype(np.float32)
    errors = np.zeros((len(steps) + 1, len(max_code)))
    for some, their_group in zip(magnitude.split(VALUES_AT_ONCE), group.split(VALUES_AT_ONCE), strict=True):
        errors += _errors(some, their_group, steps, max_code)
    errors, energy = np.split(errors if comm is None else comm.allreduce(errors), [-1])
    is_good = errors <= (1 + TOLERANCE) * errors.min(axis=0) + NEGLIGIBLE * energy
    best = is_good.argmax(axis=0), np.arange(len(max_code))     # divisors ascend, so steps descend
    return StepFit(take_nearest(steps[best], peak > 0, 1.0), errors[best], energy[0])


def take_nearest(table: np.ndarray, is_known: np.ndarray, default: float) -> np.ndarray:
    known = np.flatnonzero(is_known)
    if not len(known):
        return np.full_like(table, default)
    place = np.arange(len(table))
    after = known[np.minimum(np.searchsorted(known, place), len(known) - 1)]
    before = known[np.maximum(np.searchsorted(known, place, "right") - 1, 0)]
    return table[np.where(np.abs(place - before) <= np.abs(after - place), before, after)]


def _divisors(max_code: np.ndarray) -> np.ndarray:
    # Largest value over step: whole numbers up to 8, then a fifth more each time, up to max_code, then clipped values.
    whole = np.union1d(np.arange(1, 9), np.round(1.2 ** np.arange(64)))
    whole = whole[whole < 2 * max_code.max(initial=1)]
    return np.concatenate([np.minimum(whole[:, None], max_code), np.multiply.outer(CLIPPED, max_code)])


def _peaks(comm, magnitude: torch.Tensor, group: torch.Tensor, num_groups: int) -> np.ndarray:
    peak = torch.zeros(num_groups).scatter_reduce_(0, group, magnitude, "amax").numpy()
    return peak if comm is None else np.max(comm.allgather(peak), axis=0)


def _errors(magnitude: torch.Tensor, group: torch.Tensor, steps: np.ndarray, max_code: np.ndarray) -> np.ndarray:
    index, num_groups = group.numpy(), steps.shape[1]
    limit = torch.from_numpy(max_code.astype(np.float32))[group]
    of_steps = []
    for row in torch.from_numpy(steps):
        step = row[group]
        difference = codes_of(magnitude, step, limit).mul_(step).sub_(magnitude)
        of_steps.append(np.bincount(index, difference.square_().double().numpy(), num_groups))
    return np.stack([*of_steps, np.bincount(index, magnitude.square().double().numpy(), num_groups)])


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, step, bit_width, is_signed, local_weight):
        values = values.contiguous()
        ctx.save_for_backward(values, step, bit_width)
        ctx.arguments = is_signed, local_weight
        return quantize_values(values, _by_row_or_column(step, values), largest_code(bit_width, is_signed))

    @staticmethod
    def backward(ctx, gradient):
        values, step, bit_width = ctx.saved_tensors
        is_signed, local_weight = ctx.arguments
        max_code = largest_code(bit_width, is_signed)
        # Only the values were kept; backward divides again.
        found = quantize_values_backward(values, _by_row_or_column(step, values), max_code, gradient.contiguous(),
                                         local_weight, ctx.needs_input_grad[0])
        of_width = None
        if ctx.needs_input_grad[2]:
            # The derivative of max_code by the width, where a value takes it.
            slope = step * (max_code + 1) * math.log(2.0)
            of_width = (found.clipped * slope).sum_to_size(bit_width.shape)
        return found.of_values, found.of_step.sum_to_size(step.shape), of_width, None, None


def _by_row_or_column(step: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return step.expand(len(values), 1) if step.numel() == 1 else step


def fake_quantize(values: torch.Tensor, step: torch.Tensor, bit_width: torch.Tensor, is_signed: bool,
                  local_weight: float | None = None) -> torch.Tensor:
    """Return step * sign(x) * min(floor(|x| / step + 0.5), max_code), max_code = 2**(bit_width - is_signed) - 1.

    Gradients are straight-through: 1 for a value if not clipped, else 0; code - x / step for its step if not clipped,
    else sign(x) * max_code; 0 for its width if not clipped, else sign(x) * step * 2**(bit_width - is_signed) * ln 2.

    values : (n, dim) float32
    step : (n, 1), (1, dim) or (1, 1) float32, above 0
    bit_width : (n, 1) or (1, 1) float32 of whole numbers; without gradient if steps are by column
    is_signed : bool                one bit is a sign; without it no value is negative
    local_weight : float or None    steps and widths get the gradient of local_weight * sum of |quantized - x| instead

    Reference: MEGA, Eq. (2); Zhu et al., ICLR 2023 (A2Q), for the local gradient.
    """
    return _FakeQuantize.apply(values, step, bit_width, is_signed, local_weight)


def largest_code(bit_width: torch.Tensor, is_signed: bool) -> torch.Tensor:
    return torch.exp2(bit_width - int(is_signed)).round_() - 1


def codes_of(values: torch.Tensor, step: torch.Tensor, max_code: torch.Tensor) -> torch.Tensor:
    codes = (values.abs() / step).add_(0.5).floor_()
    return torch.minimum(codes, max_code, out=codes).mul_(torch.sign(values))


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, entry):
        ctx.entry, ctx.num_entries = entry, len(table)
        return table[entry]

    @staticmethod
    def backward(ctx, gradient):
        # In float64 and a fixed order: torch's scatter adds in the order of its threads. On a device, index_put_ sorts
        # before it adds.
        if gradient.device.type == "cpu":
            sums = torch.from_numpy(np.bincount(ctx.entry.numpy(), gradient.double().numpy(), ctx.num_entries))
        else:
            sums = torch.zeros(ctx.num_entries, dtype=torch.float64, device=gradient.device)
            sums.index_put_((ctx.entry,), gradient.double(), accumulate=True)
        return sums.to(gradient.dtype), None


def look_up(table: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    """Return table[entry] for table (num_entries,) and entry (n,) int64; backward is deterministic."""
    return _LookUp.apply(table, entry)


def round_through(width: torch.Tensor) -> torch.Tensor:
    return width + (width.round() - width).detach()
