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
from itertools import accumulate

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.state import State
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

COLUMNS = 256     # values that share parameters of a code
MOST_ROTATED = 4     # bits; the range of more bits hardly matters, and a rotation takes time


@dataclass(frozen=True)
class Shares:
    """How a vector of num_values is cut into shares of `num_rows` rows of COLUMNS values, the last ones padded."""

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
    def layout(self) -> MessageLayout:
        """Layout of the codes of one share."""
        return MessageLayout.build(np.full(self.num_rows, self.bits, np.uint8), COLUMNS,
                                   "rotated" if self.bits <= MOST_ROTATED else "affine")

    def layout_of(self, number: int) -> MessageLayout:
        """Layout of the codes of `number` shares, one after the other."""
        one, first = self.layout, np.arange(number)[:, None] * self.layout.num_bytes
        return replace(one, bit_width=np.tile(one.bit_width, number),
                       payload_offset=(first + one.payload_offset).ravel(),
                       parameter_offset=(first + one.parameter_offset).ravel(),
                       payload_bytes=number * one.payload_bytes, parameter_bytes=number * one.parameter_bytes)

    @property
    def is_owner(self) -> bool:
        return self.rank < self.num_owners

    @cached_property
    def num_sent(self) -> int:
        """Shares that this rank sends in a sum: in round 1 one to each owner, in round 2 its own to each rank."""
        return self.num_owners - self.is_owner + (self.num_ranks - 1) * self.is_owner

    def rows_of(self, shares: np.ndarray) -> np.ndarray:
        """Rows of some shares in a table of shares, int32."""
        return (shares[:, None] * self.num_rows + np.arange(self.num_rows)).ravel().astype(np.int32)

    def ids(self, senders: np.ndarray | int, shares: np.ndarray | int) -> np.ndarray:
        """Ids by which rows are rounded: they differ between senders and shares. In round 2 the sender is num_ranks."""
        place = np.asarray(senders, np.int64) * self.num_owners + np.asarray(shares, np.int64)
        return (np.atleast_1d(place)[:, None] * self.num_rows + np.arange(self.num_rows)).ravel()


class QuantizedSums:
    """Sum vectors in 1 to 16 bits per value.

    comm : MPI communicator
    bits : int, one of 1, 2, 4, 8, 16

    Reference: two rounds of codes with error feedback in both: Tang et al., "DoubleSqueeze", ICML 2019. Rows of COLUMNS
    values have affine codes, and rotated codes at 4 bits and fewer, see `quantize_rows`. Deviation: codes are rounded
    stochastically and are not biased.
    """

    def __init__(self, comm: MPI.Comm, bits: int):
        self._comm, self._bits = comm, bits
        self._shares: Shares | None = None
        # (num_owners * num_rows, COLUMNS): what the last codes lacked. In this rank's own share, those of its sums.
        self._unsent: torch.Tensor | None = None

    def sum(self, values: torch.Tensor, key: CounterKey) -> int:
        """Collective: replace (n,) float32 host values by approximate sums over all ranks; return the bytes sent.

        `key` is the same on all ranks. Raises KernelError if a value is NaN, infinite or above 1.6e38.
        """
        if not len(values):
            return 0
        shares = self._cut(len(values))
        rows = torch.zeros(shares.num_owners * shares.num_rows, COLUMNS)
        rows.view(-1)[:len(values)] = values
        if self._unsent is not None:
            rows += self._unsent
        arrived, unsent = self._send_to_owners(rows, key)
        found = self._send_sums(arrived, key)
        if shares.is_owner:
            own = self._own_rows
            unsent[own] = arrived - found[own]
        self._unsent = unsent
        values.copy_(found.view(-1)[:len(values)])
        return self.sent_bytes(len(values))

    def _send_to_owners(self, rows: torch.Tensor, key: CounterKey) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Collective, round 1: return the sums of this rank's share, if it owns one, and what the sent codes lacked."""
        shares, size, rank = self._cut(), self._comm.size, self._comm.rank
        owners = np.arange(shares.num_owners)
        owners = owners[owners != rank]
        index, ids = shares.rows_of(owners), shares.ids(rank, owners)
        layout, one = shares.layout_of(len(owners)), shares.layout.num_bytes
        sent, received = np.zeros(layout.num_bytes, np.uint8), np.zeros((size - 1) * shares.is_owner * one, np.uint8)
        if len(owners):
            quantize_rows(rows, index, ids, layout, key, sent)
        to_send = [one * (peer < shares.num_owners and peer != rank) for peer in range(size)]
        to_receive = [one * (shares.is_owner and peer != rank) for peer in range(size)]
        self._comm.Alltoallv((sent, (to_send, _starts(to_send)), MPI.BYTE),
                             (received, (to_receive, _starts(to_receive)), MPI.BYTE))
        decoded = rows.clone()      # in this rank's own share there is nothing that a code lacks
        if len(owners):
            dequantize_rows(sent, index, ids, layout, decoded, False, key)
        if not shares.is_owner:
            return None, rows - decoded
        # The codes of all other ranks are decoded at once, then summed in rank order.
        others = np.delete(np.arange(size), rank)
        table = torch.empty(size - 1, shares.num_rows, COLUMNS)
        dequantize_rows(received, np.arange((size - 1) * shares.num_rows, dtype=np.int32), shares.ids(others, rank),
                        shares.layout_of(size - 1), table.view(-1, COLUMNS), False, key)
        return table.sum(0) + rows[self._own_rows], rows - decoded

    def _send_sums(self, arrived: torch.Tensor | None, key: CounterKey) -> torch.Tensor:
        """Collective, round 2: send this rank's sums to all; return all sums, as all ranks decode them."""
        shares, size, rank = self._cut(), self._comm.size, self._comm.rank
        one, owners = shares.layout.num_bytes, np.arange(shares.num_owners)
        sent, received = np.zeros(one * shares.is_owner, np.uint8), np.zeros(shares.num_owners * one, np.uint8)
        if arrived is not None:
            quantize_rows(arrived, np.arange(shares.num_rows, dtype=np.int32), shares.ids(size, rank), shares.layout,
                          key, sent)
        to_receive = [one * (peer < shares.num_owners) for peer in range(size)]
        self._comm.Allgatherv((sent, MPI.BYTE), (received, (to_receive, _starts(to_receive)), MPI.BYTE))
        found = torch.empty(shares.num_owners * shares.num_rows, COLUMNS)
        dequantize_rows(received, np.arange(len(found), dtype=np.int32), shares.ids(size, owners),
                        shares.layout_of(shares.num_owners), found, False, key)
        return found

    @property
    def _own_rows(self) -> slice:
        rows = self._cut().num_rows
        return slice(self._comm.rank * rows, (self._comm.rank + 1) * rows)

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept between sums."""
        return 0 if self._unsent is None else self._unsent.nbytes

    def sent_bytes(self, num_values: int) -> int:
        """Bytes that this rank sends for a sum of `num_values`."""
        if num_values == 0:
            return 0
        shares = Shares(num_values, self._bits, self._comm.rank, self._comm.size)
        return shares.num_sent * shares.layout.num_bytes

    def _cut(self, num_values: int | None = None) -> Shares:
        """The shares of a vector; of the last one by default. Another length begins without errors."""
        if self._shares is None or num_values not in (None, self._shares.num_values):
            self._shares, self._unsent = Shares(num_values, self._bits, self._comm.rank, self._comm.size), None
        return self._shares

    def forget(self) -> None:
        """Discard what the last codes lacked."""
        self._unsent = None

    def state(self) -> State:
        return {} if self._unsent is None else {"unsent": self._unsent.numpy(), "num_values": self._shares.num_values}

    def restore(self, state: State) -> None:
        """Continue from `state`; KernelError if it does not fit."""
        self.forget()
        if not state:
            return
        shares = self._cut(int(state["num_values"]))
        expected = shares.num_owners * shares.num_rows, COLUMNS
        if state["unsent"].shape != expected or state["unsent"].dtype != np.float32:
            raise KernelError(f"what codes of sums lacked is {state['unsent'].shape}, expected {expected}")
        self._unsent = torch.from_numpy(state["unsent"].copy())


def _starts(counts: list[int]) -> list[int]:
    return [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
