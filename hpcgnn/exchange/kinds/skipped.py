"""Skipped broadcasts: a rank sends its rows only when they have moved enough; otherwise peers read the last sent rows.

Reference: SANCUS, skip-broadcast with bounded staleness, here also for gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.arrival import Arrival
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.kinds.in_steps import SkippedInSteps
from hpcgnn.exchange.kinds.kind import RememberingKind
from hpcgnn.exchange.sender import Outgoing, Sender
from hpcgnn.exchange.state import State, Stateful, fill, on_host, table_of
from hpcgnn.exchange.transfer import HOST, Transport, swap_rows
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.resident import on_device


class Broadcaster(Stateful):
    """One exchange of one rank: the rows it last sent, and the epochs in which each peer last sent.

    Rows are sent if their relative change, in the 2-norm, is above `change`, or after `staleness` epochs in any case.
    Reference: SANCUS, skip-broadcast with bounded staleness.
    """

    def __init__(self, change: float, staleness: int, transport: Transport = HOST):
        self._change, self._staleness = change, staleness
        self._last: torch.Tensor | None = None
        self._sent_epoch = -1
        self._arrived_epoch: np.ndarray | None = None
        self.arena = MessageArena(transport)

    def agree(self, comm: MPI.Comm, peers: tuple[int, ...], rows: torch.Tensor, index: np.ndarray,
              epoch: int) -> np.ndarray:
        """Collective: return which peers send in this epoch, (num_peers,) bool, and note it.

        If the rows are on a device, waits until they are computed: all peers must know whether this rank sends rows.
        """
        leaving = rows[on_device(index, rows).long()].float()
        sends = self._has_moved(leaving) or epoch - self._sent_epoch > self._staleness
        if sends:
            self._last, self._sent_epoch = leaving, epoch
        everyone = swap_rows(comm, peers, np.full(len(peers), sends, np.uint8)) > 0
        if self._arrived_epoch is None:
            self._arrived_epoch = np.full(len(peers), epoch)
        self._arrived_epoch[everyone] = epoch
        return everyone

    def age(self, epoch: int, peers: np.ndarray) -> int:
        """Return how many epochs old the oldest rows of `peers` are."""
        return int((epoch - self._arrived_epoch[peers]).max(initial=0))

    @property
    def arrived_epoch(self) -> np.ndarray:
        return self._arrived_epoch.copy()

    def _has_moved(self, leaving: torch.Tensor) -> bool:
        if self._last is None or self._last.shape != leaving.shape:
            return True
        return bool((leaving - self._last).norm() > self._change * self._last.norm())

    @property
    def num_bytes(self) -> int:
        return self.arena.num_bytes + (0 if self._last is None else 4 * self._last.numel())

    def state(self) -> State:
        if self._arrived_epoch is None:
            return {}
        sent = {} if self._last is None else {"epoch": self._sent_epoch, "rows": on_host(self._last)}
        return {"sent": sent, "arrived_epoch": self._arrived_epoch, "bytes": on_host(self.arena.received)}

    def restore(self, state: State, device: torch.device) -> None:
        if not state:
            return
        if state["sent"]:
            self._last, self._sent_epoch = table_of(state["sent"]["rows"], device), int(state["sent"]["epoch"])
        self._arrived_epoch = state["arrived_epoch"].copy()
        _, received = self.arena.slices((0,), (len(state["bytes"]),))
        fill(received[0], state["bytes"])


class Skipped(RememberingKind[Broadcaster]):
    """Send rows that have moved or grown too old; read other rows as they last arrived."""

    may_skip = True

    def __init__(self, change: float, staleness: int):
        super().__init__()
        self._change, self._staleness = change, staleness

    def in_steps(self) -> SkippedInSteps:
        return SkippedInSteps(self._change, self._staleness)

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        messages, epoch = outgoing.messages, outgoing.key.epoch
        broadcaster = self._at(sender, outgoing.place)
        sends = broadcaster.agree(sender.comm, messages.peers, outgoing.rows, messages.send_index, epoch)
        arrival = sender.send(outgoing, broadcaster.arena, sends=sends)
        has_rows = np.array([len(rows) > 0 for rows in messages.receive_rows])
        arrival.age, arrival.max_age = broadcaster.age(epoch, has_rows), self._staleness
        arrival.sent_epochs = broadcaster.arrived_epoch
        return arrival

    def _new(self, sender: Sender, purpose: int) -> Broadcaster:
        return Broadcaster(self._change, self._staleness, sender.transport)
