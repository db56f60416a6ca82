"""What a subgraph reads of XW from DRAM, by schedule; the bytes are those of hpcgnn.partition.condense_traffic.

Edges, and what is done with the rows, are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcgnn.accelerators.mega.condense_unit import region_offsets
from hpcgnn.accelerators.mega.layer import Layer, Places
from hpcgnn.accelerators.mega.requests import lines, requests
from hpcgnn.accelerators.schedule import Requests
from hpcgnn.partition.condense import ClusteredRows
from hpcgnn.partition.condense_traffic import ENTRIES_A_RUN, FetchedLines, fetched_lines, source_lines

Run = tuple[int, int, list[Requests]]      # subgraphs first to last - 1, and their requests


def source_reads(layer: Layer, places: Places) -> Iterator[Run]:
    """Yield runs of subgraphs that cover all of them, with the reads of XW; none where it is kept on the chip.

    condense reads a subgraph's own rows through the Combination Buffer and the others from its condensed region, as
    condensed_traffic counts; source reads those once a subgraph where they lie, as source_traffic; arc once an arc, as
    direct_traffic; gather all rows as arcs need them, through both buffers, as gather_traffic. Assumed: but for gather,
    lines of own rows are read in order, as sources are taken.
    """
    if layer.is_kept:
        yield from _runs_without_reads(layer.connections.later)
        return
    how, buffer = layer.rules.sparse_reads, layer.rules.row_buffer
    rows = layer.connections.later if how == "gather" else layer.connections.later_dense
    for run in fetched_lines(rows, layer.row_bytes, buffer.dense() if how == "condense" else buffer, ENTRIES_A_RUN):
        first, last = run.first_cluster, run.first_cluster + len(run.start) - 1
        parts = [_fetched(run, layer, places, in_order=how != "gather")]
        if how == "condense":
            parts.append(_regions(first, last, layer, places))
        elif how == "source":
            parts.append(_by_source(first, last, layer, places))
        elif how == "arc":
            parts.append(_by_arc(first, last, layer, places))
        yield first, last, parts


def _runs_without_reads(rows: ClusteredRows) -> Iterator[Run]:
    entry, first = rows.indptr[rows.start], 0
    while first < rows.num_clusters:
        last = max(int(np.searchsorted(entry, entry[first] + ENTRIES_A_RUN, "right")) - 1, first + 1)
        yield first, last, []
        first = last


def _fetched(run: FetchedLines, layer: Layer, places: Places, in_order: bool) -> Requests:
    block, line = np.repeat(np.arange(len(run.start) - 1), np.diff(run.start)), run.line
    if in_order:
        line = line[np.lexsort((line, block))]
    return lines(block, line, layer.rules["line_bytes"], places.combined, "combined rows")


def _regions(first: int, last: int, layer: Layer, places: Places) -> Requests:
    offset = region_offsets(layer.connections.regions, layer.row_bytes, layer.rules.row_buffer)[first:last + 1]
    return requests(np.arange(last - first), places.regions + offset[:-1], np.diff(offset), "condensed rows")


def _by_source(first: int, last: int, layer: Layer, places: Places) -> Requests:
    regions = layer.connections.regions
    chosen = slice(regions.start[first], regions.start[last])
    first_line, num_lines = (part[chosen] for part in source_lines(regions, layer.row_bytes, layer.rules.row_buffer))
    block = np.repeat(np.arange(last - first), np.diff(regions.start[first:last + 1]))
    return _expanded(block, first_line, num_lines, layer, places)


def _by_arc(first: int, last: int, layer: Layer, places: Places) -> Requests:
    rows, line_bytes = layer.connections.later, layer.rules["line_bytes"]
    entry = rows.indptr[rows.start[first:last + 1]]
    source = rows.indices[entry[0]:entry[-1]].astype(np.int64)
    block = np.repeat(np.arange(last - first), np.diff(entry))
    is_sparse = (source < rows.start[first + block]) | (source >= rows.start[first + block + 1])
    begin = source[is_sparse] * layer.row_bytes
    first_line = begin // line_bytes
    num_lines = (begin + layer.row_bytes - 1) // line_bytes - first_line + 1
    return requests(block[is_sparse], places.combined + first_line * line_bytes, num_lines * line_bytes,
                    "combined rows")


def _expanded(block: np.ndarray, first_line: np.ndarray, num_lines: np.ndarray, layer: Layer,
              places: Places) -> Requests:
    """Return the requests of runs of lines, those joined that follow each other."""
    number = np.arange(int(num_lines.sum())) - np.repeat(np.cumsum(num_lines) - num_lines, num_lines)
    return lines(np.repeat(block, num_lines), np.repeat(first_line, num_lines) + number, layer.rules["line_bytes"],
                 places.combined, "combined rows")
