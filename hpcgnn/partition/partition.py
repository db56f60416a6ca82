"""Partition: the rows that one rank owns and needs, in local numbering; and how the rows it needs are found.

Part p needs the sources of edges into its nodes that other parts own: its halo. The owner of these rows and the part
that needs them must list them in the same order: by part, then by ascending global id. Digests of the lists show
whether they agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import Progress, silent


def needed_digests(part: Partition, key: str, peers: Iterable[int]) -> np.ndarray:
    """Digest of this part's halo rows from each of `peers`, (num_peers,) int64, over ids, in-degrees, importance.

    `key` is hashed too, so that lists of two runs of preprocess never agree.
    """
    halo = slice(part.num_inner, None)
    return _digests(key, peers, part.halo_offset, part.halo_id, part.in_degree[halo], part.importance[halo])


def sent_digests(part: Partition, key: str, peers: Iterable[int]) -> np.ndarray:
    """Digest of the rows that each of `peers` needs from this part; equals their `needed_digests`."""
    rows = part.boundary_index
    return _digests(key, peers, part.boundary_offset, part.inner_id[rows], part.in_degree[rows], part.importance[rows])


def _digests(key: str, peers: Iterable[int], offset: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    found = []
    for peer in peers:
        first, last = int(offset[peer]), int(offset[peer + 1])
        digest = hashlib.blake2b(f"{key} {last - first}".encode(), digest_size=8)
        for column in columns:
            digest.update(np.ascontiguousarray(column[first:last]).data)
        found.append(int.from_bytes(digest.digest(), "little", signed=True))
    return np.array(found, np.int64)


@dataclass(frozen=True)
class Partition:
    """One part of a partitioned graph.

    Local rows are numbered: inner rows, central before marginal, each in the order of preprocess --reorder; then halo
    rows, by owner and ascending global id. A central row has inner neighbors only, a marginal row has a halo neighbor.
    """

    part: int
    num_parts: int
    num_nodes_global: int
    num_central: int      # inner rows [0, num_central) are central, the rest marginal
    inner_id: np.ndarray      # (num_inner,) int64, global ids
    halo_id: np.ndarray      # (num_halo,) int64, global ids
    halo_offset: np.ndarray      # (num_parts + 1,) int64; part q owns the halo rows halo_offset[q]:halo_offset[q + 1]
    boundary_index: np.ndarray      # (num_sent,) int32, inner rows to send, by receiving part, in its halo's order
    boundary_offset: np.ndarray      # (num_parts + 1,) int64; part q gets boundary_index from offset [q] to [q + 1]
    indptr: np.ndarray      # (num_inner + 1,) int64, CSR by destination
    indices: np.ndarray      # (num_local_edges,) int32, local rows, inner or halo
    in_degree: np.ndarray      # (num_inner + num_halo,) int32, in the whole graph
    importance: np.ndarray      # (num_inner + num_halo,) float32, see `node_importance`; 0 if no part needs it
    features: np.ndarray      # (num_inner, num_features) float32 or float16
    labels: np.ndarray      # (num_inner,) int64 classes, (.., num_classes) uint8, or (.., num_outputs) float32 targets
    train_mask: np.ndarray      # (num_inner,) bool, as the other masks
    val_mask: np.ndarray
    test_mask: np.ndarray
    edge_weight: np.ndarray | None = None      # (num_local_edges,) float32, or None for equal weights
    inner_name: np.ndarray | None = None      # (num_inner,) int64 or str objects, ids in the source; None: inner_id
    cluster: np.ndarray | None = None      # (num_inner,) int32, one of the whole graph's clusters, see `cluster_nodes`
    # (n, 3) int64 held-out links with an end here: global ids of source and target, 1 for validation or 2 for test;
    # (n, 4) with the relation if edges have one.
    held_out: np.ndarray | None = None
    edge_type: np.ndarray | None = None      # (num_local_edges,) int32, relation of each edge; None without relations
    edge_attr: np.ndarray | None = None      # (num_local_edges, num_edge_features) float32; None without

    @property
    def num_inner(self) -> int:
        return len(self.inner_id)

    @property
    def num_halo(self) -> int:
        return len(self.halo_id)

    @property
    def node_id(self) -> np.ndarray:
        """(num_inner + num_halo,) int64, global ids of inner, then halo rows."""
        return np.concatenate([self.inner_id, self.halo_id])

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def has_typed_edges(self) -> bool:
        """Whether edges have relations or attributes, so that some may be parallel."""
        return self.edge_type is not None or self.edge_attr is not None

    @property
    def num_cut_edges(self) -> int:
        """Number of edges from a halo row."""
        return int((self.indices >= self.num_inner).sum())


EDGES_PER_BLOCK = 1 << 22


@dataclass(frozen=True)
class Halo:
    """The halo of one part."""

    node_id: np.ndarray      # (num_halo,) int64 global ids, by owner and ascending in each
    offset: np.ndarray      # (num_parts + 1,) int64; part q owns node_id[offset[q]:offset[q + 1]]


def find_halos(dataset: GraphDataset, owner: np.ndarray, num_parts: int,
               progress: Progress = silent,
               parts: range | None = None) -> list[Halo]:
    """Find the halo of every part, or of `parts`: distinct sources, owned by other parts, of edges into the part.

    All halos together take 8 bytes per row that crosses in an exchange.
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


class Csr(Protocol):
    """Edges by destination."""

    @property
    def indptr(self) -> np.ndarray: ...

    @property
    def indices(self) -> np.ndarray: ...


def row_blocks(dataset: Csr, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Read CSR rows, global ids in any order, in blocks of about EDGES_PER_BLOCK edges, so that temporaries stay small.

    Yields the position in `rows` of the block's first row, in-degrees (num_block_rows,) int64, and sources
    (num_block_edges,), int32 or int64 global ids in row order.
    """
    for first, degree, position in row_positions(dataset, rows):
        yield first, degree, dataset.indices[position]


def row_positions(dataset: Csr, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """As `row_blocks`, but yields positions of edges in the dataset's arrays, (num_block_edges,) int64, not sources."""
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
