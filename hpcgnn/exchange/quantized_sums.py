"""QuantizedSums: sums a long vector, such as all gradients, over the ranks, while its values travel as codes.

Each rank owns one share of the vector. Round 1: every rank sends each owner codes of its share, and the owner sums
them. Round 2: every owner sends codes of its sums to all. So a rank sends two codes per value for any number of ranks,
and all ranks decode the same bytes, so the sums are equal to the bit. Codes are rounded stochastically: the expectation
is the exact sum.
"""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

COLUMNS = 256     # values that share a zero point and a step


class QuantizedSums:
    """Sum vectors in 8 or 16 bits per value.

    Reference: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS
    2017. Deviation: each row of COLUMNS values is quantized between its smallest and largest value.
    """

    def __init__(self, comm: MPI.Comm, bits: int):
        self._comm, self._bits = comm, bits
        self._layout: MessageLayout | None = None

    def sum(self, values: torch.Tensor, key: CounterKey) -> int:
        """Collective: replace (n,) float32 host values by approximate sums over all ranks; return the bytes sent.

        `key` is the same on all ranks. Raises KernelError if a value is NaN, infinite or above 1.6e38.
        """
        comm, rank, size = self._comm, self._comm.rank, self._comm.size
        share = -(-len(values) // (COLUMNS * size))      # rows
        layout = self._layout_of(share)
        table = torch.zeros(size * share, COLUMNS)
        table.view(-1)[:len(values)] = values
        shares = table.view(size, share, COLUMNS)
        sent, received = np.zeros((2, size, layout.num_bytes), np.uint8)
        rows, key = np.arange(share, dtype=np.int32), key._replace(part=rank)
        for peer in range(size):
            if peer != rank:
                quantize_rows(shares[peer], rows, _ids(peer, share), layout, key, sent[peer])
        # Round 1: codes of each share to its owner, which adds them up.
        comm.Alltoall(sent, received)
        for peer in range(size):
            if peer != rank:
                dequantize_rows(received[peer], rows, _ids(rank, share), layout, shares[rank], True,
                                key._replace(part=peer))
        # Round 2: codes of the sums to all ranks; the owner decodes its own codes too.
        quantize_rows(shares[rank], rows, _ids(size + rank, share), layout, key, sent[rank])
        comm.Allgather(sent[rank], received)
        for peer in range(size):
            dequantize_rows(received[peer], rows, _ids(size + peer, share), layout, shares[peer], False,
                            key._replace(part=peer))
        values.copy_(table.view(-1)[:len(values)])
        return self.num_bytes(len(values))

    def num_bytes(self, num_values: int) -> int:
        """Bytes that this rank sends for a sum."""
        size = self._comm.size
        return 2 * (size - 1) * self._layout_of(-(-num_values // (COLUMNS * size))).num_bytes

    def _layout_of(self, share: int) -> MessageLayout:
        if self._layout is None or self._layout.num_rows != share:
            self._layout = MessageLayout.build(np.full(share, self._bits, np.uint8), COLUMNS)
        return self._layout


def _ids(number: int, share: int) -> np.ndarray:
    # Row ids differ between shares and rounds, so that all are rounded independently.
    return np.arange(number * share, (number + 1) * share)
