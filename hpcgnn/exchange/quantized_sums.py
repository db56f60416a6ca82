"""QuantizedSums: sums over the ranks of one long vector, such as all gradients, whose values travel as codes.

Which vector that is, and when it is summed, is not known here.
"""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows

COLUMNS = 256     # that share a zero point and a step


class QuantizedSums:
    """Sum vectors in two rounds: each rank sums the codes that all have sent of its share, and sends codes of the sums.

    So a rank sends two codes a value, however many ranks there are. All ranks, also the one that summed, decode the
    same bytes, so they have the same sums, to the bit. Codes are rounded at random, so the expectation is the sum.

    Parameters
    ----------
    comm : MPI communicator
    bits : {8, 16}

    Reference: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding", NeurIPS
    2017. Deviation: steps are of each row of COLUMNS values between its least and largest one.
    """

    def __init__(self, comm: MPI.Comm, bits: int):
        self._comm, self._bits = comm, bits
        self._layout: MessageLayout | None = None

    def sum(self, values: torch.Tensor, key: CounterKey) -> int:
        """Collective: replace float32 values, on the host, by their sums over all ranks, about; return the bytes sent.

        Parameters
        ----------
        values : (n,) float32, contiguous
        key : CounterKey      of the draws, the same on all ranks

        Raises
        ------
        KernelError      a value is NaN, infinite or above 1.6e38
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
        comm.Alltoall(sent, received)
        for peer in range(size):
            if peer != rank:
                dequantize_rows(received[peer], rows, _ids(rank, share), layout, shares[rank], True,
                                key._replace(part=peer))
        quantize_rows(shares[rank], rows, _ids(size + rank, share), layout, key, sent[rank])
        comm.Allgather(sent[rank], received)
        for peer in range(size):
            dequantize_rows(received[peer], rows, _ids(size + peer, share), layout, shares[peer], False,
                            key._replace(part=peer))
        values.copy_(table.view(-1)[:len(values)])
        return 2 * (size - 1) * layout.num_bytes

    def _layout_of(self, share: int) -> MessageLayout:
        if self._layout is None or self._layout.num_rows != share:
            self._layout = MessageLayout.build(np.full(share, self._bits, np.uint8), COLUMNS)
        return self._layout


def _ids(number: int, share: int) -> np.ndarray:
    """Return (share,) int64, by which the rows of a share are rounded: of other shares and rounds otherwise."""
    return np.arange(number * share, (number + 1) * share)
