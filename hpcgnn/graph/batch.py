"""Batch: the rows that one step computes, the rows that these read beside each other, and the arcs into them.

Local numbers only: whose rows they are, and what they hold, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """What one step computes on one rank.

    Attributes
    ----------
    rows : (num_batch,) int64          inner rows that are computed, ascending
    far : (num_far,) int64             rows that these read beside each other: halo rows that other ranks compute in the
                                       same step, ascending, then all others, ascending
    num_fresh : int                    of the first kind
    indptr : (num_batch + 1,) int64, indices : (num_arcs,) int32      CSR; columns below num_batch are places in `rows`,
                                       the others, less num_batch, in `far`
    arc : (num_arcs,) int64            places of the arcs in the CSR of the part
    """

    rows: np.ndarray
    far: np.ndarray
    num_fresh: int
    indptr: np.ndarray
    indices: np.ndarray
    arc: np.ndarray

    @classmethod
    def of_all(cls, indptr: np.ndarray, indices: np.ndarray, num_rows: int) -> Batch:
        """Return the batch of all inner rows, which reads all halo rows as other ranks compute them; see `BatchCutter`.
        """
        num_inner = len(indptr) - 1
        halo = np.arange(num_inner, num_rows)
        return cls(np.arange(num_inner), halo, len(halo), indptr, indices, np.arange(len(indices)))

    @property
    def fresh_halo(self) -> np.ndarray:
        """Return the local numbers of the halo rows that other ranks compute in the same step."""
        return self.far[:self.num_fresh]


class BatchCutter:
    """Cut batches out of a part.

    Parameters
    ----------
    indptr : (num_inner + 1,) int64, indices : (num_edges,) int32     CSR by destination, local rows
    num_rows : int                                                    inner and halo rows
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, num_rows: int):
        self._indptr, self._indices = indptr, indices
        self._place = np.full(num_rows, -1, np.int32)      # of each row in the batch that is being cut
        self._is_read = np.zeros(num_rows, bool)

    def cut(self, rows: np.ndarray, fresh: np.ndarray) -> Batch:
        """Return the batch of some rows.

        Parameters
        ----------
        rows : (num_batch,) int64      inner rows, ascending
        fresh : (num_fresh,) int64     halo rows that other ranks compute in the same step, ascending
        """
        place, is_read = self._place, self._is_read
        begin = self._indptr[rows]
        degree = self._indptr[rows + 1] - begin
        indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
        arc = np.repeat(begin - indptr[:-1], degree) + np.arange(indptr[-1])
        column = self._indices[arc]
        is_read[column] = True
        is_read[rows], is_read[fresh] = False, False
        others = np.flatnonzero(is_read)
        is_read[others] = False
        far = np.concatenate([fresh, others])
        place[rows], place[far] = np.arange(len(rows)), len(rows) + np.arange(len(far))
        return Batch(rows, far, len(fresh), indptr, place[column], arc)
