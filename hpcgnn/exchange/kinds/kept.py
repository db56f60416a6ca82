"""Kept rows: rows received in an epoch are kept, and read or corrected in a later one.

With `Kept`, asynchronous epochs read the rows of the epoch before while their own rows travel.
"""

from __future__ import annotations

from functools import partial

import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, ReceivedTable
from hpcgnn.exchange.bits import EpochPlan
from hpcgnn.exchange.codec import encode
from hpcgnn.exchange.kinds.kept_messages import KeptMessages, PredictedRows, SmoothedRows, encode_difference
from hpcgnn.exchange.kinds.kind import ExchangeKind, RememberingKind
from hpcgnn.exchange.sender import Outgoing, Place, Sender
from hpcgnn.graph.hop import ExchangeSite


class Kept(RememberingKind[KeptMessages]):
    """Send all rows; asynchronous epochs, if `is_pipelined`, read the last epoch's rows while their own rows travel.

    `smoothing` is the weight of the past in a running mean of received rows; 0: no mean. With `predicts`, messages hold
    the difference from the receiver's rows; with `picks`, those of the exchanges that the epoch's plan names.
    """

    def __init__(self, is_pipelined: bool = True, smoothing: float = 0.0, predicts: bool = False,
                 picks: bool = False):
        super().__init__()
        self._max_age = 1 if is_pipelined else 0
        self._smoothing, self._predicts, self._picks = smoothing, predicts, picks
        self._plan: EpochPlan | None = None

    def in_steps(self) -> ExchangeKind:
        from hpcgnn.exchange.kinds.in_steps import KeptInSteps

        return KeptInSteps(self._max_age, self._smoothing, self._predicts, self._picks)

    def predicting(self, picks: bool = False) -> Kept:
        return Kept(self._max_age > 0, self._smoothing, predicts=True, picks=picks)

    def begin_epoch(self, plan: EpochPlan) -> None:
        if self._max_age == 0:
            super().begin_epoch(plan)
        self._plan = plan

    def movements(self) -> dict[tuple[int, int], torch.Tensor]:
        if self._max_age == 0 and not self._picks:
            return {}
        sums: dict[tuple[int, int], torch.Tensor] = {}
        for (layer, purpose, _), kept in self._kept.items():
            sums[layer, purpose] = sums.get((layer, purpose), 0) + kept.movement.sums
        return sums

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        kept, is_stale = self._at(sender, outgoing.place), self._reads_stale(outgoing.place)
        if is_stale and kept.last is None:
            raise KernelError(f"epoch {outgoing.key.epoch} is asynchronous and no rows of layer {outgoing.key.layer} "
                              "were sent before it; the first epoch must be synchronous")
        if self._plan is not None and self._plan.is_measured:
            kept.movement.note(outgoing.rows, outgoing.messages.send_index)
        table = None if self._picks and not self._plan.differs(*outgoing.place[:2]) else kept.table
        encoding = partial(encode_difference, sent=table.sent) if isinstance(table, PredictedRows) else encode
        if isinstance(kept.table, SmoothedRows) and outgoing.rows.dtype == torch.float16:
            kept.table.decoded = torch.float16
        sent = sender.send(outgoing, kept.next_arena(), encoding, is_open=is_stale)
        sent.table = table
        # A stale exchange reads last epoch's messages. In a fresh one the table first learns those, then the new ones.
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
