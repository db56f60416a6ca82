"""The pass in which rows are combined: blocks of rows, which also go into the sums of the first subgraph and into
condensed regions.

Aggregation of further subgraphs is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hpcgnn.accelerators.mega.aggregation import encoder_cycles, source_cycles
from hpcgnn.accelerators.mega.combination import row_cycles
from hpcgnn.accelerators.mega.condense_unit import RowRequests, condense_cycles, copy_writes, list_reads
from hpcgnn.accelerators.mega.events import added, combination_events, fused_events
from hpcgnn.accelerators.mega.layer import Layer, Places
from hpcgnn.accelerators.mega.requests import joined, pieces, requests
from hpcgnn.accelerators.schedule import Blocks, Requests

BLOCKS_A_RUN = 4096
NO_ROW_REQUESTS = RowRequests(*(np.empty(0, np.int64) for _ in RowRequests._fields))


def block_bounds(window_start: np.ndarray, most: int) -> np.ndarray:
    """Return the rows where blocks begin and the last one ends: windows, cut so that no block has more than `most`."""
    num_blocks = -(-np.diff(window_start) // most)
    window = np.repeat(np.arange(len(num_blocks)), num_blocks)
    number = np.arange(len(window)) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
    return np.append(window_start[window] + number * most, window_start[-1])


def combining_blocks(layer: Layer, places: Places) -> Iterator[Blocks]:
    """Yield the blocks, of at most rules.rows_a_block rows of one window.

    Rows of XW that a later subgraph reads are written: with Condense-Edge those of later subgraphs, since the first
    one's go to others as copies alone, else all of them. The own half of GraphSage is written for later subgraphs.
    The first subgraph's sums leave with the last block.
    """
    bounds = block_bounds(layer.weights.window_start, layer.rules["rows_a_block"])
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
        reads, writes = joined(reads), joined(writes)
        yield Blocks(_cycles(layer, cycles, run, is_last), reads, writes, _events(layer, run, is_last, reads, writes))


def _cycle_ends(layer: Layer) -> dict[str, np.ndarray]:
    """Sum up the cycles of rows in each unit, (num_rows + 1,) int64 each."""
    rules, product, arcs = layer.rules, layer.product, layer.connections
    of_rows = {"combination": row_cycles(product.rows.nonzeros, layer.stored.width, product.combined_dim, rules)}
    if product.aggregated_dim:
        is_fused = np.arange(layer.num_rows) < arcs.num_fused_rows
        own = source_cycles(is_fused.astype(np.int64) * layer.has_own_half, product.aggregated_dim, rules)
        of_rows["aggregation"] = source_cycles(arcs.fused_arcs, product.aggregated_dim, rules) + own
    if layer.condenses:
        of_rows["condense"] = condense_cycles(arcs.regions, arcs.num_fused, layer.num_rows, layer.row_bytes, rules)
    return {name: np.concatenate([[0], np.cumsum(numbers)]) for name, numbers in of_rows.items()}


def _cycles(layer: Layer, ends: Mapping[str, np.ndarray], run: np.ndarray, is_last: bool) -> np.ndarray:
    """Return the cycles of blocks in each stage; the Condense Unit works beside the Aggregation Engine (§V-D)."""
    rules, num_rows = layer.rules, np.diff(run)
    of_blocks = {name: np.diff(end[run]) for name, end in ends.items()}
    combination = of_blocks["combination"] + (num_rows > 0) * rules["combination_fill"]
    if not layer.product.aggregated_dim:
        return np.stack([combination, encoder_cycles(num_rows * layer.encodes, layer.output_dim, rules)], axis=1)
    aggregation = of_blocks["aggregation"] + (of_blocks["aggregation"] > 0) * rules["aggregation_fill"]
    aggregation = np.maximum(aggregation, of_blocks.get("condense", 0))
    encoder = np.zeros(len(num_rows), np.int64)
    if is_last:
        encoder[-1] = encoder_cycles(layer.connections.num_fused_rows * layer.encodes, layer.output_dim, rules)
    return np.stack([combination, aggregation, encoder], axis=1)


def _reads(layer: Layer, places: Places, run: np.ndarray) -> list[Requests]:
    weights = layer.weights
    row = weights.window_start[weights.load]
    parts = [_of_rows(RowRequests(row, weights.offset, weights.num_bytes), run, places.weights, "weights")]
    if layer.source:
        parts += layer.source.read(run)
    if layer.product.aggregated_dim:
        parts.append(pieces(layer.fused_edge_end, run, places.fused_edges, "edges"))
    return parts


def _writes(layer: Layer, places: Places, run: np.ndarray, is_last: bool) -> list[Requests]:
    fused, parts = layer.connections.num_fused_rows, []
    if not layer.is_kept:
        row = np.arange(layer.num_rows + 1)
        written = np.maximum(row, fused) if layer.condenses else row
        parts += [pieces(written * layer.row_bytes, run, places.combined, "combined rows"),
                  pieces(np.maximum(row, fused) * layer.own_row_bytes, run, places.own, "combined rows")]
    if not layer.target:
        return parts
    if not layer.product.aggregated_dim:
        return parts + layer.target.written(run)
    if is_last:
        last = len(run) - 2
        parts += [part._replace(block=part.block + last) for part in layer.target.written(np.array([0, fused]))]
    return parts


def _of_rows(asked: RowRequests, run: np.ndarray, address: int, kind: str) -> Requests:
    """Return the requests that rows of a run make."""
    first, last = np.searchsorted(asked.row, run[[0, -1]])
    block = np.searchsorted(run, asked.row[first:last], "right") - 1
    return requests(block, address + asked.offset[first:last], asked.num_bytes[first:last], kind)


def _events(layer: Layer, run: np.ndarray, is_last: bool, reads: Requests, writes: Requests) -> dict[str, int]:
    rows = slice(int(run[0]), int(run[-1]))
    return added(combination_events(layer, rows, reads, writes), fused_events(layer, rows, is_last, reads, writes))
