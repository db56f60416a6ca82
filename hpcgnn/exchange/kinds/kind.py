"""ExchangeKind: how a method's training exchanges treat the rows of an epoch, and what they keep.

`Method.exchange` makes one per rank and run. To make your own kind, subclass it and define `start`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
import torch

from hpcgnn.errors import ConfigError, KernelError
from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.bits import EpochPlan
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.sender import Outgoing, Place, Sender
from hpcgnn.exchange.state import State, Stateful, device_of
from hpcgnn.graph.hop import ExchangeSite

NUM_SUMS = 4    # sums that tell how far rows moved, see `hpcgnn.exchange.kinds.kept_messages.Movement`


class ExchangeKind(ABC):
    """Decides which rows travel in training and which are read.

    Attributes
    ----------
    keeps_state : bool      whether a resumed run needs `state`
    may_skip : bool         whether a rank may send nothing in an epoch
    """

    keeps_state = False
    may_skip = False

    @abstractmethod
    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        """Collective: send the rows of one exchange; return the arrival that the pass reads."""

    def in_steps(self) -> ExchangeKind:
        """Return the kind of the exchanges of a step, which send some of an epoch's rows.

        Rows that do not arrive are read as they last were. Raises ConfigError if the kind needs all rows at once.
        """
        raise ConfigError(f"exchanges of kind {type(self).__name__} can't send the rows of some steps only; leave "
                          "--steps out")

    def reads_stale(self, layer: int, purpose: int) -> bool:
        """Whether an exchange of this epoch reads rows that came earlier, while its own rows travel."""
        return False

    def predicting(self, picks: bool = False) -> ExchangeKind:
        """Return the same kind with messages that hold differences from what receivers have.

        With `picks`, only exchanges that an epoch's plan names send differences.
        Raises ConfigError if receivers don't get every row in every epoch.
        """
        raise ConfigError(f"exchanges of kind {type(self).__name__} can't predict rows from the epoch before")

    def begin_epoch(self, plan: EpochPlan) -> None:
        """Take the plan of the next training pass. Raises KernelError if the kind can't do what the plan asks for."""
        if plan.is_asynchronous:
            raise KernelError(f"an epoch is asynchronous, and exchanges of kind {type(self).__name__} keep no rows for "
                              "the next one")

    def drawn_for(self, site: ExchangeSite) -> Hashable:
        """Return the key of the sample of travelling rows; None if all rows travel."""
        return None

    def travelling(self, plan: ExchangePlan, site: ExchangeSite) -> ExchangePlan:
        """Return the plan of the rows that travel."""
        return plan

    def present(self, plan: ExchangePlan, site: ExchangeSite) -> np.ndarray | None:
        """Return which halo rows the pass has, (num_halo,) bool; None: all."""
        return None

    @property
    def num_bytes(self) -> int:
        return 0

    def movements(self) -> dict[tuple[int, int], torch.Tensor]:
        """How far sent rows moved, by layer and purpose, see `Movement.sums`; empty if no pass reads rows late."""
        return {}

    def settle(self) -> None:    # noqa: B027, nothing to do for most
        """Collective: wait for messages on their way, without reading them."""

    def forget(self) -> None:    # noqa: B027, nothing to do for most
        """Collective: finish messages on their way and discard everything kept."""

    def state(self) -> State:
        """Return everything that is kept, once settled; valid until the next epoch."""
        return {}

    def restore(self, sender: Sender, state: State) -> None:    # noqa: B027, nothing to do for most
        """Continue from what `state` returned on this rank."""


Part = TypeVar("Part", bound=Stateful)


class RememberingKind(ExchangeKind, Generic[Part]):
    """Keeps something per exchange, by (layer, direction, dim), and saves it."""

    keeps_state = True

    def __init__(self) -> None:
        self._kept: dict[Place, Part] = {}

    @abstractmethod
    def _new(self, sender: Sender, purpose: int) -> Part:
        pass

    def _at(self, sender: Sender, place: Place) -> Part:
        if place not in self._kept:
            self._kept[place] = self._new(sender, place[1])
        return self._kept[place]

    @property
    def num_bytes(self) -> int:
        return sum(kept.num_bytes for kept in self._kept.values())

    def settle(self) -> None:
        for kept in self._kept.values():
            kept.settle()

    def forget(self) -> None:
        self.settle()
        self._kept = {}

    def state(self) -> State:
        return {"-".join(map(str, place)): kept.state() for place, kept in self._kept.items()}

    def restore(self, sender: Sender, state: State) -> None:
        device = device_of(sender.transport.empty(0))
        for name, kept_state in state.items():
            layer, purpose, dim = map(int, name.split("-"))
            self._at(sender, (layer, purpose, dim)).restore(kept_state, device)
