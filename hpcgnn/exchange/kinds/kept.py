"""Kept rows: messages or what was made of them outlive their epoch, and a later epoch reads them."""

from __future__ import annotations

from functools import partial

import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arena import MessageArena
from hpcgnn.exchange.arrival import Arrival, ReceivedTable, restored_arrival
from hpcgnn.exchange.codec import encode
from hpcgnn.exchange.kinds.kind import RememberingKind
from hpcgnn.exchange.kinds.tables import PredictedRows, SmoothedRows, encode_difference
from hpcgnn.exchange.movement import Movement
from hpcgnn.exchange.schedule import EpochPlan
from hpcgnn.exchange.sender import Outgoing, Place, Sender
from hpcgnn.exchange.state import State, Stateful
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.counter import BACKWARD


class KeptMessages(Stateful):
    """Keep the messages and rows of one exchange, of a layer in one direction, from epoch to epoch.

    An epoch's messages stay readable while the next one's arrive. On the host they are held by who reads them, and
    their memory is free once they are read; on a device two arenas take turns.

    Parameters
    ----------
    sender : Sender
    purpose : FORWARD or BACKWARD
    table : ReceivedTable or None

    Attributes
    ----------
    last : Arrival or None      the messages of the last epoch
    movement : Movement         of the rows that this rank sends
    """

    def __init__(self, sender: Sender, purpose: int, table: ReceivedTable | None):
        self.table, self.movement = table, Movement()
        self.last: Arrival | None = None
        self._sender, self._is_gradient = sender, purpose == BACKWARD
        arena = MessageArena(sender.transport, is_passing=True)
        self._arenas = (arena,) if arena.is_passing else (arena, MessageArena(sender.transport))
        self._turn = 0

    def next_arena(self) -> MessageArena:
        """Return the arena that the last epoch's messages don't lie in."""
        self._turn = (self._turn + 1) % len(self._arenas)
        return self._arenas[self._turn]

    @property
    def num_bytes(self) -> int:
        """See `Stateful`."""
        tables = 0 if self.table is None else self.table.num_bytes
        return sum(arena.num_bytes for arena in self._arenas) + tables + self.movement.num_bytes

    def settle(self) -> None:
        """Collective: see `Stateful`."""
        if self.last is not None:
            self.last.transfer.wait()

    def state(self) -> State:
        """See `Stateful`; what is on its way has arrived."""
        return {"flight": {} if self.last is None else self.last.state(),
                "table": {} if self.table is None else self.table.state(), "movement": self.movement.state()}

    def restore(self, state: State, device: torch.device) -> None:
        """See `Stateful`."""
        self.movement.restore(state["movement"], device)
        if state["flight"]:
            plan = self._sender.plan
            incoming = plan.boundary if self._is_gradient else plan.halo
            self.last = restored_arrival(state["flight"], plan.peers, incoming, self.next_arena(),
                                         self._sender.training, self._sender.transport.streams)
            self.last.table = self.table
        if self.table is None:
            return
        self.table.restore(state["table"], device)
        num_rows = sum(map(len, self.last.messages.receive_rows)) if self.last else 0
        if self.table.num_rows not in (0, num_rows):
            raise KernelError(f"{self.table.num_rows} received rows were kept where messages bring {num_rows}")


class Kept(RememberingKind[KeptMessages]):
    """Send all rows; asynchronous epochs read those of the epoch before, while theirs travel.

    Parameters
    ----------
    is_pipelined : bool      epochs may be asynchronous
    smoothing : float        weight of the past in a running mean of what arrives; 0 takes what arrives
    predicts : bool          messages hold the difference from what the receiver has
    """

    def __init__(self, is_pipelined: bool = True, smoothing: float = 0.0, predicts: bool = False):
        super().__init__()
        self._max_age = 1 if is_pipelined else 0
        self._smoothing, self._predicts = smoothing, predicts
        self._plan: EpochPlan | None = None

    def predicting(self) -> Kept:
        """See `ExchangeKind`. A running mean of predicted rows is refused by the method that would ask for it."""
        return Kept(self._max_age > 0, self._smoothing, predicts=True)

    def begin_epoch(self, plan: EpochPlan) -> None:
        """See `ExchangeKind`."""
        if self._max_age == 0:
            super().begin_epoch(plan)
        self._plan = plan

    def movements(self) -> dict[tuple[int, int], torch.Tensor]:
        """See `ExchangeKind`."""
        if self._max_age == 0:
            return {}
        sums: dict[tuple[int, int], torch.Tensor] = {}
        for (layer, purpose, _), kept in self._kept.items():
            sums[layer, purpose] = sums.get((layer, purpose), 0) + kept.movement.sums
        return sums

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        """Collective: see `ExchangeKind`.

        Raises
        ------
        KernelError      an asynchronous epoch has none before it
        """
        kept, is_stale = self._at(sender, outgoing.place), self._reads_stale(outgoing.place)
        if is_stale and kept.last is None:
            raise KernelError(f"epoch {outgoing.key.epoch} is asynchronous and no rows of layer {outgoing.key.layer} "
                              "were sent before it; the first epoch must be synchronous")
        if self._plan is not None and self._plan.is_measured:
            kept.movement.note(outgoing.rows, outgoing.messages.send_index)
        encoding = partial(encode_difference, sent=kept.table.sent) if self._predicts else encode
        sent = sender.send(outgoing, kept.next_arena(), encoding, is_open=is_stale)
        sent.table = kept.table
        before, kept.last = kept.last, sent
        if not is_stale:
            sent.before = before
        read = before if is_stale else sent
        read.age, read.max_age = outgoing.key.epoch - read.epoch, self._max_age
        return read

    def _reads_stale(self, place: Place) -> bool:
        return self._plan is not None and self._plan.reads_stale(*place[:2])

    def _new(self, sender: Sender, purpose: int) -> KeptMessages:
        return KeptMessages(sender, purpose, self._new_table())

    def _new_table(self) -> ReceivedTable | None:
        if self._predicts:
            return PredictedRows()
        return SmoothedRows(self._smoothing) if self._smoothing else None
