"""The rows of one rank as plain arrays: inner rows, halo rows behind them, and the edges into the inner rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hpcgnn.errors import KernelError

NO_ROW = -1


@dataclass(frozen=True, eq=False)
class LocalRows:
    """Rows of one part, with degrees in the whole graph.

    Raises KernelError: edge weights have a wrong type or length, are negative or not finite, or lack weighted degrees.
    """

    indptr: np.ndarray         # (num_inner + 1,) int64, CSR by destination, in local rows
    indices: np.ndarray        # (num_edges,) int32
    node_id: np.ndarray        # (num_inner + num_halo,) int64, global ids
    in_degree: np.ndarray      # (num_inner + num_halo,) int32, in the whole graph
    # (num_inner + num_halo, num_features) float32, bfloat16 or float16; all rows of the graph have this type
    features: torch.Tensor
    num_nodes: int | None = None                    # of the whole graph; None: unknown
    edge_weight: np.ndarray | None = None           # (num_edges,) float32, at least 0
    weighted_degree: np.ndarray | None = None       # (num_inner + num_halo,) float32, sums of in-neighbors' weights
    kept_degree: np.ndarray | None = None           # (num_inner + num_halo,) int32, in-degrees after edges were dropped
    edge_type: np.ndarray | None = None             # (num_edges,) int32, relation of each edge
    edge_attr: np.ndarray | None = None             # (num_edges, num_edge_features) float32

    def __post_init__(self) -> None:
        weight, sums = self.edge_weight, self.weighted_degree
        if (weight is None) != (sums is None):
            raise KernelError("edge weights and weighted degrees are given together, or neither is")
        if weight is None:
            return
        for name, array, length in (("edge_weight", weight, len(self.indices)),
                                    ("weighted_degree", sums, len(self.node_id))):
            if array.dtype != np.float32 or array.shape != (length,):
                raise KernelError(f"{name} is {array.dtype} of shape {array.shape}; expected float32 of shape "
                                  f"({length},)")
            if not (np.isfinite(array).all() and (array >= 0).all()):
                raise KernelError(f"{name} holds negative numbers or ones that are not finite; weigh edges by 0 or "
                                  "more")

    @property
    def degree(self) -> np.ndarray:
        """Degree that scales sums: `kept_degree` if there is one, else `weighted_degree`, else `in_degree`."""
        normalizing = self.in_degree if self.weighted_degree is None else self.weighted_degree
        return normalizing if self.kept_degree is None else self.kept_degree


@dataclass(frozen=True)
class Prefixes:
    """How many inner rows a training pass computes; rows nearest to the loss come first."""

    num_within: list[int]             # num_within[k] rows, the first ones, reach the loss within k hops
    # num_back[k] rows, the first ones, get a gradient from k hops away; None: as many as num_within
    num_back: list[int] | None = None

    @cached_property
    def backward(self) -> list[int]:
        return self.num_within if self.num_back is None else self.num_back


@dataclass(frozen=True)
class FarArcs:
    """Edges of later layers into the inner rows of a part, where halo rows may be sums made by their owners."""

    indptr: np.ndarray                     # (num_inner + 1,) int64, CSR by destination
    indices: np.ndarray                    # (num_arcs,) int32
    # (num_halo,) int32: per arriving row, its halo row in the input; NO_ROW for a sum of several rows, which is not
    # scaled by a degree
    halo_row: np.ndarray
    edge_weight: np.ndarray | None = None  # (num_arcs,) float32, None where all edges weigh 1

    @property
    def num_halo(self) -> int:
        return len(self.halo_row)

    def degree_of_rows(self, degree: np.ndarray) -> np.ndarray:
        """Return the degree of each inner and arriving row, (num_inner + num_halo,); 0 for a sum."""
        num_inner = len(self.indptr) - 1
        halo = np.where(self.halo_row == NO_ROW, 0, degree[num_inner:][self.halo_row]).astype(degree.dtype)
        return np.concatenate([degree[:num_inner], halo])
