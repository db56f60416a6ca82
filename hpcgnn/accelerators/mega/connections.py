"""The arcs of a layer by source and subgraph, as the outer product of the Aggregation Engine takes them.

Bytes and cycles are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.partition.condense import ClusteredRows, CondensedRegions, condensed_regions


@dataclass(frozen=True)
class Connections:
    """Arcs of clustered rows; those of the first subgraph are apart where it is aggregated while rows are combined.

    Attributes
    ----------
    rows : ClusteredRows
    num_fused : int        subgraphs that are aggregated while rows are combined: 0 or 1
    """

    rows: ClusteredRows
    num_fused: int

    @property
    def num_fused_rows(self) -> int:
        return int(self.rows.start[self.num_fused])

    @cached_property
    def later(self) -> ClusteredRows:
        """Return the rows without the arcs into fused subgraphs, which thus need nothing of others."""
        first = int(self.rows.indptr[self.num_fused_rows])
        return ClusteredRows(self.rows.start, np.maximum(self.rows.indptr - first, 0), self.rows.indices[first:])

    @cached_property
    def later_dense(self) -> ClusteredRows:
        """Return `later` without connections between subgraphs."""
        return self.later.without(self.later.is_sparse())

    @cached_property
    def regions(self) -> CondensedRegions:
        """Return the rows that later subgraphs need of others: of all, once each and in order."""
        return condensed_regions(self.later)

    @cached_property
    def fused_arcs(self) -> np.ndarray:
        """Return arcs of each row into fused subgraphs, (num_rows,) int64."""
        first = int(self.rows.indptr[self.num_fused_rows])
        return np.bincount(self.rows.indices[:first], minlength=self.rows.num_rows)

    @cached_property
    def own_arcs(self) -> np.ndarray:
        """Return arcs of each row into its own subgraph where that is not fused, (num_rows,) int64."""
        return np.bincount(self.later_dense.indices, minlength=self.rows.num_rows)

    @cached_property
    def copy_arcs(self) -> np.ndarray:
        """Return arcs of each entry of the regions, (num_copies,) int64."""
        place = self.regions.place
        return np.bincount(place[place >= 0], minlength=self.regions.num_copies)

    def sums_by_subgraph(self, of_own: np.ndarray, of_copies: np.ndarray) -> np.ndarray:
        """Sum up a number of each row and one of each copy, (num_subgraphs,) int64."""
        own = np.concatenate([[0], np.cumsum(of_own)])[self.rows.start]
        copies = np.concatenate([[0], np.cumsum(of_copies)])[self.regions.start]
        return np.diff(own) + np.diff(copies)
