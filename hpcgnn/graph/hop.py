"""Hop and Exchange: the data of one aggregation in a forward pass, and the contract between a graph and its messages.

Path of a boundary row. A layer calls `LocalGraph.halo`, or, if it is fused, `graph.exchange.start_fetch`, which returns
an `Arrival`. The graph counts each such call as an `ExchangeSite`. Central rows, which have no halo neighbor, can be
aggregated before `Arrival.finish` writes the halo rows. In the backward pass `start_take_home` sends the gradients of
halo rows to their owners, and `finish` adds what arrives to the owner's gradients.

In training only rows that reach the loss are computed; they are a prefix of the inner rows. Example: 10 inner rows, 2
of them labeled, 6 within one hop. A two-layer model computes 6 rows in its first hop and 2 in its second.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse
import torch

from hpcgnn.ops.aggregation import PackedRows, SparseRows
from hpcgnn.ops.resident import resident

ROWS_COUNTED = 1 << 16


class Exchange(Protocol):
    """The messages of a LocalGraph. Collective: all ranks call in the same order."""

    @property
    def is_alone(self) -> bool:
        """Whether this rank neither sends nor receives a row."""

    @property
    def overlaps(self) -> bool:
        """Whether messages travel while layers compute; else a start waits."""

    @property
    def halo_spans(self) -> tuple[tuple[int, int], ...] | None:
        """(start, stop) of each rank's halo rows, if they arrive by peer."""

    @property
    def num_returning(self) -> int | None:
        """Number of leading halo rows with gradients that are sent to the owners; None: all."""

    @property
    def reads_history(self) -> bool:
        """Whether halo rows may be constants from an earlier step."""

    def takes_columns(self, site: ExchangeSite, dtype: torch.dtype) -> bool:
        """Whether rows may be sent by ranges of columns, one call each, to the same effect; the same on all ranks."""

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> Arrival:
        """Send inner rows of `h` to the ranks that have them as halo rows; the arrival brings this rank's halo rows."""

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> Arrival:
        """Send the gradients of halo rows (num_halo, dim) to their owners; the arrival adds gradients of inner rows."""

    def input_rows(self, features: torch.Tensor) -> torch.Tensor:
        """Return inner rows followed by halo rows, which are sent unquantized."""

    def sum_over_ranks(self, values: torch.Tensor) -> None:
        """Replace contiguous float32 values by their sums over all ranks."""

    def present(self, site: ExchangeSite) -> np.ndarray | None:
        """Return which halo rows this pass has, (num_halo,) bool; None: all."""


class PeerExchange(Exchange, Protocol):
    """An exchange with `halo_spans`."""

    def start_fetch_by_peer(self, h: torch.Tensor, site: ExchangeSite) -> PeerArrival:
        """Like `start_fetch`, one peer at a time."""

    def start_take_home_by_peer(self, gradient_of: Callable[[int], torch.Tensor],
                                site: ExchangeSite) -> GradientArrival:
        """Like `start_take_home`, one peer at a time; gradient_of(rank) is asked as late as possible."""


@dataclass(frozen=True)
class ExchangeSite:
    """Identifies an exchange within training, equally on all ranks. Keys random draws and decides which rows travel."""

    layer: int                    # number of exchanges before this one in the forward pass
    seed: int
    epoch: int
    is_training: bool
    reach: int | None = None      # only rows within this many hops of the loss travel; None: all
    is_scaled: bool = True        # whether sampled rows are divided by their share, which keeps sums unbiased
    reduction: str | None = None  # reduction of the receivers; set if the sender may sum rows for the receivers
    loss_scale: float = 1.0       # factor on the loss, and so on all gradients
    nodes: range | None = None    # only rows of nodes with these global ids travel; None: all
    first_column: int = 0         # where rows travel by ranges of columns: that of the range


class GradientArrival(Protocol):
    """Gradients of halo rows on their way to the owners of the rows."""

    def poll(self) -> bool:
        """Let messages make progress; whether all have arrived, or all of the next peer."""

    def finish(self, rows: torch.Tensor) -> None:
        """Wait, then add the gradients to the first, inner rows of `rows`; others stay."""


class Arrival(GradientArrival, Protocol):
    """Rows on their way. Each method but `poll` waits for the rows."""

    def wait(self) -> None:
        """Return when all have arrived."""

    def packed(self) -> PackedRows | None:
        """Return the quantized rows, valid until the next exchange; None if only `finish` can bring them."""

    def rows_in_message(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the halo rows in their receive buffer, (num_halo, dim), to overwrite; None if only `finish` works."""

    def finish(self, rows: torch.Tensor) -> None:
        """Write the halo rows to `rows` (num_halo, dim), or add gradients to the first, inner rows; others stay."""


class ArrivalInTable(Arrival, Protocol):
    """Rows on their way into a table that also holds other rows."""

    def in_place(self) -> torch.Tensor | PackedRows | None:
        """Return the table, (num_rows, dim) over all rows of the whole graph; None if only `finish` works."""


class PeerArrival(Protocol):
    """Halo rows on their way, one peer at a time."""

    def poll(self) -> bool:
        """Let messages make progress; return whether the next peer's rows have arrived."""

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Collective: yield each peer and its halo rows, which are valid until the next step of the iteration."""


class AloneExchange:
    """Exchange and arrival of a graph that is one part: nothing travels."""

    is_alone, overlaps, halo_spans, num_returning, reads_history = True, False, None, None, False

    def takes_columns(self, site: ExchangeSite, dtype: torch.dtype) -> bool:
        return True

    def start_fetch(self, h: torch.Tensor, site: ExchangeSite) -> AloneExchange:
        return self

    def start_take_home(self, gradient: torch.Tensor, site: ExchangeSite) -> AloneExchange:
        return self

    def input_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def sum_over_ranks(self, total: torch.Tensor) -> None:
        pass

    def present(self, site: ExchangeSite) -> None:
        pass

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def packed(self) -> None:
        pass

    def rows_in_message(self, dtype: torch.dtype) -> None:
        pass

    def finish(self, rows: torch.Tensor) -> None:
        pass


@dataclass(frozen=True)
class Hop:
    """One aggregation of one forward pass: its rows and matrices."""

    # inner rows that go in and come out
    num_in: int
    num_out: int
    # the first of these rows, which a gradient reaches; the gradient of all other rows is zero
    back_in: int
    back_out: int
    reach: int | None                   # hops from the incoming rows to the loss; None if all rows are computed
    matrices: Matrices
    num_halo: int                       # halo rows that go in
    # (start, stop) of blocks of computed rows: central ones need no halo rows, marginal ones do
    central: tuple[tuple[int, int], ...]
    marginal: tuple[tuple[int, int], ...]
    by_peer: PeerMatrices | None = None
    in_place: SparseRows | None = None  # the forward matrix over the table of an `ArrivalInTable`


@dataclass(frozen=True)
class Matrices:
    """A reduction as a matrix, and its transpose for the gradients of inner and of halo rows."""

    forward: SparseRows    # (num_out, inner and halo columns)
    near_back: SparseRows  # (back_in, back_out), only rows that a gradient reaches
    far_back: SparseRows   # (num_halo, back_out), or only the halo rows with gradients to send

    @cached_property
    def is_forward_only(self) -> bool:
        """Whether no gradient of this rank follows an edge."""
        return not len(self.near_back.indices) and not self.near_back.num_self


def restrict(forward: SparseRows, transposed: SparseRows, num_inner: int, num_in: int, num_out: int,
             num_returning: int | None = None, num_back: tuple[int, int] | None = None) -> Matrices:
    """Return the matrices of a hop from the first num_in inner rows and all halo rows to the first num_out inner rows.

    num_returning : int or None           halo rows that get a gradient; None: all
    num_back : (num_in, num_out) or None  inner rows that a gradient reaches, coming in and going out; None: all
    """
    # Rows before num_out have no inner neighbor from num_in on, so columns can be cut there; the same for num_back.
    back_in, back_out = num_back or (num_in, num_out)
    back = transposed if num_returning is None else transposed.rows(0, num_inner + num_returning)
    end = back.end if back_out == num_inner else _ends_below(back, back_out)
    row_scale = None if forward.row_scale is None else forward.row_scale[:back_out]
    back = replace(back, end=end, num_columns=back_out, num_self=min(back.num_self, back_out), column_scale=row_scale)
    ahead = replace(forward, split=num_inner, num_near=num_in)
    return Matrices(ahead.rows(0, num_out), back.rows(0, back_in), back.rows(num_inner, back.num_rows))


@dataclass(frozen=True)
class PeerMatrices:
    """`Matrices` cut at the owners of the halo rows; tuples have one item per rank."""

    near: SparseRows                  # (num_out, inner columns), with self-loops
    far: tuple[SparseRows, ...]       # (num_out, the rank's halo columns) each
    far_back: tuple[SparseRows, ...]  # (the rank's halo rows, num_out) each


@dataclass(frozen=True)
class PeerEntries:
    """The entries of a matrix, ordered by the owners of their columns."""

    halo_spans: tuple[tuple[int, int], ...]
    indices: np.ndarray  # (num_entries,) int32, in each row inner columns first, then each rank's halo columns
    # (num_inner,) int64 each: per row, where the inner columns end, then each rank's
    ends: tuple[np.ndarray, ...]
    entry_scale: np.ndarray | None = None  # (num_entries,) float32

    @classmethod
    def order(cls, forward: SparseRows, num_inner: int, halo_spans: tuple[tuple[int, int], ...]) -> PeerEntries:
        """Return a sorted copy of the entries of a matrix that is stored row after row."""
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
        whole = replace(matrices.forward, indices=self.indices, entry_scale=self.entry_scale)
        num_inner = len(self.ends[0])
        ends = [end[:whole.num_rows] for end in self.ends]
        far = tuple(_first_columns(whole, num_inner + stop, begin=before, end=after, num_self=0,
                                   split=num_inner + start, num_near=0)
                    for (start, stop), (before, after) in zip(self.halo_spans, itertools.pairwise(ends), strict=True))
        return PeerMatrices(_first_columns(whole, num_inner, end=ends[0]), far,
                            tuple(matrices.far_back.rows(start, stop) for start, stop in self.halo_spans))


def _first_columns(matrix: SparseRows, num_columns: int, **changes) -> SparseRows:
    scale = matrix.column_scale
    return replace(matrix, num_columns=num_columns, column_scale=None if scale is None else scale[:num_columns],
                   **changes)


def _ends_below(matrix: SparseRows, limit: int) -> np.ndarray:
    # Columns ascend within a row, so a prefix sum of (column < limit) tells where each row passes the limit.
    ends = np.empty(matrix.num_rows, np.int64)
    for start in range(0, matrix.num_rows, ROWS_COUNTED):      # counting takes 8 bytes per entry of a block
        rows = slice(start, start + ROWS_COUNTED)
        begin, end = matrix.begin[rows], matrix.end[rows]
        first, last = begin.min(), end.max()
        num_below = np.zeros(last - first + 1, np.int64)
        np.cumsum(matrix.indices[first:last] < limit, out=num_below[1:])
        ends[rows] = begin + num_below[end - first] - num_below[begin - first]
    return ends
