"""Requests to DRAM of a run of blocks, made of regions that blocks take in pieces.

What they are for is said by those who call.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.accelerators.schedule import KIND, NO_REQUESTS, Requests


def requests(block: np.ndarray, address: np.ndarray, num_bytes: np.ndarray, kind: str) -> Requests:
    """Return requests of one kind, in the order given, without those of no byte."""
    is_made = num_bytes > 0
    return Requests(block[is_made].astype(np.int32), address[is_made].astype(np.int64),
                    num_bytes[is_made].astype(np.int64), np.full(int(is_made.sum()), KIND[kind], np.uint8))


def pieces(end: np.ndarray, bounds: np.ndarray, address: int, kind: str) -> Requests:
    """Return one request a block for rows bounds[i] to bounds[i + 1] of a region.

    Parameters
    ----------
    end : (num_rows + 1,) int64        byte where each row begins, from the region's begin
    bounds : (num_blocks + 1,) int64   rows
    """
    begin = end[bounds]
    return requests(np.arange(len(bounds) - 1), address + begin[:-1], np.diff(begin), kind)


def lines(block: np.ndarray, line: np.ndarray, line_bytes: int, address: int, kind: str) -> Requests:
    """Return reads of lines in their order; lines that follow each other in a block are one request."""
    if not line.size:
        return NO_REQUESTS
    line = line.astype(np.int64)
    begins = np.concatenate([[True], (np.diff(line) != 1) | (np.diff(block) != 0)])
    first = np.flatnonzero(begins)
    num_lines = np.diff(np.append(first, len(line)))
    return requests(block[first], address + line[first] * line_bytes, num_lines * line_bytes, kind)


def joined(parts: list[Requests]) -> Requests:
    """Return all requests block by block; in a block, part after part."""
    whole = Requests(*(np.concatenate(fields) for fields in zip(NO_REQUESTS, *parts, strict=True)))
    order = np.argsort(whole.block, kind="stable")
    return Requests(*(field[order] for field in whole))
