"""FarArcs: the arcs of hops whose rows come by messages, where they are others than those of the input.

Hop: one aggregation of one forward pass: which rows go in and come out, its matrices, and its exchange.

In a training pass only rows within reach of the loss are computed; they are a prefix of the inner rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy.sparse
import torch

from hpcgnn.ops.aggregation import PackedRows, SparseRows
from hpcgnn.ops.cuda.resident import resident

NO_ROW = -1


@dataclass(frozen=True)
class FarArcs:
    """Arcs into the inner rows of a part, from inner rows and from rows that come.

    Attributes
    ----------
    indptr : (num_inner + 1,) int64, indices : (num_arcs,) int32     CSR by destination
    halo_row : (num_halo,) int32         the part's halo row that each row that comes is; NO_ROW where it is a sum of
                                         several, which no degree scales any more
    edge_weight : (num_arcs,) float32    beside indices; None where all arcs weigh 1
    """

    indptr: np.ndarray
    indices: np.ndarray
    halo_row: np.ndarray
    edge_weight: np.ndarray | None = None

    @property
    def num_halo(self) -> int:
        return len(self.halo_row)

    def degree_of_rows(self, degree: np.ndarray) -> np.ndarray:
        """Return (num_inner + num_halo,), what the degrees of inner and halo rows are for the rows that come; 0 is that
        of a sum.
        """
        num_inner = len(self.indptr) - 1
        halo = np.where(self.halo_row == NO_ROW, 0, degree[num_inner:][self.halo_row]).astype(degree.dtype)
        return np.concatenate([degree[:num_inner], halo])


ROWS_COUNTED = 1 << 16


@dataclass(frozen=True)
class ExchangeSite:
    """Identify an exchange, alike on all ranks: its place keys random draws and decides which rows travel.

    Attributes
    ----------
    layer : int               exchanges before it in this forward pass
    seed, epoch : int
    is_training : bool
    reach : int or None       only rows that reach the loss in so many hops travel; None is all
    is_scaled : bool          rows are summed, so sampled ones are divided by their share to keep sums unbiased
    reduction : str or None   how receivers sum them, which decides what a sum of rows is that is sent in their place
    """

    layer: int
    seed: int
    epoch: int
    is_training: bool
    reach: int | None = None
    is_scaled: bool = True
    reduction: str | None = None


class Arrival(Protocol):
    """Rows on their way."""

    def poll(self) -> bool:
        """Let messages make progress, and tell whether all have arrived."""

    def wait(self) -> None:
        """Return when all have arrived."""

    def packed(self) -> PackedRows | None:
        """Wait; the rows as they arrived, valid until the next exchange. None where only `finish` can bring them."""

    def rows_in_message(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Wait; the halo rows where they arrived, (num_halo, dim) of their storage type, the caller's to change. None
        where only `finish` can bring them.
        """

    def finish(self, rows: torch.Tensor) -> None:
        """Wait; write the halo rows to `rows` (num_halo, dim), or add the gradients that came to `rows` (n, dim), whose
        first rows are the inner ones that they are for. Rows that don't travel stay as they are.
        """


class ArrivalInTable(Arrival, Protocol):
    """Rows on their way into a table that has others too."""

    def in_place(self) -> torch.Tensor | PackedRows | None:
        """Wait; a row of each inner and halo node of the whole graph, (num_rows, dim), among them all that this pass
        reads. None where an aggregation can't read them as they are, and only `finish` can bring them.
        """


class PeerArrival(Protocol):
    """Halo rows on their way, of one peer at a time."""

    def poll(self) -> bool:
        """Let messages make progress, and tell whether the rows of the peer that is next have arrived."""

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Collective: each peer and its halo rows, which are gone when the next one's are asked for."""


class Exchange(Protocol):
    """Define what a LocalGraph asks of the exchange room. Collective: all ranks call in the same order."""

    is_alone: bool
    """Tell whether this rank neither sends nor receives a row."""

    halo_spans: tuple[tuple[int, int], ...] | None
    """Where the halo rows come peer by peer: each rank's are start .. stop - 1, counted from the first; else None."""

    num_returning: int | None
    """How many halo rows, the first ones, have gradients that go home; None is all."""

    reads_history: bool
    """Tell whether halo rows may be what they were when they were last computed, and are then constants."""

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        """Send the inner rows `h` to where they are halo rows, and have this rank's halo rows come."""

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival:
        """Send the gradients of halo rows (num_halo, dim) home, and have those of this rank's rows come."""

    def start_fetch_by_peer(self, h: torch.Tensor, site: ExchangeSite) -> PeerArrival:
        """`start_fetch`, one peer at a time."""

    def start_take_home_by_peer(self, gradient_of: Callable[[int], torch.Tensor],
                                site: ExchangeSite) -> Arrival:
        """`start_take_home`, one peer at a time: gradient_of(rank) gives the gradients of its halo rows,
        and is asked as late as can be.
        """

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Return inner rows (num_inner, dim) followed by halo rows, which cross as they are."""

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Replace contiguous float32 values by their sums over all ranks."""

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        """Return (num_halo,) bool, the halo rows that this pass has; None is all."""


@dataclass(frozen=True)
class Matrices:
    """A reduction by rows, and its transposed for the gradients of inner and of halo rows.

    forward : (num_out, inner and halo columns); near_back : (back_in, back_out), of the rows that a gradient can reach;
    far_back : (num_halo, back_out), or as many rows as have gradients that go home
    """

    forward: SparseRows
    near_back: SparseRows
    far_back: SparseRows


@dataclass(frozen=True)
class PeerMatrices:
    """`Matrices` cut at the owners of the halo rows, a tuple's item a rank.

    near : (num_out, inner columns), with the self-loops; far : (num_out, the rank's halo columns) each, its far table
    those rows alone; far_back : (the rank's halo rows, num_out) each
    """

    near: SparseRows
    far: tuple[SparseRows, ...]
    far_back: tuple[SparseRows, ...]


@dataclass(frozen=True)
class PeerEntries:
    """The entries of all inner rows, ordered by their columns' owner.

    Attributes
    ----------
    halo_spans : see `Exchange`
    indices : (num_entries,) int32                    inner columns first in each row, then each rank's halo columns
    ends : tuple of (num_inner,) int64 arrays         where in each row the inner columns end, the first rank's, ..
    entry_scale : (num_entries,) float32 or None      beside indices
    """

    halo_spans: tuple[tuple[int, int], ...]
    indices: np.ndarray
    ends: tuple[np.ndarray, ...]
    entry_scale: np.ndarray | None = None

    @classmethod
    def order(cls, forward: SparseRows, num_inner: int, halo_spans: tuple[tuple[int, int], ...]) -> PeerEntries:
        """Return a copy of the entries of a matrix that is stored row after row."""
        indptr = np.append(forward.begin, len(forward.indices))
        has_weights = forward.entry_scale is not None
        values = forward.entry_scale.copy() if has_weights else np.ones(len(forward.indices), np.int8)
        entries = scipy.sparse.csr_matrix((values, forward.indices.copy(), indptr),
                                          shape=(num_inner, forward.num_columns))
        entries.sort_indices()
        ordered = replace(forward, indices=entries.indices.astype(np.int32, copy=False))
        limits = [num_inner, *(num_inner + stop for _, stop in halo_spans)]
        return cls(halo_spans, ordered.indices, tuple(_ends_below(ordered, limit) for limit in limits),
                   resident(entries.data) if has_weights else None)

    def cut(self, matrices: Matrices) -> PeerMatrices:
        """Return the matrices of a hop, cut at the owners of the halo rows."""
        whole = replace(matrices.forward, indices=self.indices, entry_scale=self.entry_scale)
        num_inner = len(self.ends[0])
        ends = [end[:whole.num_rows] for end in self.ends]
        far = tuple(_first_columns(whole, num_inner + stop, begin=before, end=after, num_self=0,
                                   split=num_inner + start, num_near=0)
                    for (start, stop), (before, after) in zip(self.halo_spans, itertools.pairwise(ends), strict=True))
        return PeerMatrices(_first_columns(whole, num_inner, end=ends[0]), far,
                            tuple(matrices.far_back.rows(start, stop) for start, stop in self.halo_spans))


def restrict(forward: SparseRows, transposed: SparseRows, num_inner: int, num_in: int, num_out: int,
             num_returning: int | None = None, num_back: tuple[int, int] | None = None) -> Matrices:
    """The matrices of a hop from the first num_in inner rows, and all halo rows, to the first num_out inner rows, and
    back to the first num_returning halo rows, None for all; and of these inner rows from the first num_back[1] of
    those that come out to the first num_back[0] of those that come in, None for all.

    No row before num_out may have an inner neighbor at or behind num_in, nor one before num_back[1] at or behind
    num_back[0].
    """
    back_in, back_out = num_back or (num_in, num_out)
    end = transposed.end if back_out == num_inner else _ends_below(transposed, back_out)
    row_scale = None if forward.row_scale is None else forward.row_scale[:back_out]
    back = replace(transposed, end=end, num_columns=back_out, num_self=min(transposed.num_self, back_out),
                   column_scale=row_scale)
    ahead = replace(forward, split=num_inner, num_near=num_in)
    last = back.num_rows if num_returning is None else num_inner + num_returning
    return Matrices(ahead.rows(0, num_out), back.rows(0, back_in), back.rows(num_inner, last))


def _first_columns(matrix: SparseRows, num_columns: int, **changes) -> SparseRows:
    """Drop the columns from `num_columns` on; after `changes` no entry lies in them."""
    scale = matrix.column_scale
    return replace(matrix, num_columns=num_columns, column_scale=None if scale is None else scale[:num_columns],
                   **changes)


def _ends_below(matrix: SparseRows, limit: int) -> np.ndarray:
    """Find where each row's columns reach `limit`, as (num_rows,) int64; columns ascend within a row."""
    ends = np.empty(matrix.num_rows, np.int64)
    for start in range(0, matrix.num_rows, ROWS_COUNTED):      # the counts of a block are 8 bytes an entry
        rows = slice(start, start + ROWS_COUNTED)
        begin, end = matrix.begin[rows], matrix.end[rows]
        first, last = begin.min(), end.max()
        num_below = np.zeros(last - first + 1, np.int64)
        np.cumsum(matrix.indices[first:last] < limit, out=num_below[1:])
        ends[rows] = begin + num_below[end - first] - num_below[begin - first]
    return ends


@dataclass(frozen=True)
class Hop:
    """Describe one aggregation of one forward pass: its rows, matrices and exchange.

    Attributes
    ----------
    num_in, num_out : int       inner rows that are needed and that come out
    back_in, back_out : int     the first of these, which a gradient can reach; it is zero in all others
    reach : int or None         hops from the rows that come in to the loss; None where all rows are computed
    matrices : Matrices
    num_halo : int              rows that come, or that came with the input
    central, marginal : tuple of (start, stop)      the rows that come out, in blocks: those that can be computed before
                                                    halo rows are here, and all others
    by_peer : PeerMatrices or None                  where halo rows come peer by peer
    in_place : SparseRows or None                   the forward matrix over a table that has the halo rows among others,
                                                    in a graph of some rows; see `ArrivalInTable`
    """

    num_in: int
    num_out: int
    back_in: int
    back_out: int
    reach: int | None
    matrices: Matrices
    num_halo: int
    central: tuple[tuple[int, int], ...]
    marginal: tuple[tuple[int, int], ...]
    by_peer: PeerMatrices | None = None
    in_place: SparseRows | None = None


class AloneExchange:
    """Serve as exchange, and as arrival, of a graph that is one part: nothing travels."""

    is_alone, halo_spans, num_returning, reads_history = True, None, None, False

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> AloneExchange:
        """Return an arrival of no rows."""
        return self

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> AloneExchange:
        """Return an arrival of no gradients."""
        return self

    def input_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        return rows

    def sum_over_ranks(self, total: torch.Tensor) -> None:
        """Leave the sums of the only rank."""

    def present(self, site: ExchangeSite) -> None:
        """Return None: all halo rows, of which there are none, are here."""

    def poll(self) -> bool:
        """Return True: nothing is waited for."""
        return True

    def wait(self) -> None:
        """Return at once."""

    def packed(self) -> None:
        """Return None: there are no packed rows."""

    def rows_in_message(self, dtype: torch.dtype) -> None:
        """Return None: there are no rows."""

    def finish(self, rows: torch.Tensor) -> None:
        """Leave the rows as they are."""
