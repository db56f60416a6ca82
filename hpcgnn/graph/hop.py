"""Hop: one aggregation of one forward pass: which rows go in and come out, its matrices, and its exchange.

In a training pass only rows within reach of the loss are computed; they are a prefix of the inner rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from hpcgnn.ops.aggregation import PackedRows, SparseRows


@dataclass(frozen=True)
class ExchangeSite:
    """Where an exchange stands, the same on all ranks: it keys random draws and names the rows that travel.

    Attributes
    ----------
    layer : int               exchanges before it in this forward pass
    seed, epoch : int
    is_training : bool
    reach : int or None       only rows that reach the loss in so many hops travel; None is all
    """

    layer: int
    seed: int
    epoch: int
    is_training: bool
    reach: int | None = None


class Exchange(Protocol):
    """What a LocalGraph asks of the exchange room. Collective: all ranks call in the same order."""

    is_alone: bool
    """Whether this rank neither sends nor receives a row."""

    def fetch(self, h: torch.Tensor, out: torch.Tensor, site: ExchangeSite) -> None:
        """Write the halo rows of the inner rows `h` to `out` (num_halo, dim); those that don't travel stay as they are.
        """

    def fetch_packed(self, h: torch.Tensor, site: ExchangeSite) -> PackedRows | None:
        """The halo rows of `h` as they arrived, valid until the next exchange; None, and nothing sent, where some have
        more than 8 bits: then `fetch` does it.
        """

    def take_home(self, gradient: torch.Tensor, total: torch.Tensor, site: ExchangeSite) -> None:
        """Send the gradients of halo rows (num_halo, dim) home; add those that come to `total` (num_inner, dim)."""


@dataclass(frozen=True)
class Matrices:
    """A reduction by rows, and its transposed for the gradients of inner and of halo rows.

    forward : (num_out, inner and halo columns); near_back : (num_in, num_out); far_back : (num_halo, num_out)
    """

    forward: SparseRows
    near_back: SparseRows
    far_back: SparseRows


def restrict(forward: SparseRows, transposed: SparseRows, num_inner: int, num_in: int, num_out: int) -> Matrices:
    """The matrices of a hop from the first num_in inner rows, and all halo rows, to the first num_out inner rows.

    No row before num_out may have an inner neighbor at or behind num_in.
    """
    end = transposed.end if num_out == num_inner else _ends_below(transposed, num_out)
    row_scale = None if forward.row_scale is None else forward.row_scale[:num_out]
    back = replace(transposed, end=end, num_columns=num_out, num_self=min(transposed.num_self, num_out),
                   column_scale=row_scale)
    ahead = replace(forward, split=num_inner, num_near=num_in)
    return Matrices(ahead.rows(0, num_out), back.rows(0, num_in), back.rows(num_inner, back.num_rows))


def _ends_below(matrix: SparseRows, limit: int) -> np.ndarray:
    """(num_rows,) int64: where the entries of each row pass `limit`; entries ascend within a row."""
    is_below = np.zeros(len(matrix.indices) + 1, np.int64)
    np.cumsum(matrix.indices < limit, out=is_below[1:])
    return matrix.begin + is_below[matrix.end] - is_below[matrix.begin]


@dataclass(frozen=True)
class Hop:
    """See the module.

    Attributes
    ----------
    num_in, num_out : int       inner rows that are needed and that come out
    reach : int or None         hops from the rows that come in to the loss; None where all rows are computed
    matrices : Matrices
    """

    num_in: int
    num_out: int
    reach: int | None
    matrices: Matrices
