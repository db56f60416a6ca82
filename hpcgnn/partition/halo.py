"""Find the rows of other parts that each part needs, for all in one pass over the arcs. No local numbering here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import ProgressTask, silent

EDGES_PER_BLOCK = 1 << 22


@dataclass(frozen=True)
class Halo:
    """The halo of one part.

    Attributes
    ----------
    node_id : (num_halo,) int64              global ids, by owner, ascending in each
    offset : (num_parts + 1,) int64          node_id[offset[q]:offset[q + 1]] are owned by part q
    """

    node_id: np.ndarray
    offset: np.ndarray


def find_halos(dataset: GraphDataset, owner: np.ndarray, num_parts: int,
               progress: Callable[[str, float | None], ProgressTask] = silent,
               parts: range | None = None) -> list[Halo]:
    """Return the halo of every part: the distinct sources of arcs into the part that another part owns.

    Parameters
    ----------
    owner : (num_nodes,) int32
    progress : callable(description, total) -> ProgressTask
    parts : range or None     find those of these parts alone

    Returns
    -------
    halos : one Halo a part; together they hold 8 bytes for every row that crosses in an exchange
    """
    parts = range(num_parts) if parts is None else parts
    task = progress("finding halos", len(parts))
    halos = []
    for part in parts:
        halos.append(_find_halo(dataset, owner, part, num_parts))
        task.advance(1)
    return halos


def _find_halo(dataset: GraphDataset, owner: np.ndarray, part: int, num_parts: int) -> Halo:
    is_needed = np.zeros(dataset.num_nodes, bool)
    for _, _, sources in row_blocks(dataset, np.flatnonzero(owner == part)):
        is_needed[sources] = True
    is_needed &= owner != part
    node_id = np.flatnonzero(is_needed)
    node_id = node_id[np.argsort(owner[node_id], kind="stable")]
    offset = np.zeros(num_parts + 1, np.int64)
    np.cumsum(np.bincount(owner[node_id], minlength=num_parts), out=offset[1:])
    return Halo(node_id, offset)


def row_blocks(dataset: GraphDataset, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Read CSR rows in blocks of about EDGES_PER_BLOCK arcs, so that temporaries stay small.

    Parameters
    ----------
    rows : (num_rows,) int64 global ids, in any order

    Yields
    ------
    first : int                              position in rows of the block's first row
    degree : (num_block_rows,) int64
    sources : (num_block_edges,) int32 or int64, global ids in row order
    """
    for first, degree, position in row_positions(dataset, rows):
        yield first, degree, dataset.indices[position]


def row_positions(dataset: GraphDataset, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Walk CSR rows likewise, for what lies beside `indices`.

    Yields
    ------
    first, degree                            as of row_blocks
    position : (num_block_edges,) int64      of the rows' arcs in the dataset's arrays
    """
    degree = dataset.indptr[rows + 1] - dataset.indptr[rows]
    end = np.cumsum(degree)
    first = 0
    while first < len(rows):
        done = end[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(end, done + EDGES_PER_BLOCK, side="right")))
        block = degree[first:last]
        start_in_block = end[first:last] - block - done
        position = np.arange(block.sum()) + np.repeat(dataset.indptr[rows[first:last]] - start_in_block, block)
        yield first, block, position
        first = last
