"""Condense-Edge in hardware, Algorithm 1: comparisons of IDs, stores into the Sparse Buffer, and their write-back.

What aggregation does with the copies is not known here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcgnn.accelerators.mega.rules import Rules
from hpcgnn.partition.condense import CondensedRegions
from hpcgnn.partition.condense_traffic import BYTES_AN_ID, Buffer


class RowRequests(NamedTuple):
    """Requests that are made when a row has been combined.

    Attributes
    ----------
    row : (n,) int64         not descending
    offset : (n,) int64      bytes from the begin of the region that the requests are for
    num_bytes : (n,) int64
    """

    row: np.ndarray
    offset: np.ndarray
    num_bytes: np.ndarray


def condense_cycles(regions: CondensedRegions, num_fused: int, num_rows: int, row_bytes: int,
                    rules: Rules) -> np.ndarray:
    """Return the cycles that the Condense Unit has with each row that was combined, (num_rows,) int64.

    Each FIFO compares its first ID, all in one cycle; rows that match are stored one after the other. Assumed: where
    there are more subgraphs than FIFOs, they take turns in groups of as many, each a cycle or as long as its stores.

    Parameters
    ----------
    num_fused : int        subgraphs at the begin that have no list

    Reference: MEGA, Algorithm 1 and Fig. 13.
    """
    fifos, stores = rules.units("condense_unit"), -(-row_bytes // rules["sparse_port_bytes"])
    num_subgraphs = len(regions.start) - 1
    turns = range(num_fused, num_subgraphs, fifos)
    cycles = np.bincount(regions.copied_row, minlength=num_rows) * stores + len(turns)
    for first in turns:
        last = min(first + fifos, num_subgraphs)
        # Once for a row, however many subgraphs of the group copy it: the same place is written again.
        cycles[regions.copied_row[regions.start[first]:regions.start[last]]] -= 1
    return cycles


def list_reads(regions: CondensedRegions, rules: Rules) -> RowRequests:
    """Return the reads of ID lists, which lie one after the other.

    Assumed: a list is read in pieces of a DRAM access, the first one at the begin and each further one when the IDs of
    the piece before have matched; the Edge Buffer keeps pieces and fills the FIFOs.
    """
    num_copies, ids = np.diff(regions.start), max(rules["line_bytes"] // BYTES_AN_ID, 1)
    subgraph, piece = _pieces(-(-num_copies // ids))
    first = regions.start[subgraph] + piece * ids
    row = np.where(piece > 0, regions.copied_row[np.maximum(first - 1, 0)], 0).astype(np.int64)
    num_ids = np.minimum(num_copies[subgraph] - piece * ids, ids)
    return _by_row(row, first * BYTES_AN_ID, num_ids * BYTES_AN_ID)


def region_offsets(regions: CondensedRegions, row_bytes: int, buffer: Buffer) -> np.ndarray:
    """Return the byte where each condensed region begins, (num_subgraphs + 1,) int64: each on a line."""
    num_lines = -(-np.diff(regions.start) * row_bytes // buffer.line_bytes)
    return np.concatenate([[0], np.cumsum(num_lines)]) * buffer.line_bytes


def copy_writes(regions: CondensedRegions, row_bytes: int, buffer: Buffer) -> RowRequests:
    """Return the writes of condensed regions, each made when its share of the Sparse Buffer is full or its last row is
    there, in whole lines; the bytes are those that condensed_traffic counts.

    Reference: MEGA, Algorithm 1, line 16.
    """
    num_copies, line = np.diff(regions.start), buffer.line_bytes
    share = buffer.sparse_bytes // max(len(num_copies), 1)
    rows_at_once = max(share // row_bytes, 1)
    if share >= line:
        piece_bytes = share // line * line
        subgraph, piece = _pieces(-(-num_copies * row_bytes // piece_bytes))
        begin = piece * piece_bytes
        end = np.minimum(begin + piece_bytes, num_copies[subgraph] * row_bytes)
        last, num_lines = (end - 1) // row_bytes, -(-(end - begin) // line)
    else:
        subgraph, piece = _pieces(-(-num_copies // rows_at_once))
        begin = piece * rows_at_once * row_bytes // line * line
        last = np.minimum((piece + 1) * rows_at_once, num_copies[subgraph]) - 1
        num_lines = np.full(len(piece), -(-rows_at_once * row_bytes // line))
    row = regions.copied_row[regions.start[subgraph] + last].astype(np.int64)
    return _by_row(row, region_offsets(regions, row_bytes, buffer)[subgraph] + begin, num_lines * line)


def _pieces(num_pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the subgraph of each piece, and its number within it."""
    subgraph = np.repeat(np.arange(len(num_pieces)), num_pieces)
    return subgraph, np.arange(len(subgraph)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)


def _by_row(row: np.ndarray, offset: np.ndarray, num_bytes: np.ndarray) -> RowRequests:
    order = np.argsort(row, kind="stable")
    return RowRequests(row[order], offset[order], num_bytes[order])
