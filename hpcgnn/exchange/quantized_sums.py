"""QuantizedSums: sums a long vector, such as all gradients, over the ranks, while its values travel as codes.

The vector is cut into shares, one per owner; with few values not every rank owns one. Round 1: every rank sends each
owner codes of its share, and the owner sums them. Round 2: every owner sends codes of its sums to all. So a rank sends
two codes per value for any number of ranks, and all ranks decode the same bytes, so the sums are equal to the bit.

Error feedback: what a code lacked is kept and added to the same values before the next sum. So over many steps nothing
is lost, however few bits there are. Example with two ranks at 1 bit: a rank has 0.3 to send and the code says 1.0; it
keeps -0.7, and next time sends its new value minus 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.codec import NAN_BYTE
from hpcgnn.exchange.state import State, fill, on_host, table_of
from hpcgnn.exchange.transfer import HOST, Transport
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import Buffer, MessageLayout, dequantize_rows, quantize_rows

COLUMNS = 256     # values that share parameters of a code
LARGEST = 1e38     # a code takes values up to 1.6e38
MOST_ROTATED = 4     # bits; the range of more bits hardly matters, and a rotation takes time
Counts = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Codes:
    """Rows of a table, the ids by which they are rounded, and the layout of their codes."""

    index: np.ndarray
    ids: np.ndarray
    layout: MessageLayout

    def encode(self, rows: torch.Tensor, key: CounterKey, transport: Transport) -> np.ndarray:
        """The bytes of the rows, on the host; bytes of NaN if any row of the table has no code."""
        if not _have_codes(rows):
            return np.full(self.layout.num_bytes, NAN_BYTE, np.uint8)
        message = transport.empty(self.layout.num_bytes)
        if len(self.index):
            quantize_rows(rows, self.index, self.ids, self.layout, key, message)
        return message if transport is HOST else on_host(message)

    def decode(self, sent: np.ndarray, rows: torch.Tensor, key: CounterKey, transport: Transport) -> None:
        if len(self.index):
            message: Buffer = sent
            if transport is not HOST:
                message = transport.empty(self.layout.num_bytes)
                fill(message, sent)
            dequantize_rows(message, self.index, self.ids, self.layout, rows, False, key)


@dataclass(frozen=True)
class Shares:
    """How a vector of num_values is cut into shares of `num_rows` rows of COLUMNS values; the last values are 0."""

    num_values: int
    bits: int
    rank: int
    num_ranks: int

    @cached_property
    def num_rows(self) -> int:
        return -(-self.num_values // (COLUMNS * self.num_ranks))

    @cached_property
    def num_owners(self) -> int:
        """The first ranks own a share each."""
        return -(-self.num_values // (COLUMNS * self.num_rows))

    @cached_property
    def is_owner(self) -> bool:
        return self.rank < self.num_owners

    @cached_property
    def own(self) -> slice:
        """This rank's share, among the rows of all."""
        return slice(self.rank * self.num_rows, (self.rank + 1) * self.num_rows)

    @cached_property
    def others(self) -> np.ndarray:
        return np.delete(np.arange(self.num_ranks), self.rank)

    @cached_property
    def to_owners(self) -> Codes:
        owners = self.others[self.others < self.num_owners]
        return self._codes(owners, self.rank, owners)

    @cached_property
    def from_others(self) -> Codes:
        """Of a table of this rank's share as all other ranks send it."""
        return self._codes(np.arange(self.num_ranks - 1), self.others, self.rank)

    @cached_property
    def of_own_sums(self) -> Codes:
        """Of a table of this rank's share."""
        return self._codes(np.zeros(1, np.int64), self.num_ranks, self.rank)

    @cached_property
    def of_all_sums(self) -> Codes:
        owners = np.arange(self.num_owners)
        return self._codes(owners, self.num_ranks, owners)

    @cached_property
    def layout(self) -> MessageLayout:
        """Layout of the codes of one share."""
        return MessageLayout.build(np.full(self.num_rows, self.bits, np.uint8), COLUMNS,
                                   "rotated" if self.bits <= MOST_ROTATED else "affine")

    def _codes(self, places: np.ndarray, senders: np.ndarray | int, shares: np.ndarray | int) -> Codes:
        """Codes of the shares at these places of a table. Their ids differ between senders, num_ranks for sums, and
        shares; the codes of one share follow those of another.
        """
        rows, one = np.arange(self.num_rows), self.layout
        place = np.broadcast_to(np.asarray(senders, np.int64) * self.num_owners + shares, len(places))
        first = np.arange(len(places))[:, None] * one.num_bytes
        layout = replace(one, bit_width=np.tile(one.bit_width, len(places)),
                         payload_offset=(first + one.payload_offset).ravel(),
                         parameter_offset=(first + one.parameter_offset).ravel(),
                         payload_bytes=len(places) * one.payload_bytes,
                         parameter_bytes=len(places) * one.parameter_bytes)
        return Codes((places[:, None] * self.num_rows + rows).ravel().astype(np.int32),
                     (place[:, None] * self.num_rows + rows).ravel(), layout)

    @cached_property
    def other_owners(self) -> Counts:
        """For MPI: the bytes of a share for each other rank that owns one, and where they begin."""
        return self._counts((self._ranks < self.num_owners) & (self._ranks != self.rank))

    @cached_property
    def other_senders(self) -> Counts:
        """The same for each other rank, if this one owns a share."""
        return self._counts(self.is_owner & (self._ranks != self.rank))

    @cached_property
    def owners(self) -> Counts:
        return self._counts(self._ranks < self.num_owners)

    @property
    def _ranks(self) -> np.ndarray:
        return np.arange(self.num_ranks)

    def _counts(self, are_there: np.ndarray) -> Counts:
        found = self.layout.num_bytes * are_there
        return found.tolist(), (np.cumsum(found) - found).tolist()

    @cached_property
    def sent_bytes(self) -> int:
        """In round 1 a rank sends one share to each owner, in round 2 an owner its share to each rank."""
        return (self.num_owners - self.is_owner + (self.num_ranks - 1) * self.is_owner) * self.layout.num_bytes


class QuantizedSums:
    """Sum vectors in 1 to 16 bits per value.

    comm : MPI communicator
    bits : int, one of 1, 2, 4, 8, 16
    transport : Transport      of the device that holds the vectors; their codes pass through the host

    Reference: two rounds of codes with error feedback in both: Tang et al., "DoubleSqueeze", ICML 2019. Rows of COLUMNS
    values have affine codes, and rotated codes at 4 bits and fewer, see `quantize_rows`. Deviation: codes are rounded
    stochastically and are not biased.
    """

    def __init__(self, comm: MPI.Comm, bits: int, transport: Transport = HOST):
        self._comm, self._bits, self._transport = comm, bits, transport
        self._shares: Shares | None = None
        # (num_owners * num_rows, COLUMNS): what the last codes lacked; in this rank's own share, the codes of its sums.
        self._unsent: torch.Tensor | None = None

    def sum(self, values: torch.Tensor, key: CounterKey, scale: float = 1.0) -> int:
        """Collective: replace (n,) float32 values by approximate sums over all ranks; return the bytes sent.

        `key` is the same on all ranks. `scale`, a power of two, is what the values have been multiplied by: it may be
        another one in the next sum. Values that are NaN, infinite or above LARGEST on any rank make sums NaN on all
        ranks, and what earlier codes lacked is kept for the next sum.
        """
        if not len(values):
            return 0
        shares = self._cut(len(values))
        rows = values.new_zeros(shares.num_owners * shares.num_rows, COLUMNS)
        torch.mul(values, 1 / scale, out=rows.view(-1)[:len(values)])
        if self._unsent is not None:
            rows += self._unsent.to(rows.device)      # a checkpoint's is on the host
        decoded, sums = self._to_owners(shares, rows, key)
        found = self._to_all(shares, sums, rows, key)
        if _have_codes(found):     # on all ranks alike: they decode the same bytes
            self._unsent = torch.sub(rows, decoded, out=decoded)
            if sums is not None:
                torch.sub(sums, found[shares.own], out=self._unsent[shares.own])
        torch.mul(found.view(-1)[:len(values)], scale, out=values)
        return shares.sent_bytes

    def _to_owners(self, shares: Shares, rows: torch.Tensor,
                   key: CounterKey) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Collective, round 1: return the rows as others decode them, and the sums of this rank's share, if it has one.
        """
        sent = shares.to_owners.encode(rows, key, self._transport)
        received = np.empty((shares.num_ranks - 1) * shares.is_owner * shares.layout.num_bytes, np.uint8)
        self._comm.Alltoallv((sent, shares.other_owners, MPI.BYTE), (received, shares.other_senders, MPI.BYTE))
        decoded = rows.clone()      # the rank's own share is not coded
        shares.to_owners.decode(sent, decoded, key, self._transport)
        if not shares.is_owner:
            return decoded, None
        # All ranks' codes are decoded at once, then summed in rank order.
        table = rows.new_empty(shares.num_ranks - 1, shares.num_rows, COLUMNS)
        shares.from_others.decode(received, table.view(-1, COLUMNS), key, self._transport)
        return decoded, table.sum(0) + rows[shares.own]

    def _to_all(self, shares: Shares, sums: torch.Tensor | None, rows: torch.Tensor, key: CounterKey) -> torch.Tensor:
        """Collective, round 2: send the sums of this rank's share to all; return all sums, as all ranks decode them."""
        sent = np.empty(0, np.uint8) if sums is None else shares.of_own_sums.encode(sums, key, self._transport)
        received = np.empty(shares.num_owners * shares.layout.num_bytes, np.uint8)
        self._comm.Allgatherv((sent, MPI.BYTE), (received, shares.owners, MPI.BYTE))
        found = torch.empty_like(rows)
        shares.of_all_sums.decode(received, found, key, self._transport)
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept between sums."""
        return 0 if self._unsent is None else self._unsent.nbytes

    def sent_bytes(self, num_values: int) -> int:
        """Bytes that this rank sends for a sum of `num_values`."""
        return self._shares_of(num_values).sent_bytes if num_values else 0

    def _shares_of(self, num_values: int) -> Shares:
        if self._shares is not None and num_values == self._shares.num_values:
            return self._shares
        return Shares(num_values, self._bits, self._comm.rank, self._comm.size)

    def _cut(self, num_values: int) -> Shares:
        """The shares of a vector; one of another length than the last begins without anything unsent."""
        shares = self._shares_of(num_values)
        if shares is not self._shares:
            self._shares, self._unsent = shares, None
        return shares

    def forget(self) -> None:
        """Discard what the last codes lacked."""
        self._unsent = None

    def state(self) -> State:
        """What the last codes lacked, if there was a sum."""
        if self._unsent is None:
            return {}
        return {"unsent": self._unsent.cpu().numpy(), "num_values": self._shares.num_values}

    def restore(self, state: State) -> None:
        """Continue from `state`; KernelError if it does not fit."""
        self.forget()
        if not state:
            return
        shares = self._cut(int(state["num_values"]))
        expected = shares.num_owners * shares.num_rows, COLUMNS
        if state["unsent"].shape != expected or state["unsent"].dtype != np.float32:
            raise KernelError(f"what codes of sums lacked is {state['unsent'].shape}, expected {expected}")
        self._unsent = table_of(state["unsent"], torch.device("cpu"))


def _have_codes(rows: torch.Tensor) -> bool:
    """Whether no value is NaN, infinite or above LARGEST."""
    low, high = torch.aminmax(rows)     # NaN if any value is
    return bool((low >= -LARGEST) & (high <= LARGEST))
