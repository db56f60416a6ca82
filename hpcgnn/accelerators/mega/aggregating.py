"""The pass in which the subgraphs after the first are aggregated, one block each.

How rows were combined is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcgnn.accelerators.mega.aggregation import encoder_cycles, source_cycles
from hpcgnn.accelerators.mega.events import later_events
from hpcgnn.accelerators.mega.layer import Layer, Places
from hpcgnn.accelerators.mega.requests import joined, pieces
from hpcgnn.accelerators.mega.source_reads import source_reads
from hpcgnn.accelerators.schedule import Blocks


def aggregating_blocks(layer: Layer, places: Places) -> Iterator[Blocks]:
    """Yield a block for each subgraph that was not aggregated while rows were combined.

    Assumed: edges stream through the Edge Buffer while the subgraph is aggregated; the Condense Unit compares the IDs
    of sources (§V-E) while the row before is added.
    """
    cycles, fused = _cycles(layer), layer.connections.num_fused
    for first, last, parts in source_reads(layer, places):
        skipped = max(fused - first, 0)
        if last <= first + skipped:
            continue
        bounds = np.arange(first, last + 1)
        rows = layer.connections.rows.start[bounds]
        reads = [pieces(layer.later_edge_end, bounds, places.later_edges, "edges")]
        if not layer.is_kept:
            own = np.maximum(np.arange(layer.num_rows + 1), layer.connections.num_fused_rows) * layer.own_row_bytes
            reads.append(pieces(own, rows, places.own, "combined rows"))
        reads = joined([part._replace(block=part.block - skipped) for part in reads + parts])
        writes = joined(layer.target.written(rows[skipped:]) if layer.target else [])
        yield Blocks(cycles[first + skipped:last], reads, writes, later_events(layer, first + skipped, last, reads))


def _cycles(layer: Layer) -> np.ndarray:
    """Return the cycles of each subgraph in the Aggregation Engine and in the Encoder, (num_subgraphs, 2) int64."""
    arcs, dim, rules = layer.connections, layer.product.aggregated_dim, layer.rules
    own = source_cycles(arcs.own_arcs, dim, rules)
    if layer.has_own_half:
        is_later = (np.arange(layer.num_rows) >= arcs.num_fused_rows).astype(np.int64)
        own = own + source_cycles(is_later, dim, rules)
    aggregation = arcs.sums_by_subgraph(own, source_cycles(arcs.copy_arcs, dim, rules))
    aggregation += (aggregation > 0) * rules["aggregation_fill"]
    num_rows = np.diff(arcs.rows.start)
    return np.stack([aggregation, encoder_cycles(num_rows * layer.encodes, layer.output_dim, rules)], axis=1)
