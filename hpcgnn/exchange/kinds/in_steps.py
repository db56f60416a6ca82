"""Exchange kinds for steps: a step sends some of an epoch's rows, and kept data has a place for every row.

Every step sends other rows, so nothing can be kept in the order of a message. Data is kept in the order of the pair's
whole lists (`RowList.position`), and a step reads and writes the places of its own rows. Rows that arrive for a later
step are not kept here: `hpcgnn.steps` writes them to the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import Arrival, ReceivedTable
from hpcgnn.exchange.bits import EpochPlan
from hpcgnn.exchange.codec import MessageArena, Messages, encode
from hpcgnn.exchange.kinds.kept_messages import (
    EPOCHS_BACK,
    KeptMessages,
    PredictedRows,
    Reconstruction,
    encode_difference,
    spread,
    square_sums,
)
from hpcgnn.exchange.kinds.kind import NUM_SUMS, RememberingKind
from hpcgnn.exchange.plan import NO_ROWS, RowList
from hpcgnn.exchange.sender import Outgoing, Sender
from hpcgnn.exchange.state import State, Stateful, on_host, table_of
from hpcgnn.exchange.transfer import swap_rows
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.ops.arena import empty, keep_long
from hpcgnn.ops.counter import BACKWARD
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows
from hpcgnn.ops.resident import on_device

NEVER = -(1 << 40)      # epoch of a row that was never sent


class Places:
    """Places of rows in the whole lists of all peers, one list after another."""

    def __init__(self, lists: Sequence[RowList]):
        self._first = np.concatenate([[0], np.cumsum([len(rows) for rows in lists])])

    def __len__(self) -> int:
        return int(self._first[-1])

    def of(self, rows: Sequence[RowList]) -> np.ndarray:
        """Return the places of the rows of one message per peer, (num_rows,) int64."""
        return np.concatenate([first + listed.position for first, listed in zip(self._first, rows, strict=False)])


def _lists(sender: Sender, is_sent: bool, purpose: int) -> tuple[RowList, ...]:
    return sender.plan.boundary if is_sent == (purpose != BACKWARD) else sender.plan.halo


class ReconstructionInPlaces(Reconstruction):
    """A reconstruction of all rows; each message reads and corrects some of them, and each row once per epoch."""

    def __init__(self, places: Places):
        super().__init__()
        self._places = places
        self._table: torch.Tensor | None = None
        self._index: torch.Tensor | None = None

    def before(self, epoch: int, lists: Sequence[RowList], dim: int, device: torch.device) -> torch.Tensor:
        if self._table is None or self._epoch not in (epoch, epoch - 1) or self._table.shape[1] != dim:
            self._table = keep_long(empty((len(self._places), dim), torch.float32, device)).zero_()
        self._epoch, self._index = epoch, torch.from_numpy(self._places.of(lists)).to(device)
        self._rows = self._table[self._index]
        return self._rows

    def keep(self) -> None:
        self._table[self._index] = self._rows

    @property
    def num_bytes(self) -> int:
        return 0 if self._table is None else self._table.nbytes

    def state(self) -> State:
        return {} if self._table is None else {"epoch": self._epoch, "rows": on_host(self._table)}

    def restore(self, state: State, device: torch.device) -> None:
        if not state:
            return
        if len(state["rows"]) != len(self._places):
            raise KernelError(f"{len(state['rows'])} rows were kept where messages have {len(self._places)}")
        self._table, self._epoch = table_of(state["rows"], device), int(state["epoch"])


class MovementInSteps(Stateful):
    """`Movement` of rows that travel in several steps: the sums are over all steps of an epoch.

    The sample is spread evenly over the rows that are ever sent.
    """

    def __init__(self, lists: Sequence[RowList]):
        node_id = np.unique(np.concatenate([rows.node_id for rows in lists]))
        self._node_id = node_id[spread(len(node_id))]      # ascending
        self._earlier: torch.Tensor | None = None          # (EPOCHS_BACK, sample, dim), newest first
        self._num_seen = np.zeros(len(self._node_id), np.int64)
        self._epoch = -1
        self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64)

    def note(self, rows: torch.Tensor, messages: Messages, epoch: int) -> None:
        """Measure the rows (n, dim) of one step; `messages` send some of them."""
        if self._earlier is None or self._earlier.shape[2] != rows.shape[1]:
            self._earlier = rows.new_zeros((EPOCHS_BACK, len(self._node_id), rows.shape[1]), dtype=torch.float32)
            self._num_seen[:] = 0
        if epoch != self._epoch:
            self._epoch, self.sums = epoch, torch.zeros(NUM_SUMS, dtype=torch.float64, device=rows.device)
        node_id, first = np.unique(np.concatenate([listed.node_id for listed in messages.send_rows]), return_index=True)
        _, place, at = np.intersect1d(self._node_id, node_id, assume_unique=True, return_indices=True)
        if not len(place):
            return
        now = rows.detach()[torch.from_numpy(messages.send_index[first[at]].astype(np.int64)).to(rows.device)].float()
        where = torch.from_numpy(place).to(rows.device)
        is_known = torch.from_numpy(self._num_seen[place] >= EPOCHS_BACK).to(rows.device)
        once, twice = (square_sums(now - table[where])[is_known] for table in self._earlier)
        self.sums = self.sums + torch.stack([square_sums(now)[is_known].sum(), once.sum(), twice.sum(),
                                             (twice - once).square().sum()])
        self._earlier[1, where] = self._earlier[0, where]
        self._earlier[0, where] = now
        self._num_seen[place] += 1

    @property
    def num_bytes(self) -> int:
        return 0 if self._earlier is None else self._earlier.nbytes

    def state(self) -> State:
        if self._earlier is None:
            return {}
        return {"epoch": self._epoch, "num_seen": self._num_seen, "sums": on_host(self.sums),
                **{f"rows-{age}": on_host(table) for age, table in enumerate(self._earlier)}}

    def restore(self, state: State, device: torch.device) -> None:
        if not state:
            return
        if len(state["num_seen"]) != len(self._node_id):
            raise KernelError(f"{len(state['num_seen'])} rows were sampled where {len(self._node_id)} are")
        self._earlier = torch.stack([table_of(state[f"rows-{age}"], device) for age in range(EPOCHS_BACK)])
        self._num_seen, self._epoch = np.array(state["num_seen"], np.int64), int(state["epoch"])
        self.sums = torch.from_numpy(np.array(state["sums"], np.float64)).to(device)


class MessagesInSteps(KeptMessages):
    """The messages of one exchange; the last step's messages stay readable while the next step's travel."""

    def __init__(self, sender: Sender, purpose: int, predicts: bool):
        table = None
        if predicts:
            table = PredictedRows(*(ReconstructionInPlaces(Places(_lists(sender, is_sent, purpose)))
                                    for is_sent in (True, False)))
        super().__init__(sender, purpose, table)
        self.moved = MovementInSteps(_lists(sender, True, purpose))

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self.moved.num_bytes

    def state(self) -> State:
        """Return what is kept, without messages: their rows were written to the history."""
        return {"table": {} if self.table is None else self.table.state(), "movement": self.moved.state()}

    def restore(self, state: State, device: torch.device) -> None:
        self.moved.restore(state["movement"], device)
        if self.table is not None:
            self.table.restore(state["table"], device)


class KeptInSteps(RememberingKind[MessagesInSteps]):
    """`Kept` in steps: send the step's rows; where an epoch is asynchronous, the next step reads them.

    `max_age` and `smoothing` are for whoever writes arrived rows to the history.
    """

    def __init__(self, max_age: int, smoothing: float, predicts: bool, picks: bool = False):
        super().__init__()
        self.max_age, self.smoothing, self._predicts, self._picks = max_age, smoothing, predicts, picks
        self._plan: EpochPlan | None = None

    def in_steps(self) -> KeptInSteps:
        return self

    def begin_epoch(self, plan: EpochPlan) -> None:
        if self.max_age == 0:
            super().begin_epoch(plan)
        self._plan = plan

    def reads_stale(self, layer: int, purpose: int) -> bool:
        return self._plan is not None and self._plan.reads_stale(layer, purpose)

    def movements(self) -> dict[tuple[int, int], torch.Tensor]:
        if self.max_age == 0 and not self._picks:
            return {}
        sums: dict[tuple[int, int], torch.Tensor] = {}
        for (layer, purpose, _), kept in self._kept.items():
            sums[layer, purpose] = sums.get((layer, purpose), 0) + kept.moved.sums
        return sums

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        kept, key = self._at(sender, outgoing.place), outgoing.key
        if self._plan is not None and self._plan.is_measured:
            kept.moved.note(outgoing.rows, outgoing.messages, key.epoch)
        table = None if self._picks and not self._plan.differs(*outgoing.place[:2]) else kept.table
        encoding = encode if table is None else partial(encode_difference, sent=table.sent)
        kept.last = sender.send(outgoing, kept.next_arena(), encoding, is_open=self.reads_stale(*outgoing.place[:2]))
        kept.last.table = table
        return kept.last

    def _new(self, sender: Sender, purpose: int) -> MessagesInSteps:
        return MessagesInSteps(sender, purpose, self._predicts)


class LastGradients(ReceivedTable):
    """The gradients that each peer last sent, by place; a peer that skips a step is read here."""

    def __init__(self, lists: Sequence[RowList]):
        self._places = Places(lists)
        self._rows: torch.Tensor | None = None
        self._listed: tuple[RowList, ...] = ()

    def expect(self, listed: tuple[RowList, ...], dim: int, device: torch.device) -> None:
        """Note the rows of this step, of all peers; those that send now and those that do not."""
        if self._rows is None:
            self._rows = keep_long(empty((len(self._places), dim), torch.float32, device)).zero_()
        self._listed = listed

    def apply(self, arrival: Arrival) -> None:
        for place, listed, layout in arrival.messages.received:
            rows = empty((len(listed), layout.dim), torch.float32, arrival.device)
            order = np.arange(len(listed), dtype=np.int32)
            dequantize_rows(arrival.receive[place], order, listed.node_id, layout, rows, key=arrival.keys[place])
            alone = [listed if other == place else NO_ROWS for other in range(len(self._listed))]
            self._rows[torch.from_numpy(self._places.of(alone)).to(rows.device)] = rows

    def place(self, messages: Messages, rows: torch.Tensor, accumulate: bool) -> None:
        at = torch.from_numpy(self._places.of(self._listed)).to(rows.device)
        index = np.concatenate([listed.index for listed in self._listed])
        rows.index_add_(0, on_device(index, rows).long(), self._rows[at].to(rows.dtype))

    @property
    def num_bytes(self) -> int:
        return 0 if self._rows is None else self._rows.nbytes

    @property
    def num_rows(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def state(self) -> State:
        return {} if self._rows is None else {"rows": on_host(self._rows)}

    def restore(self, state: State, device: torch.device) -> None:
        if not state:
            return
        if len(state["rows"]) != len(self._places):
            raise KernelError(f"{len(state['rows'])} gradients were kept where {len(self._places)} can arrive")
        self._rows = table_of(state["rows"], device)


class BroadcasterInSteps(Stateful):
    """One exchange of one rank: the rows that it last sent and when, and when the rows that it reads arrived."""

    def __init__(self, sender: Sender, purpose: int):
        self.sent, self.received = (Places(_lists(sender, is_sent, purpose)) for is_sent in (True, False))
        self.gradients = LastGradients(_lists(sender, False, purpose)) if purpose == BACKWARD else None
        self.arena = MessageArena(sender.transport)
        self._last: torch.Tensor | None = None
        self._sent_epoch = np.full(len(self.sent), NEVER)
        self._arrived_epoch = np.full(len(self.received), NEVER)

    def has_moved(self, messages: Messages, rows: torch.Tensor, change: float, staleness: int, epoch: int) -> bool:
        """Whether this step's rows are sent; if so, note it. `change` and `staleness` as in `Broadcaster`."""
        place = self.sent.of(messages.send_rows)
        if not len(place):
            return False
        at = torch.from_numpy(place).to(rows.device)
        leaving = rows.detach()[on_device(messages.send_index, rows).long()].float()
        if self._last is None or self._last.shape[1] != leaving.shape[1]:
            self._last = empty((len(self.sent), leaving.shape[1]), torch.float32, rows.device).zero_()
            self._sent_epoch[:] = NEVER
        last = self._last[at]
        is_old = epoch - int(self._sent_epoch[place].min()) > staleness
        if not is_old and not bool((leaving - last).norm() > change * last.norm()):
            return False
        self._last[at], self._sent_epoch[place] = leaving, epoch
        return True

    def age(self, messages: Messages, sends: np.ndarray, epoch: int) -> int:
        """Note which peers send, (num_peers,) bool; return how many epochs old the oldest row of this step is."""
        arriving = [listed if does else NO_ROWS for listed, does in zip(messages.receive_rows, sends, strict=True)]
        self._arrived_epoch[self.received.of(arriving)] = epoch
        return int((epoch - self._arrived_epoch[self.received.of(messages.receive_rows)]).max(initial=0))

    @property
    def num_bytes(self) -> int:
        rows = 0 if self._last is None else self._last.nbytes
        return self.arena.num_bytes + rows + (0 if self.gradients is None else self.gradients.num_bytes)

    def state(self) -> State:
        return {"sent_epoch": self._sent_epoch, "arrived_epoch": self._arrived_epoch,
                "last": {} if self._last is None else {"rows": on_host(self._last)},
                "gradients": {} if self.gradients is None else self.gradients.state()}

    def restore(self, state: State, device: torch.device) -> None:
        for name, epoch in (("sent_epoch", self._sent_epoch), ("arrived_epoch", self._arrived_epoch)):
            if state[name].shape != epoch.shape:
                raise KernelError(f"{name} has {len(state[name])} rows where messages have {len(epoch)}")
            epoch[:] = state[name]
        if state["last"]:
            self._last = table_of(state["last"]["rows"], device)
        if self.gradients is not None:
            self.gradients.restore(state["gradients"], device)


class SkippedInSteps(RememberingKind[BroadcasterInSteps]):
    """`Skipped` in steps: a rank sends the rows of a step if they have moved or one of them has grown too old.

    Rows of a rank that does not send are read as they last were, and so are its gradients.
    """

    may_skip = True

    def __init__(self, change: float, staleness: int):
        super().__init__()
        self._change, self._staleness = change, staleness

    def in_steps(self) -> SkippedInSteps:
        return self

    def start(self, sender: Sender, outgoing: Outgoing, site: ExchangeSite) -> Arrival:
        messages, epoch = outgoing.messages, outgoing.key.epoch
        broadcaster = self._at(sender, outgoing.place)
        does_send = broadcaster.has_moved(messages, outgoing.rows, self._change, self._staleness, epoch)
        sends = swap_rows(sender.comm, messages.peers, np.full(len(messages.peers), does_send, np.uint8)) > 0
        age = broadcaster.age(messages, sends, epoch)
        arrival = sender.send(replace(outgoing, messages=_from(messages, sends)), broadcaster.arena, sends=sends)
        arrival.age, arrival.max_age = age, self._staleness
        if broadcaster.gradients is not None:
            broadcaster.gradients.expect(messages.receive_rows, messages.dim, outgoing.rows.device)
            arrival.table = broadcaster.gradients
        return arrival

    def _new(self, sender: Sender, purpose: int) -> BroadcasterInSteps:
        return BroadcasterInSteps(sender, purpose)


def _from(messages: Messages, sends: np.ndarray) -> Messages:
    """The messages, received only from peers that send."""
    nothing = MessageLayout.build(np.empty(0, np.uint8), messages.dim)
    received = [(rows, layout) if does else (NO_ROWS, nothing)
                for rows, layout, does in zip(messages.receive_rows, messages.receive_layouts, sends, strict=True)]
    return replace(messages, receive_rows=tuple(rows for rows, _ in received),
                   receive_layouts=tuple(layout for _, layout in received), rounds={})
