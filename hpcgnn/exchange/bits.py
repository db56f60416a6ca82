"""Bit-widths of the rows of a message, as both its sides compute them: what the policies' decisions come down to.

EpochPlan: what rank 0 decides for the exchanges of one epoch.
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

MAX_DRAWS = 4    # a row, for one of few widths; times 1024 layers they fit a key


class BitPlan(Protocol):
    """An immutable choice of widths. Sender and receiver ask with the same arguments and get the same answer."""

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        """Return (len(rows),) uint8, the width of each row of one message."""


@dataclass(frozen=True)
class UniformBits:
    """Every row at the same width."""

    bits: int

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        """Return (len(rows),) uint8, all equal to `bits`."""
        return np.full(len(rows), self.bits, dtype=np.uint8)


@dataclass(frozen=True)
class DrawnBits:
    """Every row of every message at a width drawn evenly from a set, anew in every epoch.

    Reference: AdaQP, Section 5.3 (uniform sampling, Table 6).
    """

    choices: tuple[int, ...]
    seed: int
    epoch: int

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        """Draw (len(rows),) uint8 from `choices`."""
        width = np.full(len(rows), self.choices[-1], np.uint8)
        is_open = np.ones(len(rows), bool)
        # Gradients of a node come from several ranks, each at a width of its own; part 0 is forward.
        part = source + 1 if purpose == BACKWARD else 0
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
    """A width for each level of importance.

    Attributes
    ----------
    levels : dict        (owner, user) rank -> (num_rows,) uint8 levels of the rows that they share
    width : (num_levels,) uint8
    """

    levels: dict[tuple[int, int], np.ndarray]
    width: np.ndarray

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        """Return (len(rows),) uint8; a row has the same width forward and backward, at every layer."""
        pair = (destination, source) if purpose == BACKWARD else (source, destination)
        return self.width[self.levels[pair][rows.position]]


@dataclass(frozen=True, eq=False)
class SolvedBits:
    """A width for each row of each message, as an assigner chose.

    Attributes
    ----------
    table : dict         (layer, purpose, source, destination) -> (num_rows,) uint8 over the pair's whole list
    default : int        width of messages that the table does not name
    """

    table: dict[tuple[int, int, int, int], np.ndarray]
    default: int

    def widths(self, layer: int, purpose: int, source: int, destination: int, rows: RowList) -> np.ndarray:
        """Return (len(rows),) uint8."""
        chosen = self.table.get((layer, purpose, source, destination))
        return np.full(len(rows), self.default, np.uint8) if chosen is None else chosen[rows.position]

    def state(self) -> State:
        """Return the widths as arrays, from which `restored` rebuilds them."""
        return {"place": np.array(list(self.table), np.int64).reshape(-1, 4), "default": self.default,
                "width": joined(list(self.table.values()))}

    @classmethod
    def restored(cls, state: State) -> SolvedBits:
        """Rebuild the widths from what `state` returned."""
        places = map(tuple, state["place"].tolist())
        return cls(dict(zip(places, split(state["width"]), strict=True)), int(state["default"]))


@dataclass(frozen=True)
class EpochPlan:
    """Hold what rank 0 decided for one epoch.

    Attributes
    ----------
    bit_plan : BitPlan
    is_asynchronous : bool       read the rows of the epoch before
    is_traced : bool             keep the range of every row that is sent
    fresh : frozenset            (layer, purpose) of exchanges that wait for their rows even so
    is_measured : bool           find out how far the rows that are sent have moved since the epochs before
    num_steps : int              optimizer steps; each computes some of the rows
    by_row : bool                these are dealt out one by one, not in clusters
    is_turn : bool               gradients are larger than before, so moments of the optimizer begin anew
    """

    bit_plan: BitPlan
    is_asynchronous: bool = False
    is_traced: bool = False
    fresh: frozenset[tuple[int, int]] = frozenset()
    is_measured: bool = False
    num_steps: int = 1
    by_row: bool = False
    is_turn: bool = False

    @property
    def in_clusters(self) -> bool:
        """Tell whether the epoch has several steps of whole clusters."""
        return self.num_steps > 1 and not self.by_row

    def reads_stale(self, layer: int, purpose: int) -> bool:
        """Tell whether an exchange reads the rows of the epoch before."""
        return self.is_asynchronous and (layer, purpose) not in self.fresh
