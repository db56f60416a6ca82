"""Cycles of MEGA's units, and their requests other than for rows.

Aggregation Engine: 256 units multiply-add one source's row into the sums of its destinations. Combination Engine: 4
tiles of bit-serial C-PEs, each with a slice of a row's columns. Condense Unit (Algorithm 1): comparisons of IDs, stores
into the Sparse Buffer, and their write-back. Weight Buffer: W is resident, streamed or loaded by need, window after
window of X.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.condense_traffic import BYTES_AN_ID, Buffer
from hpcgnn.accelerators.mega.layout import Rules
from hpcgnn.accelerators.workload import places_within, size_in_bytes, starts_of
from hpcgnn.partition.condense import CondensedRegions


def source_cycles(num_arcs: np.ndarray, aggregated_dim: int, rules: Rules) -> np.ndarray:
    """Cycles in which sources are added to the sums of their destinations, with the shape of `num_arcs`.

    Each unit takes one column. Units that a row leaves free take further destinations of the same source (§V-D: "free
    units can be assigned to aggregate other nodes"); a row with more columns than units takes several cycles per edge.
    Sources follow each other without a gap; a block ends rules.aggregation_fill cycles later. Assumed: no two edges
    meet at a bank of the Aggregation Buffer.
    """
    units = rules.units("aggregation_unit")
    if aggregated_dim > units:
        return num_arcs * -(-aggregated_dim // units)
    return -(-num_arcs // (units // aggregated_dim))


def fed_bits(width: np.ndarray, rules: Rules) -> np.ndarray:
    """Bits with which each value of a row is fed, (num_rows,) int64."""
    return np.maximum(width, rules.least_width()).astype(np.int64)


def row_cycles(nonzeros: np.ndarray, width: np.ndarray, combined_dim: int, rules: Rules) -> np.ndarray:
    """Cycles from a row to the next one, (num_rows,) int64; the last row needs rules.combination_fill more.

    A tile takes n values at a time, bit after bit, for the m columns of W in its C-PEs. The row ends with its longest
    tile and passes again for the next m columns. Assumed: a row without values takes one cycle per pass, in which its
    positions are read; meanwhile the Weight Reg is filled for the next columns and the next row is decoded.

    Parameters
    ----------
    nonzeros : (num_rows, 4) integer      of each tile's slice
    width : (num_rows,) integer           bits of a value

    Reference: MEGA, §V-C.
    """
    groups = -(-nonzeros.max(axis=1, initial=0).astype(np.int64) // rules["bse_per_pe"])
    return np.maximum(groups * fed_bits(width, rules), 1) * rules.column_passes(combined_dim)


class RowRequests(NamedTuple):
    row: np.ndarray          # (n,) int64, not descending
    offset: np.ndarray       # (n,) int64, bytes from the start of the region
    num_bytes: np.ndarray    # (n,) int64


def condense_cycles(regions: CondensedRegions, num_fused: int, num_rows: int, row_bytes: int,
                    rules: Rules) -> np.ndarray:
    """Cycles of the Condense Unit for each row that was combined, (num_rows,) int64.

    Each FIFO compares its first ID, all in one cycle; rows that match are stored one after the other. Assumed: if there
    are more subgraphs than FIFOs, groups of them take turns, each for one cycle or as long as its stores. The first
    `num_fused` subgraphs have no list.

    Reference: MEGA, Algorithm 1 and Fig. 13.
    """
    fifos, stores = rules.units("condense_unit"), -(-row_bytes // rules["sparse_port_bytes"])
    num_subgraphs = len(regions.start) - 1
    turns = range(num_fused, num_subgraphs, fifos)
    cycles = np.bincount(regions.copied_row, minlength=num_rows) * stores + len(turns)
    for first in turns:
        last = min(first + fifos, num_subgraphs)
        # A row counts once, however many subgraphs of the group copy it: the same place is written again.
        cycles[regions.copied_row[regions.start[first]:regions.start[last]]] -= 1
    return cycles


def list_reads(regions: CondensedRegions, rules: Rules) -> RowRequests:
    """Reads of ID lists, which lie one after the other.

    Assumed: a list is read in pieces of one DRAM access: the first at the start, each further one when the IDs of the
    piece before it have matched. The Edge Buffer keeps pieces and fills the FIFOs.
    """
    num_copies, ids = np.diff(regions.start), max(rules["line_bytes"] // BYTES_AN_ID, 1)
    subgraph, piece = places_within(-(-num_copies // ids))
    first = regions.start[subgraph] + piece * ids
    row = np.where(piece > 0, regions.copied_row[np.maximum(first - 1, 0)], 0).astype(np.int64)
    num_ids = np.minimum(num_copies[subgraph] - piece * ids, ids)
    return _by_row(row, first * BYTES_AN_ID, num_ids * BYTES_AN_ID)


def region_offsets(regions: CondensedRegions, row_bytes: int, buffer: Buffer) -> np.ndarray:
    num_lines = -(-np.diff(regions.start) * row_bytes // buffer.line_bytes)
    return starts_of(num_lines) * buffer.line_bytes


def copy_writes(regions: CondensedRegions, row_bytes: int, buffer: Buffer) -> RowRequests:
    """Writes of condensed regions, in whole lines, with the bytes that `condensed_traffic` counts.

    A region is written when its share of the Sparse Buffer is full or its last row is there.

    Reference: MEGA, Algorithm 1, line 16.
    """
    num_copies, line = np.diff(regions.start), buffer.line_bytes
    share = buffer.sparse_bytes // max(len(num_copies), 1)
    rows_at_once = max(share // row_bytes, 1)
    if share >= line:
        piece_bytes = share // line * line
        subgraph, piece = places_within(-(-num_copies * row_bytes // piece_bytes))
        begin = piece * piece_bytes
        end = np.minimum(begin + piece_bytes, num_copies[subgraph] * row_bytes)
        last, num_lines = (end - 1) // row_bytes, -(-(end - begin) // line)
    else:
        subgraph, piece = places_within(-(-num_copies // rows_at_once))
        begin = piece * rows_at_once * row_bytes // line * line
        last = np.minimum((piece + 1) * rows_at_once, num_copies[subgraph]) - 1
        num_lines = np.full(len(piece), -(-rows_at_once * row_bytes // line))
    row = regions.copied_row[regions.start[subgraph] + last].astype(np.int64)
    return _by_row(row, region_offsets(regions, row_bytes, buffer)[subgraph] + begin, num_lines * line)


def _by_row(row: np.ndarray, offset: np.ndarray, num_bytes: np.ndarray) -> RowRequests:
    order = np.argsort(row, kind="stable")
    return RowRequests(row[order], offset[order], num_bytes[order])


@dataclass(frozen=True)
class WeightLoads:
    name: str                   # {"resident", "streamed", "by need"}
    window_start: np.ndarray    # (num_windows + 1,) int64, rows of X that are in the Input Buffer together
    load: np.ndarray            # (num_loads,) int64, window of each request; not descending
    # offset, num_bytes: (num_loads,) int64, of the request, from the first byte of W
    offset: np.ndarray
    num_bytes: np.ndarray


def weight_loads(row_end: np.ndarray, count: np.ndarray, dim: int, combined_dim: int, rules: Rules) -> WeightLoads:
    """Choose how W is loaded: the possible way that reads the fewest bytes.

    - resident: half of the Weight Buffer holds W, which is read once.
    - streamed: per window of rows, all of W, in blocks of the columns that are multiplied at once, where a block fits.
    - by need: per window, the rows of W that it has values for. A window has at most as many values as rows of W fit
      half of the Weight Buffer, except a window of one row, where values take turns.

    A window stays in half of the Input Buffer. Assumed, since counts do not say where values are: no two values of a
    window share a column, and the rows of W that it needs are evenly spaced.

    row_end : (num_rows + 1,) int64    running sum of the rows' bytes in the Input Buffer; zeros if all are there
    count : (num_rows,) int64          nonzeros of a row
    """
    half, weight_row_bytes = rules.half("weight"), size_in_bytes(combined_dim, rules["weight_bits"])
    num_bytes = dim * weight_row_bytes
    count_end = starts_of(count)
    windows = _windows([(row_end, rules.half("input"))])
    if num_bytes <= half:
        return WeightLoads("resident", windows, *(np.array([number]) for number in (0, 0, num_bytes)))
    scarce = _windows([(row_end, rules.half("input")), (count_end, max(half // weight_row_bytes, 1))])
    needed = np.diff(count_end[scarce])
    streamed_bytes = (len(windows) - 1) * num_bytes
    if dim * size_in_bytes(rules.pes_per_tile, rules["weight_bits"]) <= half and (
            streamed_bytes <= int(needed.sum()) * weight_row_bytes):
        load = np.arange(len(windows) - 1)
        return WeightLoads("streamed", windows, load, np.zeros_like(load), np.full_like(load, num_bytes))
    load, place = places_within(needed)
    offset = place * dim // needed[load] * weight_row_bytes
    return WeightLoads("by need", scarce, load, offset, np.full(len(load), weight_row_bytes))


def _windows(limits: list[tuple[np.ndarray, int]]) -> np.ndarray:
    num_rows, bounds = len(limits[0][0]) - 1, [0]
    while bounds[-1] < num_rows:
        at = bounds[-1]
        ends = (int(np.searchsorted(end, end[at] + limit, "right")) - 1 for end, limit in limits)
        bounds.append(max(min(ends), at + 1))
    return np.array(bounds, np.int64)
