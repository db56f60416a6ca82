"""Events that cost energy in MEGA: operations of its units and bytes of its buffers, for runs of blocks.

What DRAM brings is written to a buffer; what goes to DRAM is read from one.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.accelerators.mega.layer import Layer
from hpcgnn.accelerators.mega.layout import bytes_of
from hpcgnn.accelerators.mega.units import fed_bits
from hpcgnn.accelerators.schedule import KIND, Requests


def combination_events(layer: Layer, rows: slice, reads: Requests, writes: Requests) -> dict[str, int]:
    """Events of combining rows. Each pass of m columns reads X, and a row of W for each value."""
    rules, product = layer.rules, layer.product
    count = product.rows.nonzeros[rows].sum(axis=1, dtype=np.int64)
    num_values, passes = int(count.sum()), rules.column_passes(product.combined_dim)
    num_bits = int((count * fed_bits(layer.stored.width[rows], rules)).sum())
    row_bytes = bytes_of(product.combined_dim, rules["weight_bits"])
    in_buffer = int(sum(end[rows.stop] - end[rows.start]
                        for end in (layer.stored.value_end, layer.stored.position_end)))
    events = {"bse": num_bits * product.combined_dim, "decoder": num_values * passes,
              "crossbar": num_values * -(-product.combined_dim // rules["crossbar_columns"]),
              "write:weight": _bytes(reads, "weights"), "read:weight": num_values * row_bytes,
              "write:input": _bytes(reads, "input rows", "positions"), "read:input": in_buffer * passes}
    if product.aggregated_dim:
        combined_bytes = (rows.stop - rows.start) * (layer.row_bytes + layer.own_row_bytes)
        return events | {"write:combination": combined_bytes, "read:combination": _bytes(writes, "combined rows")}
    return added(events, _output_events(layer, rows.start, rows.stop, from_sums=False))


def fused_events(layer: Layer, rows: slice, is_last: bool, reads: Requests, writes: Requests) -> dict[str, int]:
    """Events of the Aggregation Engine and the Condense Unit on rows as they are combined."""
    arcs, fused = layer.connections, layer.connections.num_fused_rows
    if not layer.product.aggregated_dim:
        return {}
    num_own = max(min(rows.stop, fused) - rows.start, 0) * layer.has_own_half
    events = _sum_events(layer, int(arcs.fused_arcs[rows].sum()) + num_own)
    listed = _bytes(reads, "edges", "lists")
    events |= {"write:edge": listed, "read:edge": listed}
    if is_last:
        events = added(events, _output_events(layer, 0, fused, from_sums=True))
    if layer.condenses:
        copied = arcs.regions.copied_row
        num_copies = int(((copied >= rows.start) & (copied < rows.stop)).sum())
        events |= {"condense_unit": (rows.stop - rows.start) * (arcs.rows.num_clusters - arcs.num_fused),
                   "write:sparse": num_copies * layer.row_bytes, "read:sparse": _bytes(writes, "condensed rows")}
    return events


def later_events(layer: Layer, first: int, last: int, reads: Requests) -> dict[str, int]:
    """Events of aggregating subgraphs first to last - 1. A source's row is read once per subgraph."""
    arcs = layer.connections
    begin, end = int(arcs.rows.start[first]), int(arcs.rows.start[last])
    begin, end = max(begin, arcs.num_fused_rows), max(end, arcs.num_fused_rows)
    regions = slice(int(arcs.regions.start[first]), int(arcs.regions.start[last]))
    num_own = (end - begin) * layer.has_own_half
    num_arcs = int(arcs.own_arcs[begin:end].sum() + arcs.copy_arcs[regions].sum())
    own_sources, copies = int((arcs.own_arcs[begin:end] > 0).sum()), regions.stop - regions.start
    sparse = copies if layer.condenses else 0
    edges = _bytes(reads, "edges")
    events = _sum_events(layer, num_arcs + num_own) | {
        "condense_unit": own_sources + copies if layer.condenses else 0,
        "write:edge": edges, "read:edge": edges,
        "write:combination": _bytes(reads, "combined rows"), "write:sparse": _bytes(reads, "condensed rows"),
        "read:combination": (own_sources + copies - sparse) * layer.row_bytes + num_own * layer.own_row_bytes,
        "read:sparse": sparse * layer.row_bytes}
    return added(events, _output_events(layer, begin, end, from_sums=True))


def _sum_events(layer: Layer, num_arcs: int) -> dict[str, int]:
    num_bytes = num_arcs * layer.sum_bytes
    return {"aggregation_unit": num_arcs * layer.output_dim, "read:aggregation": num_bytes,
            "write:aggregation": num_bytes}


def _output_events(layer: Layer, first: int, last: int, from_sums: bool) -> dict[str, int]:
    # Rows go into the Input Buffer and, if it is too small, on to DRAM.
    events = {"read:aggregation": (last - first) * layer.sum_bytes * from_sums}
    if not layer.encodes:
        return events
    num_bytes = layer.output_end(last) - layer.output_end(first)
    return events | {"encoder": (last - first) * layer.output_dim, "write:input": num_bytes,
                     "read:input": num_bytes if layer.target else 0}


def added(events: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    return {name: events.get(name, 0) + others.get(name, 0) for name in events | others}


def _bytes(asked: Requests, *kinds: str) -> int:
    return int(asked.num_bytes[np.isin(asked.kind, [KIND[kind] for kind in kinds])].sum())
