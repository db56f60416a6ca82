"""CodeExchange: sends codes of boundary rows to the ranks that need them, packed at their own width and exact.

One message per peer holds its rows in the order of the ExchangePlan and nothing else, since both sides know width and
size. Example: 2 rows of 8 codes at 3 bits are 6 bytes: code 0 takes the lowest 3 bits of byte 0, code 1 the next 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from hpcgnn.errors import KernelError
from hpcgnn.exchange.codec import MessageArena
from hpcgnn.exchange.plan import ExchangePlan, RowList
from hpcgnn.exchange.traffic import Traffic
from hpcgnn.exchange.transfer import MAX_TAG, HostDelivery, Transfer
from hpcgnn.ops.integer_layers import MappedRows

TOGETHER = 8               # eight codes fill whole bytes at every width
BLOCK_CODES = 1 << 20      # codes packed at a time, a multiple of TOGETHER


class CodeExchange:
    """Exchanges of one rank, one at a time; counts bytes handed to MPI, and bytes of the same rows in float32."""

    def __init__(self, comm: MPI.Comm, plan: ExchangePlan):
        self._comm, self._plan = comm, plan
        self._arena, self._traffic = MessageArena(), Traffic()
        self._num_exchanges = 0
        self.sent_bytes = self.float_bytes = 0

    @property
    def num_halo(self) -> int:
        return self._plan.num_halo

    @property
    def boundary(self) -> tuple[RowList, ...]:
        return self._plan.boundary

    @property
    def halo(self) -> tuple[RowList, ...]:
        return self._plan.halo

    @property
    def blocked_seconds(self) -> float:
        return self._traffic.blocked_seconds

    def start(self, codes: np.ndarray | MappedRows, bit_width: int) -> CodeArrival:
        """Collective: start to fetch the codes of halo rows; `codes`, (num_inner or more, dim) int8, fit `bit_width`.

        MappedRows that fill their bytes at that width are sent as they are.
        """
        dim, plan = codes.shape[1], self._plan
        sizes = (tuple(packed_bytes(len(rows) * dim, bit_width) for rows in lists)
                 for lists in (plan.boundary, plan.halo))
        send, receive = self._arena.slices(*sizes)
        whole = codes.table if isinstance(codes, MappedRows) and codes.fills(bit_width) else None
        for rows, message in zip(plan.boundary, send, strict=True):
            if len(rows) and whole is not None:
                np.take(whole, rows.index, axis=0, out=message.reshape(len(rows), -1))
            elif len(rows):
                pack_codes(codes[rows.index], bit_width, message)
        return CodeArrival(plan, self.transfer(send, receive, dim), receive, bit_width, whole is not None)

    def transfer(self, send: list[np.ndarray], receive: list[np.ndarray], dim: int) -> Transfer:
        """Collective: start an exchange of packed messages; boundary rows have `dim` codes."""
        plan = self._plan
        self.sent_bytes += sum(map(len, send))
        self.float_bytes += 4 * dim * sum(map(len, plan.boundary))
        self._num_exchanges += 1
        delivery = HostDelivery(self._comm, plan.peers, send, receive, self._num_exchanges % MAX_TAG)
        return Transfer(delivery, plan.rounds, traffic=self._traffic)


class CodeArrival:
    def __init__(self, plan: ExchangePlan, transfer: Transfer, receive: list[np.ndarray], bit_width: int,
                 is_whole: bool):
        self._plan, self._transfer, self._receive = plan, transfer, receive
        self._bit_width, self._is_whole = bit_width, is_whole

    def poll(self) -> bool:
        return self._transfer.poll()

    def finish(self, halo: np.ndarray) -> None:
        """Wait, and write the codes of halo rows, (num_halo, dim) int8."""
        for first, stop, message in self._messages():
            unpack_codes(message, self._bit_width, halo[first:stop])

    def finish_into(self, mapped: MappedRows, first: int) -> None:
        """Wait, and write the codes of halo rows to `mapped` from row `first` on, in its form."""
        if not self._is_whole:
            halo = np.empty((self._plan.num_halo, mapped.shape[1]), np.int8)
            self.finish(halo)
            mapped.put(first, halo)
            return
        for start, stop, message in self._messages():
            mapped.table[first + start:first + stop] = message.reshape(stop - start, -1)

    def _messages(self) -> Iterator[tuple[int, int, np.ndarray]]:
        self._transfer.wait()
        for rows, message in zip(self._plan.halo, self._receive, strict=True):
            if len(rows):      # a peer's halo rows are contiguous, in the order of its message
                yield int(rows.index[0]), int(rows.index[-1]) + 1, message


def packed_bytes(num_codes: int, bit_width: int) -> int:
    return -(-num_codes * bit_width // 8)


def pack_codes(codes: np.ndarray, bit_width: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the low `bit_width` bits of int8 codes, one after the other, lowest bit first: (packed_bytes,) uint8.

    Codes have magnitudes below 2**(bit_width - 1), bit_width is 2 to 8, and bits after the last code are 0.
    """
    flat = codes.reshape(-1)
    out = np.empty(packed_bytes(flat.size, bit_width), np.uint8) if out is None else out
    for first in range(0, flat.size, BLOCK_CODES):
        block = flat[first:first + BLOCK_CODES].view(np.uint8)
        start = first // 8 * bit_width
        out[start:start + packed_bytes(block.size, bit_width)] = _pack_block(block, bit_width)
    return out


def unpack_codes(packed: np.ndarray, bit_width: int, out: np.ndarray) -> None:
    """Write the codes that `pack_codes` packed to `out`, int8 and contiguous; KernelError for another length."""
    flat = out.reshape(-1)
    if packed.dtype != np.uint8 or len(packed) != packed_bytes(flat.size, bit_width):
        raise KernelError(f"{flat.size} codes of {bit_width} bits take {packed_bytes(flat.size, bit_width)} bytes, "
                          f"found {len(packed)} of {packed.dtype}")
    for first in range(0, flat.size, BLOCK_CODES):
        block, start = flat[first:first + BLOCK_CODES], first // 8 * bit_width
        block[:] = _unpack_block(packed[start:start + packed_bytes(block.size, bit_width)], bit_width, block.size)


def _pack_block(codes: np.ndarray, bit_width: int) -> np.ndarray:
    if bit_width == 8:
        return codes
    fields = np.zeros((-(-codes.size // TOGETHER), TOGETHER), np.uint8)
    fields.reshape(-1)[:codes.size] = codes & (2**bit_width - 1)
    words = np.zeros(len(fields), "<u8")
    for place in range(TOGETHER):
        words |= fields[:, place].astype(np.uint64) << np.uint64(bit_width * place)
    whole = words.view(np.uint8).reshape(-1, 8)[:, :bit_width].reshape(-1)
    return whole[:packed_bytes(codes.size, bit_width)]


def _unpack_block(packed: np.ndarray, bit_width: int, num_codes: int) -> np.ndarray:
    if bit_width == 8:
        return packed.view(np.int8)
    padded = np.zeros(-(-num_codes // TOGETHER) * bit_width, np.uint8)
    padded[:len(packed)] = packed
    words = np.zeros((len(padded) // bit_width, 8), np.uint8)
    words[:, :bit_width] = padded.reshape(-1, bit_width)
    numbers, spare = words.view("<u8").reshape(-1), 8 - bit_width
    fields = np.empty((len(numbers), TOGETHER), np.uint8)
    for place in range(TOGETHER):
        fields[:, place] = numbers >> np.uint64(bit_width * place) & np.uint64(2**bit_width - 1)
    # Shift a field to the top of its byte and back, to extend its sign.
    return ((fields << spare).view(np.int8) >> spare).reshape(-1)[:num_codes]
