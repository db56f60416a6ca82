"""`ModelSize`: the layers of a model as numbers, and the work and exchanges of its passes for each part.

It follows `hpcgnn.nn.neighborhood` step by step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.planning.loads import PartLoads

MODELS = ("sage", "gcn")
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Layer:
    """One linear convolution."""

    number: int            # from 0
    in_dim: int
    out_dim: int
    # rows_in, rows_out: (num_parts,) int64, inner rows that a training pass reads, and that it computes
    rows_in: np.ndarray
    rows_out: np.ndarray
    # arcs, far_arcs, central_arcs: (num_parts,) int64, edges into the computed rows
    arcs: np.ndarray
    far_arcs: np.ndarray
    central_arcs: np.ndarray
    reach: int             # hops from the input rows to the loss

    @property
    def maps_first(self) -> bool:
        """Whether rows are mapped before they are sent and summed."""
        return self.out_dim < self.in_dim

    @property
    def sum_dim(self) -> int:
        """Columns that are sent and summed: the narrower side."""
        return min(self.in_dim, self.out_dim)


@dataclass(frozen=True)
class ModelSize:
    """A stack of linear convolutions as hpcgnn trains it."""

    model: str                 # one of MODELS, else ConfigError
    in_dim: int
    hidden_dim: int
    out_dim: int
    num_layers: int
    precision: str = "fp32"    # key of ITEM_BYTES
    has_dropout: bool = True
    has_norm: bool = True      # LayerNorm after every hidden layer

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"hpcgnn plan knows what {' and '.join(MODELS)} compute and send, not {self.model}; run "
                              "mpirun -n P hpcgnn train SHARDS --dry-run, which forecasts any model from a few epochs")

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.precision]

    @property
    def dims(self) -> list[int]:
        """Columns of the input, of each hidden layer and of the output."""
        return [self.in_dim] + [self.hidden_dim] * (self.num_layers - 1) + [self.out_dim]

    @property
    def maps_a_layer(self) -> int:
        """Weight matrices of a layer: of the neighbors, and of the row itself if it has its own."""
        return 2 if self.model == "sage" else 1

    @property
    def num_weights(self) -> int:
        norms = 2 * self.hidden_dim * (self.num_layers - 1) if self.has_norm else 0
        return norms + sum(self.maps_a_layer * left * right + right for left, right in pairwise(self.dims))

    def layers(self, loads: PartLoads) -> list[Layer]:
        """The layers with the rows and edges that a training pass computes in each."""
        loops = loads.rows_within if self.model == "gcn" else np.zeros_like(loads.rows_within)
        found = []
        for number, (left, right) in enumerate(pairwise(self.dims)):
            reach = self.num_layers - number
            found.append(Layer(
                number, left, right, loads.rows_within[:, reach], loads.rows_within[:, reach - 1],
                loads.arcs_within[:, reach - 1] + loops[:, reach - 1], loads.far_arcs_within[:, reach - 1],
                loads.central_arcs_within[:, reach - 1], reach))
        return found


@dataclass
class Work:
    """Work of a training pass, by kind; each entry has one number per part."""

    maps: np.ndarray
    gradients: np.ndarray
    drops: np.ndarray
    norms: np.ndarray
    norms_back: np.ndarray
    sums: list[tuple[np.ndarray, np.ndarray, int]] = field(default_factory=list)
    window: dict[tuple[int, bool], np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Exchange:
    """One exchange of halo rows, or of their gradients, in a training pass."""

    layer: int
    is_backward: bool
    dim: int
    reach: int


def exchanges_of(size: ModelSize) -> Iterator[Exchange]:
    """Yield the exchanges of a training pass, both ways, of every layer except the first, which reads the input."""
    for number, (left, right) in enumerate(pairwise(size.dims)):
        for is_backward in (False, True):
            if number:
                yield Exchange(number, is_backward, min(left, right), size.num_layers - number)


def work_of(size: ModelSize, loads: PartLoads) -> Work:
    """Count the work of a training pass of every part."""
    none = np.zeros(loads.num_parts)
    work = Work(*(none.copy() for _ in range(5)))
    for layer in size.layers(loads):
        (_count_map_first if layer.maps_first else _count_aggregate_first)(work, size, layer, loads)
        if layer.number < size.num_layers - 1:
            work.norms += layer.rows_out * layer.out_dim
            work.norms_back += layer.rows_out * layer.out_dim
    return work


def _count_aggregate_first(work: Work, size: ModelSize, layer: Layer, loads: PartLoads) -> None:
    # As `AggregateFirst`: dropout masks rows where they arrive, and again in the backward. The backward also recomputes
    # the rows that the row's own weight reads.
    is_input, product = layer.number == 0, 2 * layer.rows_out * layer.in_dim * layer.out_dim
    work.maps += product * size.maps_a_layer
    work.gradients += product * size.maps_a_layer
    is_constant = is_input and not size.has_dropout
    if not is_constant:
        work.sums.append((layer.arcs * layer.in_dim, layer.rows_in + loads.num_halo, layer.in_dim))
    again = layer.rows_out * layer.in_dim if size.maps_a_layer == 2 else 0
    if size.has_dropout:
        work.drops += (layer.rows_in + loads.num_halo) * layer.in_dim + again
    if is_input:
        return
    work.norms += again
    work.maps += product * size.maps_a_layer
    _count_sums_back(work, layer, layer.in_dim)
    if size.has_dropout:
        work.drops += (layer.rows_in + loads.num_halo) * layer.in_dim


def _count_map_first(work: Work, size: ModelSize, layer: Layer, loads: PartLoads) -> None:
    # As `MapFirst`: rows arrive with dropout applied, and are recomputed in the backward. Halo rows of the input are
    # mapped here too.
    is_input, one = layer.number == 0, 2 * layer.in_dim * layer.out_dim
    mapped = layer.rows_in + (loads.num_halo if is_input else 0)
    of_self = layer.rows_out if size.maps_a_layer == 2 else 0
    work.maps += one * (mapped + of_self)
    work.gradients += one * (mapped + of_self)
    work.sums.append((layer.arcs * layer.out_dim, layer.rows_in + loads.num_halo, layer.out_dim))
    _count_sums_back(work, layer, layer.out_dim)
    if is_input and size.has_dropout:
        work.drops += mapped * layer.in_dim
    if not is_input:
        work.maps += one * (layer.rows_in + of_self)
        work.norms += (layer.rows_in + of_self) * layer.in_dim


def _count_sums_back(work: Work, layer: Layer, dim: int) -> None:
    near = layer.arcs - layer.far_arcs
    work.sums += [(layer.far_arcs * dim, layer.rows_out, dim), (near * dim, layer.rows_out, dim)]
    work.window[layer.number, False] = layer.central_arcs * dim
    work.window[layer.number, True] = near * dim
