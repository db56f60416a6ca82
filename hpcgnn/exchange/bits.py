"""Bit plans: the bit width of each row of each message, as sender and receiver compute it independently.

Policies in `methods/` choose one of four plans: one width for all (`UniformBits`), widths drawn per row (`DrawnBits`),
a width per level of importance (`LeveledBits`), or solved widths per row (`SolvedBits`). `EpochPlan` adds rank 0's
other decisions for an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from hpcgnn.exchange.plan import RowList
from hpcgnn.exchange.state import State, joined, split
from hpcgnn.ops.counter import BACKWARD, WIDTH, CounterKey
from hpcgnn.ops.pointwise import dropout

MAX_DRAWS = 4    # most draws per row; a key counts layers to 4,096, enough for the draws of 1,024 layers


class BitPlan(Protocol):
    """An immutable choice of widths; sender and receiver get the same answer."""

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        """Return the width of each row of one message, (len(rows),) uint8."""


@dataclass(frozen=True)
class EpochPlan:
    """Rank 0's decisions for one epoch."""

    bit_plan: BitPlan
    is_asynchronous: bool = False                    # read the rows of the epoch before
    is_traced: bool = False                          # keep the range of every sent row
    # (layer, purpose) of exchanges that wait for their rows even so
    fresh: frozenset[tuple[int, int]] = frozenset()
    is_measured: bool = False                        # measure how far sent rows moved since earlier epochs
    # (layer, purpose) of exchanges that send differences, if the kind of exchange picks some
    differing: frozenset[tuple[int, int]] = frozenset()
    num_steps: int = 1                               # optimizer steps; each computes some of the rows
    by_row: bool = False                             # deal rows to steps one by one instead of in clusters
    # The first epoch in clusters after epochs of single rows: gradients grow, so Adam's moments start anew.
    is_turn: bool = False

    @property
    def in_clusters(self) -> bool:
        return self.num_steps > 1 and not self.by_row

    def differs(self, layer: int, purpose: int) -> bool:
        """Whether an exchange sends differences, if its kind picks some."""
        return (layer, purpose) in self.differing

    def reads_stale(self, layer: int, purpose: int) -> bool:
        """Whether an exchange reads the rows of the epoch before."""
        return self.is_asynchronous and (layer, purpose) not in self.fresh


@dataclass(frozen=True)
class UniformBits:
    """Every row at the same width."""

    bits: int

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        return np.full(len(rows), self.bits, dtype=np.uint8)


@dataclass(frozen=True)
class DrawnBits:
    """Every row of every message at a width drawn uniformly from a set, anew in every epoch.

    Reference: AdaQP, Section 5.3 (uniform sampling, Table 6).
    """

    choices: tuple[int, ...]
    seed: int
    epoch: int

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        width = np.full(len(rows), self.choices[-1], np.uint8)
        is_open = np.ones(len(rows), bool)
        # Gradients of a node come from several ranks, each at its own width; part 0 is forward.
        part = source + 1 if purpose == BACKWARD else 0
        # One draw per choice: each takes its share of the rows that no earlier choice took.
        for number, choice in enumerate(self.choices[:-1]):
            key = CounterKey(self.seed, self.epoch, WIDTH, layer * MAX_DRAWS + number, part)
            is_drawn = is_open & draw(rows.node_id, 1 / (len(self.choices) - number), key)
            width[is_drawn] = choice
            is_open &= ~is_drawn
        return width


def draw(node_id: np.ndarray, probability: float, key: CounterKey) -> np.ndarray:
    """Return (n,) bool, true with `probability`, a pure function of the key and the global ids (n,) int64."""
    if probability >= 1.0:
        return np.ones(len(node_id), bool)
    return (dropout(torch.ones(len(node_id), 1), 1.0 - probability, node_id, key) > 0).numpy()[:, 0]


@dataclass(frozen=True, eq=False)
class LeveledBits:
    """A width per level of importance; a row has the same width in all layers and both directions."""

    levels: dict[tuple[int, int], np.ndarray]  # (owner, receiver) ranks -> (num_rows,) uint8 levels of the shared rows
    width: np.ndarray                          # (num_levels,) uint8

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        pair = (destination, source) if purpose == BACKWARD else (source, destination)
        return self.width[self.levels[pair][rows.position]]


@dataclass(frozen=True, eq=False)
class SolvedBits:
    """A width per row of each message, chosen by a solver."""

    # (layer, purpose, source, destination) -> (num_rows,) uint8 over the pair's whole list
    table: dict[tuple[int, int, int, int], np.ndarray]
    default: int                                        # width of messages that the table lacks

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        chosen = self.table.get((layer, purpose, source, destination))
        return np.full(len(rows), self.default, np.uint8) if chosen is None else chosen[rows.position]

    def state(self) -> State:
        return {"place": np.array(list(self.table), np.int64).reshape(-1, 4), "default": self.default,
                "width": joined(list(self.table.values()))}

    @classmethod
    def restored(cls, state: State) -> SolvedBits:
        places = map(tuple, state["place"].tolist())
        return cls(dict(zip(places, split(state["width"]), strict=True)), int(state["default"]))
