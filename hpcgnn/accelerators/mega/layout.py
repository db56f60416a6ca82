"""How rows lie in DRAM and which subgraphs they make, one order for all layers.

What a layer reads and computes of them is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.accelerators.mega.rules import Rules, bytes_of
from hpcgnn.accelerators.subgraphs import Subgraphs, blocks_of, subgraphs_of
from hpcgnn.accelerators.workload import Workload
from hpcgnn.errors import ConfigError
from hpcgnn.partition.condense import ClusteredRows
from hpcgnn.partition.condense_traffic import pruned_entries


def rows_a_subgraph(aggregated_dim: int, rules: Rules) -> int:
    """Return the rows whose sums half of the Aggregation Buffer holds and that half of the Combination Buffer holds.

    Raises
    ------
    ConfigError      none
    """
    sums = rules.half("aggregation") // bytes_of(aggregated_dim, rules["sum_bits"])
    combined = rules.row_buffer.dense().num_bytes // bytes_of(aggregated_dim, rules["combined_bits"])
    if min(sums, combined) < 1:
        raise ConfigError(f"the buffers of {rules.design.name} hold no row of {aggregated_dim} columns; choose larger "
                          "ones")
    return min(sums, combined)


@dataclass(frozen=True)
class Layout:
    """The order of rows, cut for the widest aggregation of a workload.

    Attributes
    ----------
    subgraphs : Subgraphs      arcs that gcod prunes are gone
    num_rows : int             that a subgraph was asked to have
    """

    subgraphs: Subgraphs
    num_rows: int

    def rows(self, aggregated_dim: int, rules: Rules) -> ClusteredRows:
        """Return the subgraphs of a layer; assumed: subgraphs of METIS that follow each other are one where the
        buffers hold them together, so that rows keep their order from layer to layer.
        """
        most, rows = rows_a_subgraph(aggregated_dim, rules), self.subgraphs.rows
        if most <= self.num_rows:
            return rows
        if not rules.has_metis:
            start = np.append(np.arange(0, rows.num_rows, most), rows.num_rows)
            return ClusteredRows(start, rows.indptr, rows.indices)
        bounds = [0]
        while bounds[-1] < rows.num_clusters:
            end = int(np.searchsorted(rows.start, rows.start[bounds[-1]] + most, "right")) - 1
            bounds.append(max(end, bounds[-1] + 1))
        return ClusteredRows(rows.start[bounds], rows.indptr, rows.indices)


def layout_of(workload: Workload, rules: Rules) -> Layout:
    """Cut a workload's graph as the schedule says: METIS as for `hpcgnn bench dram`, or blocks of ids.

    Assumed: a subgraph that METIS made a few rows larger than asked for fits nevertheless.

    Raises
    ------
    ConfigError      the buffers hold no row, or METIS gave up
    """
    num_rows = min((rows_a_subgraph(product.aggregated_dim, rules) for product in workload.products
                    if product.aggregated_dim), default=max(workload.num_nodes, 1))
    if rules.has_metis:
        subgraphs = subgraphs_of(workload.indptr, workload.indices, num_rows, rules["seed"])
    else:
        subgraphs = blocks_of(workload.indptr, workload.indices, num_rows)
    if rules["schedule"] == "gcod":
        rows = subgraphs.rows
        subgraphs = Subgraphs(subgraphs.order, rows.without(pruned_entries(rows, rules["pruned_share"])))
    return Layout(subgraphs, num_rows)
