"""Memory: all that the exchanges of a rank keep from one epoch to the next, in one place, where it is saved as a whole.

What is kept elsewhere would be forgotten by a run that is resumed.
"""

from __future__ import annotations

from hpcgnn.exchange.arrival import ReceivedTable, Site
from hpcgnn.exchange.kept import Kept, State, device_of
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.schedule import Execution
from hpcgnn.exchange.skipping import Broadcaster
from hpcgnn.exchange.tables import PredictedRows, SmoothedRows
from hpcgnn.exchange.transport import Transport
from hpcgnn.ops.counter import BACKWARD

Place = tuple[int, int, int]    # layer, purpose and dim of an exchange


class Memory:
    """Hold what each exchange of one rank keeps.

    Parameters
    ----------
    plan : ExchangePlan
    execution : Execution
    transport : Transport
    """

    def __init__(self, plan: ExchangePlan, execution: Execution, transport: Transport):
        self._plan, self._execution, self._transport = plan, execution, transport
        self._kept: dict[Place, Kept] = {}

    @property
    def keeps_rows(self) -> bool:
        """Tell whether messages or reconstructions outlive their epoch."""
        return self._execution.is_pipelined or self._execution.predicts

    @property
    def is_used(self) -> bool:
        """Tell whether training reads anything of earlier epochs."""
        return self.keeps_rows or self._execution.skip_change is not None

    @property
    def num_bytes(self) -> int:
        """Memory that is kept between epochs: messages, reconstructions, means."""
        return sum(kept.num_bytes for kept in self._kept.values())

    def at(self, place: Place) -> Site | Broadcaster:
        """Return what the exchange at `place` keeps, made anew on the first call for that place."""
        if place not in self._kept:
            self._kept[place] = self._new(place[1])
        return self._kept[place]

    def settle(self) -> None:
        """Collective: return when nothing is on its way; the next epoch still reads what came."""
        for kept in self._kept.values():
            kept.settle()

    def forget(self) -> None:
        """Collective: end what is on its way and keep nothing."""
        self.settle()
        self._kept = {}

    def state(self) -> State:
        """Return all that is kept, once it is settled; valid until the next epoch."""
        return {"-".join(map(str, place)): kept.state() for place, kept in self._kept.items()}

    def restore(self, state: State) -> None:
        """Go on from what `state` returned on this rank."""
        device = device_of(self._transport.empty(0))
        for name, kept_state in state.items():
            layer, purpose, dim = map(int, name.split("-"))
            self.at((layer, purpose, dim)).restore(kept_state, device)

    def _new(self, purpose: int) -> Site | Broadcaster:
        if self._execution.skip_change is not None:
            return Broadcaster(self._execution.skip_change, self._execution.staleness, self._transport)
        incoming = self._plan.boundary if purpose == BACKWARD else self._plan.halo
        return Site(self._new_table(), incoming, self._transport)

    def _new_table(self) -> ReceivedTable | None:
        if self._execution.predicts:
            return PredictedRows()
        return SmoothedRows(self._execution.smoothing) if self._execution.smoothing else None
