"""OutgoingRows: the table of what a rank sends, some rows of it sums, made anew for every exchange.

Which rows are summed is the business of `hpcgnn.exchange.pre_aggregation`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.arrival import PassedOn
from hpcgnn.exchange.pre_aggregation import PreAggregation
from hpcgnn.graph.hop import Arrival, ExchangeSite
from hpcgnn.graph.normalization import degree_factor
from hpcgnn.ops.aggregation import SparseRows, add_product, from_csr, multiply
from hpcgnn.ops.arena import empty
from hpcgnn.ops.cuda.resident import resident


class OutgoingRows:
    """Sum inner rows to those of the table, and take the table's gradients back to inner rows.

    Parameters
    ----------
    sums : PreAggregation
    degree : (num_inner,)      in the whole graph, or sums of weights there; see `hpcgnn.graph.normalization`

    Attributes
    ----------
    sums : as it was given
    """

    def __init__(self, sums: PreAggregation, degree: np.ndarray):
        self.sums, self._degree = sums, degree
        self._num_inner = len(degree)
        self._whole: dict[str, tuple[SparseRows, SparseRows]] = {}
        self._made: dict[tuple, SparseRows] = {}

    def of(self, h: torch.Tensor, site: ExchangeSite) -> torch.Tensor:
        """Return what a pass sends of the first inner rows h (n, dim): the first rows of the table, as h.

        A sum is of rows as the site's reduction scales them for any receiver; rows that are sent as they stand are not
        scaled.
        """
        num_rows = self.sums.num_within(site.reach)
        shape = "out", site.reduction, num_rows, len(h)
        if shape not in self._made:
            forward, _ = self._matrices(site.reduction)
            self._made[shape] = replace(forward.rows(0, num_rows), split=self._num_inner, num_near=len(h))
        return multiply(self._made[shape], h)

    def empty_gradients(self, like: torch.Tensor) -> torch.Tensor:
        """Return a gradient of zero for each row of the table, (num_sent, dim)."""
        return empty((self.sums.num_sent, like.shape[1]), like.dtype, like.device).zero_()

    def add_gradients(self, gradients: torch.Tensor, rows: torch.Tensor, site: ExchangeSite) -> None:
        """Add the gradients of the table's rows, (num_sent, dim), to those of the first inner rows, (n, dim); those of
        rows that the pass did not send are zero.
        """
        shape = "home", site.reduction, len(rows)
        if shape not in self._made:
            _, back = self._matrices(site.reduction)
            self._made[shape] = back.rows(0, len(rows))
        add_product(self._made[shape], gradients, None, rows)

    def _matrices(self, reduction: str | None) -> tuple[SparseRows, SparseRows]:
        """Return the matrix of the table over the inner rows, and its transpose."""
        if reduction is None:
            raise KernelError("rows are summed before they are sent, and this layer does not say how; use "
                              "--set pre_aggregation=off")
        if reduction not in self._whole:
            self._whole[reduction] = self._build(reduction)
        return self._whole[reduction]

    def _build(self, reduction: str) -> tuple[SparseRows, SparseRows]:
        sums = self.sums
        weight = np.ones(len(sums.source), np.float32) if sums.weight is None else sums.weight
        factor = degree_factor(self._degree, reduction) if reduction == "gcn" else None
        if factor is not None:
            of_sum = np.repeat(sums.is_sum, np.diff(sums.begin))
            weight = np.where(of_sum, weight * factor[sums.source], weight)
        table = scipy.sparse.csr_matrix((weight, sums.source, sums.begin), shape=(sums.num_sent, self._num_inner))
        back = table.tocsc()
        has_scale = factor is not None or sums.weight is not None
        forward, home = ({"entry_scale": resident(made.data.astype(np.float32))} if has_scale else {}
                         for made in (table, back))
        return (from_csr(resident(sums.begin), resident(sums.source), self._num_inner, **forward),
                from_csr(resident(back.indptr.astype(np.int64)), resident(back.indices.astype(np.int32)), sums.num_sent,
                         **home))


@dataclass(frozen=True)
class SummedGradients(PassedOn):
    """Gradients of the table's rows on their way home; see `hpcgnn.graph.hop.Arrival`."""

    outgoing: OutgoingRows
    arrival: Arrival
    site: ExchangeSite

    def finish(self, rows: torch.Tensor) -> None:
        """See `hpcgnn.graph.hop.Arrival`."""
        gradients = self.outgoing.empty_gradients(rows)
        self.arrival.finish(gradients)
        self.outgoing.add_gradients(gradients, rows, self.site)
