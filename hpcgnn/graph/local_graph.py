"""LocalGraph: one rank's rows of the graph, as layers see it: `halo`, `aggregate` and `dropout`.

It knows numbering and normalisation; messages are the business of the exchange that it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.aggregation import SparseRows, aggregate, from_csr
from hpcgnn.ops.counter import DROPOUT, CounterKey
from hpcgnn.ops.pointwise import dropout

REDUCTIONS = ("sum", "mean", "gcn")


class Exchange(Protocol):
    """What a LocalGraph asks of the exchange room. Collective: all ranks call in the same order."""

    def halo(self, h: torch.Tensor, layer: int, epoch: int, seed: int, is_training: bool) -> torch.Tensor:
        """Rows of `h` (num_inner, dim) followed by the halo rows, (num_inner + num_halo, dim)."""


@dataclass
class ForwardPass:
    """Where in training the current forward pass stands. Calls are counted, so they mean the same on every rank."""

    seed: int = 0
    epoch: int = 0
    is_training: bool = False
    num_halo_calls: int = 0
    num_dropout_calls: int = 0


class LocalGraph:
    """Inner rows (central, then marginal) and halo rows of one part, with global degrees.

    Parameters
    ----------
    indptr : (num_inner + 1,) int64, indices : (num_edges,) int32     CSR by destination, local rows
    node_id : (num_inner + num_halo,) int64                           global ids
    in_degree : (num_inner + num_halo,) int32                         in the whole graph
    num_central : int
    features : (num_inner + num_halo, num_features) float32           halo rows included: they never change
    exchange : Exchange

    Attributes
    ----------
    x : (num_inner, num_features) float32         the input rows; `halo(x)` costs no message
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, node_id: np.ndarray, in_degree: np.ndarray,
                 num_central: int, features: torch.Tensor, exchange: Exchange):
        self.num_inner, self.num_rows, self.num_central = len(indptr) - 1, len(node_id), num_central
        self.node_id, self.in_degree = node_id, in_degree
        self.x_all = features
        self.x = features[:self.num_inner]
        self._indptr, self._indices, self._exchange = indptr, indices, exchange
        self._matrices: dict[str, tuple[SparseRows, SparseRows]] = {}
        self._transposed = _transpose(indptr, indices, self.num_rows)
        self._pass = ForwardPass()

    @property
    def num_halo(self) -> int:
        return self.num_rows - self.num_inner

    @property
    def edge_index(self) -> torch.Tensor:
        """(2, num_edges) int64: local source (inner or halo) and destination (inner), as PyTorch Geometric has it."""
        target = np.repeat(np.arange(self.num_inner), np.diff(self._indptr))
        return torch.from_numpy(np.stack([self._indices.astype(np.int64), target]))

    def begin_forward(self, seed: int, epoch: int, is_training: bool) -> None:
        """Start a forward pass; every model calls its layers after this, in the same order on all ranks."""
        self._pass = ForwardPass(seed, epoch, is_training)

    def is_input(self, h: torch.Tensor) -> bool:
        """Whether `h` is the constant input, whose halo rows are already here."""
        return h is self.x

    def halo(self, h: torch.Tensor) -> torch.Tensor:
        """Collective: inner rows followed by halo rows, differentiable, packed as the current method says.

        Parameters
        ----------
        h : (num_inner, dim) float32

        Returns
        -------
        (num_inner + num_halo, dim) float32
        """
        if self.is_input(h):
            return self.x_all
        if len(h) != self.num_inner:
            raise KernelError(f"halo needs one row an inner node, {self.num_inner}, found {len(h)}")
        current = self._pass
        layer, current.num_halo_calls = current.num_halo_calls, current.num_halo_calls + 1
        return self._exchange.halo(h, layer, current.epoch, current.seed, current.is_training)

    def aggregate(self, h_all: torch.Tensor, reduction: str) -> torch.Tensor:
        """Reduce each inner row's in-neighbours.

        Parameters
        ----------
        h_all : (num_inner + num_halo, dim) float32
        reduction : {"sum", "mean", "gcn"}
            mean divides by the global in-degree (a row without neighbours gives 0); gcn is
            D^-1/2 (A + I) D^-1/2 with D = global in-degree + 1 (Kipf and Welling, ICLR 2017, Eq. 2)

        Returns
        -------
        (num_inner, dim) float32
        """
        if reduction not in self._matrices:
            self._matrices[reduction] = self._build_matrix(reduction)
        return aggregate(h_all, *self._matrices[reduction])

    def dropout(self, h: torch.Tensor, probability: float) -> torch.Tensor:
        """Dropout whose mask depends on the global node id only, for inner rows or for inner and halo rows."""
        current = self._pass
        layer, current.num_dropout_calls = current.num_dropout_calls, current.num_dropout_calls + 1
        if not current.is_training or probability == 0.0:
            return h
        return dropout(h, probability, self.node_id[:len(h)], CounterKey(current.seed, current.epoch, DROPOUT, layer))

    def _build_matrix(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        if reduction not in REDUCTIONS:
            raise KernelError(f"reduction must be one of {REDUCTIONS}, found {reduction!r}")
        degree = self.in_degree.astype(np.float64)
        row_scale = column_scale = None
        if reduction == "mean":
            row_scale = (1.0 / np.maximum(degree[:self.num_inner], 1)).astype(np.float32)
        elif reduction == "gcn":
            column_scale = (1.0 / np.sqrt(degree + 1)).astype(np.float32)
            row_scale = column_scale[:self.num_inner]
        num_self = self.num_inner if reduction == "gcn" else 0
        forward = from_csr(self._indptr, self._indices, self.num_rows, num_self=num_self, row_scale=row_scale,
                           column_scale=column_scale)
        backward = from_csr(*self._transposed, self.num_inner, num_self=num_self, row_scale=column_scale,
                            column_scale=row_scale)
        return forward, backward


def _transpose(indptr: np.ndarray, indices: np.ndarray, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """CSC of a 0/1 CSR matrix: (indptr int64, indices int32), destinations ascending within a column."""
    shape = (len(indptr) - 1, num_columns)
    ones = np.ones(len(indices), dtype=np.int8)
    by_column = scipy.sparse.csr_matrix((ones, indices, indptr), shape=shape).tocsc()
    return by_column.indptr.astype(np.int64), by_column.indices.astype(np.int32)
