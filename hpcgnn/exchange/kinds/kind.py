"""ExchangeKind: what a method's training exchanges do with the rows of an epoch, and what they keep of them.

A kind is made by `Method.exchange` on each rank and serves one run. A kind of one's own is a subclass.
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


class ExchangeKind(ABC):
    """Decide which rows travel in a training pass, which are read, and what is kept of them.

    Attributes
    ----------
    keeps_state : bool      training reads something of earlier epochs, so a resumed run needs `state`
    may_skip : bool         a rank may send nothing in an epoch
    """

    keeps_state = False
    may_skip = False

    @abstractmethod
    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        """Collective: send the rows of one exchange, and return what is read instead of or after them."""

    def predicting(self) -> ExchangeKind:
        """Return the same kind with messages that hold differences from what receivers have.

        Raises
        ------
        ConfigError      receivers don't get every row in every epoch
        """
        raise ConfigError(f"exchanges of kind {type(self).__name__} can't predict rows from those of the epoch before")

    def begin_epoch(self, plan: EpochPlan) -> None:
        """Take the plan of the next training pass.

        Raises
        ------
        KernelError      the kind can't do what the plan asks for
        """
        if plan.is_asynchronous:
            raise KernelError(f"an epoch is asynchronous, and exchanges of kind {type(self).__name__} keep no rows for "
                              "the next one")

    def drawn_for(self, site: ExchangeSite) -> Hashable:
        """Return what the rows that travel are drawn by; None where all do."""
        return None

    def travelling(self, plan: ExchangePlan, site: ExchangeSite) -> ExchangePlan:
        """Return the plan of the rows that travel."""
        return plan

    def present(self, plan: ExchangePlan, site: ExchangeSite) -> np.ndarray | None:
        """Return (num_halo,) bool, the halo rows that the pass has; None is all."""
        return None

    @property
    def num_bytes(self) -> int:
        """Memory that is kept between epochs: messages, reconstructions, means."""
        return 0

    def movements(self) -> dict[tuple[int, int], torch.Tensor]:
        """Return by layer and purpose how far the rows that this rank sends moved; see `Movement.sums`. Empty where no
        epoch may read the rows of another.
        """
        return {}

    def settle(self) -> None:    # noqa: B027, nothing to do for most
        """Collective: return when nothing is on its way; the next epoch still reads what came."""

    def forget(self) -> None:    # noqa: B027, nothing to do for most
        """Collective: end what is on its way and keep nothing."""

    def state(self) -> State:
        """Return all that is kept, once it is settled; valid until the next epoch."""
        return {}

    def restore(self, sender: Sender, state: State) -> None:    # noqa: B027, nothing to do for most
        """Go on from what `state` returned on this rank."""


Part = TypeVar("Part", bound=Stateful)


class RememberingKind(ExchangeKind, Generic[Part]):
    """Keep something of each exchange, by its layer, direction and dim; all of it is saved from here."""

    keeps_state = True

    def __init__(self) -> None:
        self._kept: dict[Place, Part] = {}

    @abstractmethod
    def _new(self, sender: Sender, purpose: int) -> Part:
        """Return what an exchange keeps before its first epoch."""

    def _at(self, sender: Sender, place: Place) -> Part:
        if place not in self._kept:
            self._kept[place] = self._new(sender, place[1])
        return self._kept[place]

    @property
    def num_bytes(self) -> int:
        """See `ExchangeKind`."""
        return sum(kept.num_bytes for kept in self._kept.values())

    def settle(self) -> None:
        """Collective: see `ExchangeKind`."""
        for kept in self._kept.values():
            kept.settle()

    def forget(self) -> None:
        """Collective: see `ExchangeKind`."""
        self.settle()
        self._kept = {}

    def state(self) -> State:
        """See `ExchangeKind`."""
        return {"-".join(map(str, place)): kept.state() for place, kept in self._kept.items()}

    def restore(self, sender: Sender, state: State) -> None:
        """See `ExchangeKind`."""
        device = device_of(sender.transport.empty(0))
        for name, kept_state in state.items():
            layer, purpose, dim = map(int, name.split("-"))
            self._at(sender, (layer, purpose, dim)).restore(kept_state, device)
