"""Batch: the rows that one step computes, the rows that these read beside each other, and the arcs into them.

Local numbers only: whose rows they are, and what they hold, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn._ext import cutting as kernels
from hpcgnn.ops.cuda.resident import make_resident


@dataclass(frozen=True)
class Batch:
    """What one step computes on one rank.

    Attributes
    ----------
    rows : (num_batch,) int64          inner rows that are computed; ascending, or in the order of `order_rows`
    far : (num_far,) int64             rows that these read beside each other: halo rows that other ranks compute in the
                                       same step, ascending, then all others, as the arcs name them
    num_fresh : int                    of the first kind
    indptr : (num_batch + 1,) int64, indices : (num_arcs,) int32      CSR; columns below num_batch are places in `rows`,
                                       the others, less num_batch, in `far`
    arc : (num_arcs,) int64            places of the arcs in the CSR of the part
    num_within, num_back : list of int, or None      of the rows, see `order_rows`; None where all are computed
    """

    rows: np.ndarray
    far: np.ndarray
    num_fresh: int
    indptr: np.ndarray
    indices: np.ndarray
    arc: np.ndarray
    num_within: list[int] | None = None
    num_back: list[int] | None = None

    def __post_init__(self):
        make_resident(self, "rows", "far")      # every layer of the step indexes by them

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
    num_within : list of int, or None
        num_within[k] inner rows come first that reach the loss in at most k hops; None where all rows are computed
    is_shared : (num_inner,) bool, or None      other ranks read the row too; None: no row
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, num_rows: int, num_within: list[int] | None = None,
                 is_shared: np.ndarray | None = None):
        self._indptr, self._indices, self._num_within, self._is_shared = indptr, indices, num_within, is_shared
        self._place = np.full(num_rows, -1, np.int32)      # of each row in the batch that is being cut

    def cut(self, rows: np.ndarray, fresh: np.ndarray, few_arcs: bool = False) -> Batch:
        """Return the batch of some rows.

        Parameters
        ----------
        rows : (num_batch,) int64      inner rows, ascending
        fresh : (num_fresh,) int64     halo rows that other ranks compute in the same step, ascending
        few_arcs : bool                see `order_rows`
        """
        num_arcs = int((self._indptr[rows + 1] - self._indptr[rows]).sum())
        num_within = num_back = None
        if self._num_within is not None:
            order, num_within, num_back = self._order(rows, num_arcs, few_arcs)
            rows = rows[order]
        far = np.empty(len(fresh) + min(num_arcs, len(self._place)), np.int64)
        far[:len(fresh)] = fresh
        indptr, indices = np.empty(len(rows) + 1, np.int64), np.empty(num_arcs, np.int32)
        arc = np.empty(num_arcs, np.int64)
        num_far = kernels.cut_rows(self._indptr, self._indices, self._place, rows, len(fresh), far, indptr, indices,
                                   arc)
        return Batch(rows, far[:num_far].copy(), len(fresh), indptr, indices, arc, num_within, num_back)

    def _order(self, rows: np.ndarray, num_arcs: int, few_arcs: bool) -> tuple[np.ndarray, list[int], list[int]]:
        """Return `order_rows` of ascending rows."""
        source, target = np.empty(num_arcs, np.int32), np.empty(num_arcs, np.int32)
        num_inside = kernels.arcs_inside(self._indptr, self._indices, self._place, rows, source, target)
        hops = np.searchsorted(self._num_within, rows, side="right")
        return order_rows(hops, source[:num_inside], target[:num_inside],
                          None if self._is_shared is None else self._is_shared[rows], len(self._num_within) - 1,
                          few_arcs)


def order_rows(hops: np.ndarray, source: np.ndarray, target: np.ndarray, is_shared: np.ndarray | None,
               num_hops: int, few_arcs: bool) -> tuple[np.ndarray, list[int], list[int]]:
    """Put the rows first that a layer computes, and those that a gradient can reach: by arcs inside the batch, since
    rows outside it are constants.

    In a batch of few such arcs hardly any but the labeled rows have a gradient, and these come first; in one of many
    nearly all that are computed have one.

    Parameters
    ----------
    hops : (n,) int64           from each row to the loss in the whole graph; num_hops + 1 means more than num_hops
    source, target : (num_arcs,) int32      arcs between rows of the batch
    is_shared : (n,) bool or None           other ranks may read the row in this batch too; None: none is read
    num_hops : int              of the model
    few_arcs : bool             the batch is expected to have few arcs inside

    Returns
    -------
    order : (n,) int64          the row that comes first, ..
    num_within : list           num_within[k] rows come first, k = 0 .. num_hops, among which all are that can reach the
                                loss in at most k hops, and all that the first num_within[k - 1] read inside the batch
    num_back : list             num_back[k] rows come first, among which all are that a gradient can reach from k hops
                                away, and all that the first num_back[k - 1] read inside the batch
    """
    level = np.where(hops == 0, 0, num_hops + 1).astype(np.int16)      # hops to the loss inside the batch
    if is_shared is not None:
        level[is_shared] = np.minimum(level, np.maximum(hops, 1))[is_shared]
    for near in range(num_hops):
        read = source[level[target] == near]
        level[read] = np.minimum(level[read], near + 1)
    hops = hops.astype(np.int16)
    order = np.argsort(level * (num_hops + 2) + hops if few_arcs else hops * (num_hops + 2) + level, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    arcs = place[source], place[target]
    return order, _first_rows(place, hops, num_hops, *arcs), _first_rows(place, level, num_hops, *arcs)


def _first_rows(place: np.ndarray, distance: np.ndarray, farthest: int, source: np.ndarray,
                target: np.ndarray) -> list[int]:
    """Return, for each distance, how many rows come first among which all are that are no farther, and all that those
    of the distance before read.
    """
    counts = []
    for reach in range(farthest + 1):
        needed = [place[distance <= reach]]
        if counts:
            needed.append(source[target < counts[-1]])
        counts.append(1 + max(int(places.max(initial=-1)) for places in needed))
    return counts
