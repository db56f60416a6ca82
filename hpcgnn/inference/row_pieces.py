"""Rows of all ranks brought to rank 0 in the order of their global ids, a piece at a time. No file is known here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from mpi4py import MPI

PIECE_BYTES = 1 << 26      # of rows that rank 0 holds at a time


def row_pieces(comm: MPI.Comm, num_nodes: int, node_id: np.ndarray,
               arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Collective: bring the rows of some arrays to rank 0, PIECE_BYTES at a time or one row; every rank must exhaust
    the iterator.

    Parameters
    ----------
    num_nodes : int                    of all ranks
    node_id : (n,) int64               global ids of this rank's rows
    arrays : each (n, ...)             of one type on all ranks, which have rows of one shape; texts are objects

    Yields
    ------
    first : int                        global id of the piece's first row
    rows : list of arrays              the rows of first, first + 1, ..., of each array; none on other ranks than 0
    """
    order = np.argsort(node_id)
    sorted_id = node_id[order]
    step = max(1, PIECE_BYTES // max(1, sum(_row_bytes(array) for array in arrays)))
    for first in range(0, num_nodes, step):
        stop = min(first + step, num_nodes)
        mine = slice(*np.searchsorted(sorted_id, [first, stop]))
        ids = gathered(comm, sorted_id[mine])
        yield first, [_placed(ids - first, gathered(comm, array[order[mine]])) for array in arrays]


def gathered(comm: MPI.Comm, rows: np.ndarray) -> np.ndarray:
    """Collective: return the rows of all ranks on rank 0, one rank's after the other's; no row on the others."""
    if rows.dtype == object:
        parts = comm.gather(rows)
        return np.concatenate(parts) if comm.rank == 0 else rows[:0]
    counts = comm.gather(len(rows))
    out = np.empty((sum(counts) if comm.rank == 0 else 0, *rows.shape[1:]), rows.dtype)
    num_bytes = [count * _row_bytes(rows) for count in counts] if comm.rank == 0 else None
    comm.Gatherv([_bytes_of(np.ascontiguousarray(rows)), MPI.BYTE], [_bytes_of(out), num_bytes, MPI.BYTE])
    return out


def _placed(places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    out = np.empty_like(rows)
    out[places] = rows
    return out


def _row_bytes(array: np.ndarray) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape[1:]))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8) if array.size and array.dtype.itemsize else np.empty(0, np.uint8)
