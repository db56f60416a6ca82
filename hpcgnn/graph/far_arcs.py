"""FarArcs: the arcs of hops whose rows come by messages, where they are others than those of the input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
