"""`ModelSize`: the layers of a model with the rows and edges of each part; `work_of` counts what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.nn.layers import HALO, IN, LINEAR, OUT, LinearLayer, Step
from hpcgnn.planning.loads import PartLoads

Number = TypeVar("Number", int, np.ndarray)

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Layer(Generic[Number]):
    """A layer, with what its training pass reads, sums and computes: numbers, or (num_parts,) int64 arrays."""

    number: int            # from 0
    linear: LinearLayer
    rows_in: Number        # inner rows that come in
    rows_out: Number
    num_halo: Number
    # edges into the computed rows: all, from halo rows, and into central rows
    arcs: Number
    far_arcs: Number
    central_arcs: Number
    reach: int             # hops from the input rows to the loss

    def rows_of(self, step: Step) -> Number:
        return {IN: self.rows_in, OUT: self.rows_out, HALO: self.num_halo}[step.rows]


def check_model(model: str) -> None:
    """Raise ConfigError for a model that can't be planned."""
    if model not in LINEAR:
        raise ConfigError(f"hpcgnn plan knows what {' and '.join(LINEAR)} compute and send, not {model}; run "
                          "mpirun -n P hpcgnn train SHARDS --dry-run, which forecasts any model from a few epochs")


@dataclass(frozen=True)
class ModelSize:
    """A stack of linear convolutions as hpcgnn trains it."""

    model: str                 # one of LINEAR, else ConfigError
    in_dim: int
    hidden_dim: int
    out_dim: int
    num_layers: int
    precision: str = "fp32"    # key of ITEM_BYTES
    has_dropout: bool = True
    norm: str = "layer"        # after every hidden layer, as in a training's settings
    has_input_dropout: bool | None = None      # None: as has_dropout
    has_average: bool = False  # a moving average of the weights
    num_steps: int = 1         # of an epoch
    has_clusters: bool = False      # steps are dealt clusters, not single rows
    history_bits: int = 32     # of a value that steps keep; below 16, rows have parameters too

    def __post_init__(self) -> None:
        check_model(self.model)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.precision]

    @property
    def linear_layers(self) -> list[LinearLayer]:
        dims = [self.in_dim] + [self.hidden_dim] * (self.num_layers - 1) + [self.out_dim]
        return [LinearLayer(*sides, *LINEAR[self.model], is_input=number == 0, reads_history=self.num_steps > 1)
                for number, sides in enumerate(pairwise(dims))]

    def drops(self, linear: LinearLayer) -> bool:
        """Whether dropout is on the input of a layer."""
        return self.has_dropout if not linear.is_input or self.has_input_dropout is None else self.has_input_dropout

    @property
    def has_constant_sums(self) -> bool:
        """Whether the first layer's sums are the same in every epoch."""
        return not (self.drops(self.linear_layers[0]) or self.linear_layers[0].maps_first)

    @property
    def num_weights(self) -> int:
        norms = 2 * self.hidden_dim * (self.num_layers - 1) if self.norm != "none" else 0
        return norms + sum(linear.num_weights for linear in self.linear_layers)

    @property
    def of_whole_graph(self) -> ModelSize:
        """The same model in a pass over all rows, as an evaluation is one."""
        return replace(self, num_steps=1)

    def layers(self, loads: PartLoads) -> list[Layer[np.ndarray]]:
        """The layers with what a training pass computes of each."""
        reached, halo = loads.rows_within, loads.num_halo
        return [Layer(number, linear, reached[:, hops + 1], reached[:, hops], halo,
                      loads.arcs_within[:, hops] + linear.has_loops * reached[:, hops],
                      loads.far_arcs_within[:, hops], loads.central_arcs_within[:, hops], hops + 1)
                for number, linear in enumerate(self.linear_layers) for hops in [self.num_layers - 1 - number]]


@dataclass(frozen=True)
class Exchange:
    """One exchange of halo rows, or of their gradients, in a training pass."""

    layer: int
    is_backward: bool
    dim: int
    reach: int


def exchanges_of(size: ModelSize) -> Iterator[Exchange]:
    """Yield the exchanges of a training pass, both ways, of every layer except the first, which reads the input."""
    for number, linear in enumerate(size.linear_layers):
        for is_backward in (False, True):
            if number:
                yield Exchange(number, is_backward, linear.sent_dim, size.num_layers - number)


class Work:
    """What a training pass computes, by kind; each entry has one number per part."""

    def __init__(self, num_parts: int):
        self.maps, self.gradients, self.drops, self.norms, self.norms_back = np.zeros((5, num_parts))
        # Values that are summed, rows that they are read from, columns.
        self.sums: list[tuple[np.ndarray, np.ndarray, int]] = []
        self.window: dict[tuple[int, bool], np.ndarray] = {}      # values that are summed while messages travel

    def add(self, step: Step, layer: Layer[np.ndarray]) -> None:
        rows, dim = layer.rows_of(step), step.dim
        values, near, far = rows * dim, (layer.arcs - layer.far_arcs) * dim, layer.far_arcs * dim
        if step.kind == "map":
            self.maps += 2 * values * step.from_dim
        elif step.kind == "weigh":
            self.gradients += 2 * values * step.from_dim
        elif step.kind == "mask":
            self.drops += values
        elif step.kind == "activate":
            self.norms += values
        elif step.kind == "activate_back":
            self.norms_back += values
        elif step.kind == "aggregate":
            self.sums.append((near + far, layer.rows_in + layer.num_halo, dim))
            self.window[layer.number, False] = layer.central_arcs * dim
        elif step.kind == "aggregate_back":
            self.sums += [(far, layer.rows_out, dim), (near, layer.rows_out, dim)]
            self.window[layer.number, True] = near


def work_of(size: ModelSize, loads: PartLoads) -> Work:
    """Count what a training pass of every part computes."""
    work = Work(loads.num_parts)
    for layer in size.layers(loads):
        for step in (*layer.linear.forward(size.drops(layer.linear)), *layer.linear.backward(size.drops(layer.linear))):
            work.add(step, layer)
    return work
