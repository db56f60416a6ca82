"""Passes of an inference on MEGA: per product, one that combines rows and one that aggregates the remaining subgraphs.

While blocks of rows are combined (XW), they are added to the sums of the first subgraph, and rows that later subgraphs
need are copied into condensed regions in DRAM. The second pass then aggregates each later subgraph from its own rows
and its condensed region.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from hpcgnn.accelerators.condense_traffic import ENTRIES_A_RUN, FetchedLines, fetched_lines, source_lines
from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.mega.layer import Layer, PlacedRows, Places, added, pieces, places_of
from hpcgnn.accelerators.mega.layout import Connections, Rules, layout_of, stored_rows
from hpcgnn.accelerators.mega.units import (
    RowRequests,
    condense_cycles,
    copy_writes,
    list_reads,
    region_offsets,
    row_cycles,
    source_cycles,
)
from hpcgnn.accelerators.schedule import (
    NO_REQUESTS,
    AddressSpace,
    Blocks,
    Pass,
    Requests,
    block_start_of,
    in_order,
    requests_of,
    runs_of,
    single_requests,
)
from hpcgnn.accelerators.workload import Workload, places_within, size_in_bytes, starts_of

Run = tuple[int, int, list[Requests]]      # subgraphs first to last - 1, and their requests


def passes(design: Design, workload: Workload) -> list[Pass]:
    """The passes of an inference.

    X of the first product comes from DRAM. Assumed: a further X stays in the Input Buffer if half of it holds all of
    X, else it is written to DRAM and read again; the sums of the last product are written as they are. Raises
    ConfigError if the design lacks a number, its buffers hold no row, or values have more than 8 bits.

    Reference: MEGA, section V, Table IV.
    """
    rules = Rules(design)
    workload = workload.at_width(design.bit_width) if design.bit_width else workload
    space, made = AddressSpace(), []
    for layer in _layers(rules, workload, space):
        places, name = places_of(layer, space), layer.product.name
        stages = ("combination", "aggregation", "encoder") if layer.product.aggregated_dim else (
            "combination", "encoder")
        made.append(Pass(f"{name} combination", stages, partial(combining_blocks, layer, places), 0))
        if layer.has_later:
            made.append(Pass(f"{name} aggregation", ("aggregation", "encoder"),
                             partial(aggregating_blocks, layer, places), 0))
    return made


def source_reads(layer: Layer, places: Places) -> Iterator[Run]:
    """Yield runs of all subgraphs with their reads of XW; none where XW is kept on the chip.

    - condense: a subgraph's own rows through the Combination Buffer, all other rows from its condensed region;
    - source: all other rows once per subgraph, at their own addresses;
    - arc: all other rows once per edge;
    - gather: all rows as edges need them, through both buffers.

    Assumed: except for gather, lines of own rows are read in the order of the sources.
    """
    if layer.is_kept:
        rows = layer.connections.later
        yield from ((first, last, []) for first, last in runs_of(rows.indptr[rows.start], ENTRIES_A_RUN))
        return
    how, buffer = layer.rules.sparse_reads, layer.rules.row_buffer
    rows = layer.connections.later if how == "gather" else layer.connections.later_own
    for run in fetched_lines(rows, layer.row_bytes, buffer.dense() if how == "condense" else buffer, ENTRIES_A_RUN):
        first, last = run.first_cluster, run.first_cluster + len(run.start) - 1
        parts = [_fetched(run, layer, places, in_order=how != "gather")]
        if how in OTHER_ROWS:
            parts.append(OTHER_ROWS[how](first, last, layer, places))
        yield first, last, parts


def _fetched(run: FetchedLines, layer: Layer, places: Places, in_order: bool) -> Requests:
    block, line = np.repeat(np.arange(len(run.start) - 1), np.diff(run.start)), run.line
    if in_order:
        line = line[np.lexsort((line, block))]
    return _lines(block, line, layer, places)


def _regions(first: int, last: int, layer: Layer, places: Places) -> Requests:
    offset = region_offsets(layer.connections.regions, layer.row_bytes, layer.rules.row_buffer)[first:last + 1]
    return single_requests("condensed rows", np.arange(last - first), places.regions + offset[:-1], np.diff(offset))


def _by_source(first: int, last: int, layer: Layer, places: Places) -> Requests:
    regions = layer.connections.regions
    chosen = slice(regions.start[first], regions.start[last])
    first_line, num_lines = (part[chosen] for part in source_lines(regions, layer.row_bytes, layer.rules.row_buffer))
    block = np.repeat(np.arange(last - first), np.diff(regions.start[first:last + 1]))
    group, number = places_within(num_lines)
    return _lines(block[group], first_line[group] + number, layer, places)


def _by_arc(first: int, last: int, layer: Layer, places: Places) -> Requests:
    rows, line_bytes = layer.connections.later, layer.rules["line_bytes"]
    entry = rows.indptr[rows.start[first:last + 1]]
    source = rows.indices[entry[0]:entry[-1]].astype(np.int64)
    block = np.repeat(np.arange(last - first), np.diff(entry))
    is_sparse = (source < rows.start[first + block]) | (source >= rows.start[first + block + 1])
    begin = source[is_sparse] * layer.row_bytes
    first_line = begin // line_bytes
    num_lines = (begin + layer.row_bytes - 1) // line_bytes - first_line + 1
    return single_requests("combined rows", block[is_sparse], places.combined + first_line * line_bytes,
                           num_lines * line_bytes)


OTHER_ROWS = {"condense": _regions, "source": _by_source, "arc": _by_arc}      # requests for rows of other subgraphs


def _lines(block: np.ndarray, line: np.ndarray, layer: Layer, places: Places) -> Requests:
    line_bytes = layer.rules["line_bytes"]
    return requests_of("combined rows", block, places.combined + line.astype(np.int64) * line_bytes, line_bytes)


def aggregating_blocks(layer: Layer, places: Places) -> Iterator[Blocks]:
    """Yield a block per subgraph that was not aggregated during combination.

    Assumed: edges stream through the Edge Buffer during aggregation; the Condense Unit compares the IDs of sources
    (§V-E) while the row before is added.
    """
    cycles, fused = _cycles(layer), layer.connections.num_fused
    for first, last, parts in source_reads(layer, places):
        skipped = max(fused - first, 0)
        if last <= first + skipped:
            continue
        bounds = np.arange(first, last + 1)
        rows = layer.connections.rows.start[bounds]
        reads = [pieces("edges", layer.later_edge_end, bounds, places.later_edges)]
        if not layer.is_kept:
            own = np.maximum(np.arange(layer.num_rows + 1), layer.connections.num_fused_rows) * layer.own_row_bytes
            reads.append(pieces("combined rows", own, rows, places.own))
        read = in_order(*(part._replace(block=part.block - skipped) for part in reads + parts))
        writes = in_order(*(layer.target.written(rows[skipped:]) if layer.target else [NO_REQUESTS]))
        yield Blocks(cycles[first + skipped:last], read, writes, layer.later_events(first + skipped, last, read))


def _cycles(layer: Layer) -> np.ndarray:
    # (num_subgraphs, 2) int64: cycles in the Aggregation Engine and in the Encoder.
    arcs, dim, rules = layer.connections, layer.product.aggregated_dim, layer.rules
    own = source_cycles(arcs.own_arcs, dim, rules)
    if layer.product.own_dim:
        is_later = (np.arange(layer.num_rows) >= arcs.num_fused_rows).astype(np.int64)
        own = own + source_cycles(is_later, dim, rules)
    aggregation = arcs.sums_by_subgraph(own, source_cycles(arcs.copy_arcs, dim, rules))
    aggregation += (aggregation > 0) * rules["aggregation_fill"]
    return np.stack([aggregation, layer.encoder_cycles(np.diff(arcs.rows.start))], axis=1)


BLOCKS_A_RUN = 4096
NO_ROW_REQUESTS = RowRequests(*(np.empty(0, np.int64) for _ in RowRequests._fields))


def combining_blocks(layer: Layer, places: Places) -> Iterator[Blocks]:
    """Yield blocks of at most rules.rows_a_block rows of one window.

    Rows of XW that a later subgraph reads are written. With Condense-Edge these are the rows of later subgraphs only,
    since the first one's go to others as copies. The own half of GraphSage is written for later subgraphs. The sums
    of the first subgraph leave with the last block.
    """
    bounds = block_start_of(layer.weights.window_start, layer.rules["rows_a_block"])
    cycles, lists, copies = _cycle_ends(layer), NO_ROW_REQUESTS, NO_ROW_REQUESTS
    if layer.condenses:
        regions = layer.connections.regions
        lists = list_reads(regions, layer.rules)
        copies = copy_writes(regions, layer.row_bytes, layer.rules.row_buffer)
    for first in range(0, len(bounds) - 1, BLOCKS_A_RUN):
        run = bounds[first:first + BLOCKS_A_RUN + 1]
        is_last = len(run) + first == len(bounds)
        reads = _reads(layer, places, run)
        reads.append(_of_rows(lists, run, places.lists, "lists"))
        writes = [*_writes(layer, places, run, is_last), _of_rows(copies, run, places.regions, "condensed rows")]
        read, written = in_order(*reads), in_order(*writes)
        rows = slice(int(run[0]), int(run[-1]))
        yield Blocks(_combining_cycles(layer, cycles, run, is_last), read, written,
                     added(layer.combination_events(rows, read, written),
                           layer.fused_events(rows, is_last, read, written)))


def _cycle_ends(layer: Layer) -> dict[str, np.ndarray]:
    rules, product, arcs = layer.rules, layer.product, layer.connections
    of_rows = {"combination": row_cycles(product.rows.nonzeros, layer.stored.width, product.combined_dim, rules)}
    if product.aggregated_dim:
        is_fused = np.arange(layer.num_rows) < arcs.num_fused_rows
        own = source_cycles(is_fused.astype(np.int64) * bool(product.own_dim), product.aggregated_dim, rules)
        of_rows["aggregation"] = source_cycles(arcs.fused_arcs, product.aggregated_dim, rules) + own
    if layer.condenses:
        of_rows["condense"] = condense_cycles(arcs.regions, arcs.num_fused, layer.num_rows, layer.row_bytes, rules)
    return {name: starts_of(numbers) for name, numbers in of_rows.items()}


def _combining_cycles(layer: Layer, ends: Mapping[str, np.ndarray], run: np.ndarray, is_last: bool) -> np.ndarray:
    # The Condense Unit works at the same time as the Aggregation Engine (§V-D).
    rules, num_rows = layer.rules, np.diff(run)
    of_blocks = {name: np.diff(end[run]) for name, end in ends.items()}
    combination = of_blocks["combination"] + (num_rows > 0) * rules["combination_fill"]
    if not layer.product.aggregated_dim:
        return np.stack([combination, layer.encoder_cycles(num_rows)], axis=1)
    aggregation = of_blocks["aggregation"] + (of_blocks["aggregation"] > 0) * rules["aggregation_fill"]
    aggregation = np.maximum(aggregation, of_blocks.get("condense", 0))
    encoder = np.zeros(len(num_rows), np.int64)
    if is_last:
        encoder[-1] = layer.encoder_cycles(layer.connections.num_fused_rows)
    return np.stack([combination, aggregation, encoder], axis=1)


def _reads(layer: Layer, places: Places, run: np.ndarray) -> list[Requests]:
    weights = layer.weights
    row = weights.window_start[weights.load]
    parts = [_of_rows(RowRequests(row, weights.offset, weights.num_bytes), run, places.weights, "weights")]
    if layer.source:
        parts += layer.source.read(run)
    if layer.product.aggregated_dim:
        parts.append(pieces("edges", layer.fused_edge_end, run, places.fused_edges))
    return parts


def _writes(layer: Layer, places: Places, run: np.ndarray, is_last: bool) -> list[Requests]:
    fused, parts = layer.connections.num_fused_rows, []
    if not layer.is_kept:
        row = np.arange(layer.num_rows + 1)
        written = np.maximum(row, fused) if layer.condenses else row
        parts += [pieces("combined rows", written * layer.row_bytes, run, places.combined),
                  pieces("combined rows", np.maximum(row, fused) * layer.own_row_bytes, run, places.own)]
    if not layer.target:
        return parts
    if not layer.product.aggregated_dim:
        return parts + layer.target.written(run)
    if is_last:
        last = len(run) - 2
        parts += [part._replace(block=part.block + last) for part in layer.target.written(np.array([0, fused]))]
    return parts


def _of_rows(asked: RowRequests, run: np.ndarray, address: int, kind: str) -> Requests:
    first, last = np.searchsorted(asked.row, run[[0, -1]])
    block = np.searchsorted(run, asked.row[first:last], "right") - 1
    return single_requests(kind, block, address + asked.offset[first:last], asked.num_bytes[first:last])


def _layers(rules: Rules, workload: Workload, space: AddressSpace) -> Iterator[Layer]:
    layout = layout_of(workload, rules)
    known: dict[bytes, Connections] = {}
    products = [product.ordered(layout.subgraphs.order) for product in workload.products]
    stored = [stored_rows(product.rows, rules) for product in products]
    placed = [PlacedRows(space.place(rows.value_end), space.place(rows.position_end))
              if i == 0 or rows.num_bytes > rules.half("input") else None for i, rows in enumerate(stored)]
    sums = np.arange(workload.num_nodes + 1) * size_in_bytes(products[-1].result_dim, rules["sum_bits"])
    placed.append(PlacedRows(space.place(sums), np.zeros_like(sums)))
    for i, product in enumerate(products):
        rows = layout.rows(product.aggregated_dim, rules) if product.aggregated_dim else layout.subgraphs.rows
        connections = known.setdefault(rows.start.tobytes(), Connections(rows, int(bool(rules["fuse_first_subgraph"]))))
        yield Layer(rules, product, stored[i], connections, placed[i], placed[i + 1],
                    stored[i + 1] if i + 1 < len(products) else None)
