"""Codec: from rows of an embedding matrix to the messages of one exchange, and back.

A codec belongs to one exchange plan and one bit plan. For each (layer, purpose, dim) it lays out one message per peer:
the rows in it, and the bytes at which each row's codes and parameters begin. Sender and receiver compute the same
layout, so no layout is sent. `encode` quantizes rows into the buffers of a `MessageArena`, `decode` writes or adds them
at the other side. Example: 3 rows of 8 columns at 2 bits take 6 bytes of codes, plus 4 bytes of zero point and step per
row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch

from hpcgnn.exchange.bits import BitPlan
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import HOST, Transport
from hpcgnn.ops.arena import empty
from hpcgnn.ops.counter import BACKWARD, CounterKey
from hpcgnn.ops.quantization import (
    LARGEST_PARAMETER_WIDTH,
    NO_BAD_ROW,
    Buffer,
    MessageLayout,
    dequantize_rows,
    quantize_rows,
    start_quantizing,
)
from hpcgnn.ops.resident import resident
from hpcgnn.widths import BIT_WIDTHS

ALIGNMENT = 64                 # bytes; each message of an arena begins on a cache line
NOTHING = np.empty(0, np.uint8)
PLANS_KEPT = 4     # bit plans with kept layouts: SYLVIE's base widths return, drawn or solved widths don't
NAN_BYTE = 0xFF    # a row of such bytes is NaN at every width and code, in its bfloat16 parameters or values


Sent = tuple[int, RowList, MessageLayout]


@dataclass(frozen=True)
class Coding:
    """How values are coded, apart from the plan of widths."""

    full_bits: int = 32                    # 32 or 16, bits of values in their storage type
    sum_bits: int = 32                     # 1 to 32, bits of a value in sums of gradients
    rotated: frozenset[int] = frozenset()  # purposes with rotated codes; the others are affine
    least_rotated: int = 1                 # least number of columns for rotated codes
    send_share: float = 1.0                # share of a message's rows that travel; below 1, messages hold differences

    def code(self, purpose: int, dim: int) -> str:
        return "rotated" if purpose in self.rotated and dim >= self.least_rotated else "affine"


UNROTATED = Coding()


class Codec:
    """Lays out the exchanges of one plan under one bit plan."""

    def __init__(self, plan: ExchangePlan, bit_plan: BitPlan, coding: Coding = UNROTATED):
        self._plan, self._bit_plan, self._coding = plan, bit_plan, coding
        self._messages: dict[tuple[int, int, int], Messages] = {}

    def messages(self, layer: int, purpose: int, dim: int) -> Messages:
        """Return the messages of an exchange. Backward, halo rows are sent and boundary rows received."""
        where = layer, purpose, dim
        if where not in self._messages:
            self._messages[where] = self._lay_out(layer, purpose, dim)
        return self._messages[where]

    def _lay_out(self, layer: int, purpose: int, dim: int) -> Messages:
        plan = self._plan
        send, receive = (plan.halo, plan.boundary) if purpose == BACKWARD else (plan.boundary, plan.halo)
        code, share = self._coding.code(purpose, dim), self._coding.send_share

        def layout(rows: RowList, source: int, destination: int) -> MessageLayout:
            whole = MessageLayout.build(self._bit_plan.widths(layer, purpose, source, destination, rows), dim, code)
            if share == 1.0:
                return whole
            from hpcgnn.exchange.thinned import ThinnedLayout

            return ThinnedLayout.of(whole, share)

        return Messages(plan.peers, send, receive,
                        tuple(layout(rows, plan.rank, peer) for peer, rows in zip(plan.peers, send, strict=True)),
                        tuple(layout(rows, peer, plan.rank) for peer, rows in zip(plan.peers, receive, strict=True)),
                        plan.num_halo, dim)


@dataclass(frozen=True)
class Messages:
    """The messages of one exchange: rows and layout per peer, to send and to receive."""

    peers: tuple[int, ...]                              # ascending ranks
    send_rows: tuple[RowList, ...]
    receive_rows: tuple[RowList, ...]
    send_layouts: tuple[MessageLayout, ...]
    receive_layouts: tuple[MessageLayout, ...]
    num_halo: int
    dim: int
    # (destination, source) -> messages of that round only, see `kinds.by_peer`
    rounds: dict[tuple[int, int], Messages] = field(default_factory=dict, repr=False)

    @cached_property
    def sent(self) -> list[Sent]:
        """Each message to send that has rows: the index of its peer, its rows and their layout."""
        return _with_rows(self.send_rows, self.send_layouts)

    @cached_property
    def received(self) -> list[Sent]:
        return _with_rows(self.receive_rows, self.receive_layouts)

    @cached_property
    def send_sizes(self) -> tuple[int, ...]:
        return tuple(layout.num_bytes for layout in self.send_layouts)

    @cached_property
    def receive_sizes(self) -> tuple[int, ...]:
        return tuple(layout.num_bytes for layout in self.receive_layouts)

    @cached_property
    def is_packed(self) -> bool:
        # False without rows: absent halo rows point to the first one, which must exist.
        if any(layout.is_rotated for layout in self.receive_layouts):
            return False
        widths = np.concatenate([layout.bit_width for layout in self.receive_layouts])
        return len(widths) > 0 and bool((widths <= LARGEST_PARAMETER_WIDTH).all())

    @cached_property
    def halo_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bit width, payload and parameter offset of each halo row in the receive buffer, (num_halo,) each."""
        bit_width = np.ones(self.num_halo, np.uint8)
        payload, parameter = np.zeros(self.num_halo, np.int64), np.zeros(self.num_halo, np.int64)
        first_bytes = starts(self.receive_sizes)
        for rows, layout, first in zip(self.receive_rows, self.receive_layouts, first_bytes[:-1], strict=True):
            bit_width[rows.index] = layout.bit_width
            payload[rows.index] = first + layout.payload_offset
            parameter[rows.index] = first + layout.parameter_offset
        return resident(bit_width), resident(payload), resident(parameter)

    def is_table_of(self, bit_width: int) -> bool:
        """Whether the receive buffer is an unpadded table of all halo rows in order, in values of 16 or 32 bits."""
        return bit_width == self._width_of_table

    @cached_property
    def _width_of_table(self) -> int | None:
        place, first_bytes, found = 0, starts(self.receive_sizes), set()
        for rows, layout, first in zip(self.receive_rows, self.receive_layouts, first_bytes[:-1], strict=True):
            if not len(rows):
                continue
            found |= {int(layout.bit_width.min()), int(layout.bit_width.max())}
            is_next = rows.index[0] == place and (np.diff(rows.index) == 1).all()
            if len(found) > 1 or layout.parameter_bytes or not is_next or 8 * first != place * self.dim * min(found):
                return None
            place += len(rows)
        return found.pop() if place == self.num_halo and found else None

    @cached_property
    def send_index(self) -> np.ndarray:
        return resident(np.concatenate([rows.index for rows in self.send_rows]))

    @cached_property
    def send_order(self) -> tuple[np.ndarray, ...]:
        return tuple(resident(np.arange(len(rows), dtype=np.int32)) for rows in self.send_rows)

    @cached_property
    def receive_order(self) -> tuple[np.ndarray, ...]:
        return tuple(resident(np.arange(len(rows), dtype=np.int32)) for rows in self.receive_rows)

    @cached_property
    def width_rows(self) -> np.ndarray:
        """(len(BIT_WIDTHS),) int64, rows sent at each width."""
        widths = np.concatenate([layout.bit_width for layout in self.send_layouts])
        return np.array([(widths == bits).sum() for bits in BIT_WIDTHS], np.int64)

    @cached_property
    def payload_bytes(self) -> int:
        return sum(layout.payload_bytes for layout in self.send_layouts)

    @cached_property
    def parameter_bytes(self) -> int:
        return sum(layout.parameter_bytes for layout in self.send_layouts)

    def count(self, traffic: Traffic, has_new_rows: bool = True) -> None:
        """Add what is sent to the counts; without new rows, it is other columns of rows that were counted."""
        traffic.payload_bytes += self.payload_bytes
        traffic.parameter_bytes += self.parameter_bytes
        traffic.num_values += self.num_values
        if has_new_rows:
            traffic.width_rows += self.width_rows
        for peer, num_bytes in zip(self.peers, self.send_sizes, strict=True):
            if num_bytes:
                traffic.sent_by_peer[peer] = traffic.sent_by_peer.get(peer, 0) + num_bytes

    @cached_property
    def num_values(self) -> int:
        return sum(layout.num_rows * layout.dim for layout in self.send_layouts)


def _with_rows(rows: Sequence[RowList], layouts: Sequence[MessageLayout]) -> list[Sent]:
    return [(place, listed, layout) for place, (listed, layout) in enumerate(zip(rows, layouts, strict=True))
            if len(listed)]


def encode(messages: Messages, rows: torch.Tensor, key: CounterKey, buffers: list[Buffer]) -> torch.Tensor | None:
    """Quantize and pack the rows of every message to send into its buffer.

    Scaled float16 gradients may overflow. Then all values are sent as NaN, and all ranks skip the optimizer step.
    Returns None, or a device's notes on bad rows, to be read through `RowChecks`.
    """
    if isinstance(buffers[0], torch.Tensor):
        return _encode_on_device(messages, rows, key, buffers)
    if _may_overflow(rows, key) and not torch.isfinite(rows).all():
        for buffer in buffers:
            buffer.fill(NAN_BYTE)
        return None
    for place, listed, layout in messages.sent:
        quantize_rows(rows, listed.index, listed.node_id, layout, key, buffers[place])
    return None


def _encode_on_device(messages: Messages, rows: torch.Tensor, key: CounterKey,
                      buffers: list[torch.Tensor]) -> torch.Tensor | None:
    if not messages.sent:      # a rank that is alone starts nothing
        return None
    found = no_bad_rows(messages, rows)
    for place, listed, layout in messages.sent:
        start_quantizing(rows, listed.index, listed.node_id, layout, key, buffers[place], found[place:place + 1])
    if not _may_overflow(rows, key):
        return found
    # The device detects this and overwrites the messages; nothing else can be wrong with them.
    overflows = torch.isfinite(rows).all().logical_not_()
    for buffer in buffers:
        buffer.masked_fill_(overflows, NAN_BYTE)
    return None


def _may_overflow(rows: torch.Tensor, key: CounterKey) -> bool:
    return key.purpose == BACKWARD and rows.dtype == torch.float16


def no_bad_rows(messages: Messages, rows: torch.Tensor) -> torch.Tensor:
    return torch.full((len(messages.send_rows),), NO_BAD_ROW, dtype=torch.int32, device=rows.device)


def decode(messages: Messages, buffers: list[Buffer], keys: Sequence[CounterKey], rows: torch.Tensor,
           accumulate: bool) -> None:
    """Unpack every received message, by its peer's key, into its rows, in rank order, so that sums are reproducible."""
    for place, listed, layout in messages.received:
        dequantize_rows(buffers[place], listed.index, listed.node_id, layout, rows, accumulate, keys[place])


def key_of_sender(key: CounterKey, sender: int) -> CounterKey:
    """Return the key by which `sender` rounds and rotates rows.

    Gradients of one node come from several ranks, and these must round independently, so their keys contain the sender.
    """
    return key._replace(part=sender if key.purpose == BACKWARD else 0)


class Codecs:
    """The codecs of a run; it keeps the codecs of the last PLANS_KEPT bit plans."""

    def __init__(self, coding: Coding):
        self._coding = coding
        self._codecs: OrderedDict[Hashable, dict[Hashable, Codec]] = OrderedDict()

    def find(self, bit_plan: BitPlan, drawn: Hashable, reach: Hashable,
             plan_of: Callable[[], ExchangePlan]) -> Codec:
        """Return the codec of some rows under a bit plan, made on the first call by `plan_of`.

        The travelling rows depend on `drawn`, an epoch's sample, and `reach`, hops to the loss; both are hashable.
        """
        by_reach = self._codecs.setdefault((bit_plan, drawn), {})
        self._codecs.move_to_end((bit_plan, drawn))
        if reach not in by_reach:
            by_reach[reach] = Codec(plan_of(), bit_plan, self._coding)
            if len(self._codecs) > PLANS_KEPT:
                self._codecs.popitem(last=False)
        return by_reach[reach]


class MessageArena:
    """One send and one receive buffer in a transport, reused by exchanges and grown for larger ones.

    With `is_passing`, on the host, each exchange takes new buffers from the arena of large tensors, so that rows reuse
    the memory of messages that were read. A device keeps its buffers, since queued kernels may still read them.
    """

    def __init__(self, transport: Transport = HOST, is_passing: bool = False) -> None:
        self.transport, self.staging = transport, transport.new_staging()
        self.is_passing = is_passing and transport is HOST
        self._send, self.received, self._passed_bytes = transport.empty(0), transport.empty(0), 0

    def slices(self, send_bytes: Sequence[int],
               receive_bytes: Sequence[int]) -> tuple[list[Buffer], list[Buffer]]:
        """Return a writable uint8 view per message, to send and to receive."""
        if self.is_passing:
            self.received = NOTHING     # freed first, so that the new buffer may take its place
        send_starts, receive_starts = starts(tuple(send_bytes)), starts(tuple(receive_bytes))
        send = self._send if len(self._send) >= send_starts[-1] else self._empty(send_starts[-1])
        if len(self.received) < receive_starts[-1]:
            self.received = self._empty(receive_starts[-1])
        if self.is_passing:
            self._passed_bytes = len(send)
        else:
            self._send = send
        return ([send[start:start + size] for start, size in zip(send_starts, send_bytes, strict=False)],
                [self.received[start:start + size] for start, size in zip(receive_starts, receive_bytes, strict=False)])

    def _empty(self, num_bytes: int) -> Buffer:
        return empty((num_bytes,), torch.uint8).numpy() if self.is_passing else self.transport.empty(num_bytes)

    @property
    def num_bytes(self) -> int:
        staged = 0 if self.staging is None else self.staging.num_bytes
        return len(self._send) + self._passed_bytes + len(self.received) + staged


@lru_cache(maxsize=128)
def starts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """First byte of each message in a buffer, and the end of the last one, padding included."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return tuple(found)
