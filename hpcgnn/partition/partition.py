"""Partition: the rows that one rank owns and needs, in local numbering; how the rows that it needs are found, how
important boundary nodes are, and the numbers that show how good a partition is.

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


IMPORTANCE_BINS = 200   # half a percentile per bin


def node_importance(dataset: GraphDataset, halos: list[Halo]) -> np.ndarray:
    """Rank of the global in-degree among the boundary nodes of all parts, scaled to [0, 1]; 0 for other nodes.

    A boundary node's rank is the number of boundary nodes with a smaller in-degree. In-degrees 1, 1, 2, 5 have the
    ranks 0, 0, 2, 3 and the importances 0, 0, 0.67, 1. If all in-degrees are equal, all importances are 0. Returns
    (num_nodes,) float32.

    Reference: SYLVIE, §IV-A. The paper leaves the rank of ties open: here ties get their lowest rank, which keeps wide
    messages few.
    """
    pool = boundary_nodes(dataset.num_nodes, halos)
    importance = np.zeros(dataset.num_nodes, np.float32)
    if len(pool):
        degree = dataset.indptr[pool + 1] - dataset.indptr[pool]
        count = np.bincount(degree)
        num_below = np.cumsum(count) - count
        importance[pool] = (num_below / max(1, num_below[-1])).astype(np.float32)[degree]
    return importance


def importance_histogram(importance: np.ndarray) -> np.ndarray:
    """Number of rows by importance, (IMPORTANCE_BINS,) int64, in bins of equal width; the last bin includes 1."""
    # Importance is float32, so an edge is too, or 0.98 would fall below 98 percent.
    edges = (np.arange(1, IMPORTANCE_BINS) / IMPORTANCE_BINS).astype(np.float32)
    return np.bincount(np.searchsorted(edges, importance, side="right"), minlength=IMPORTANCE_BINS)


def degree_quantiles(dataset: GraphDataset, halos: list[Halo]) -> np.ndarray:
    """In-degree of boundary nodes at each percent, (101,) int64 ascending; (0,) if no node crosses."""
    pool = boundary_nodes(dataset.num_nodes, halos)
    degree = np.sort(dataset.indptr[pool + 1] - dataset.indptr[pool])
    return degree[np.arange(101) * (len(degree) - 1) // 100] if len(degree) else np.empty(0, np.int64)


def boundary_nodes(num_nodes: int, halos: list[Halo]) -> np.ndarray:
    """Boundary nodes of all parts, (pool_size,) int64 ascending global ids."""
    is_boundary = np.zeros(num_nodes, bool)
    for halo in halos:
        is_boundary[halo.node_id] = True
    return np.flatnonzero(is_boundary)


@dataclass(frozen=True)
class PartitionStatistics:
    """Sizes of one part, and the rows it sends."""

    part: int
    num_inner: int
    num_central: int
    num_halo: int      # rows received in an exchange
    num_boundary: int      # distinct inner rows that other parts need
    num_sent: int      # rows sent in an exchange
    num_edges: int      # edges into inner rows
    num_cut_edges: int      # edges from halo rows
    imbalance: float      # inner rows over the mean of all parts
    sent_to: tuple[int, ...]      # rows sent to each part
    boundary_importance: tuple[int, ...]      # boundary rows in each bin of `importance_histogram`
    sent_importance: tuple[int, ...]      # rows sent in each bin: a row that two parts need counts twice


def measure_partition(partition: Partition) -> PartitionStatistics:
    boundary = np.unique(partition.boundary_index)
    return PartitionStatistics(
        part=partition.part,
        num_inner=partition.num_inner,
        num_central=partition.num_central,
        num_halo=partition.num_halo,
        num_boundary=len(boundary),
        num_sent=len(partition.boundary_index),
        num_edges=partition.num_edges,
        num_cut_edges=partition.num_cut_edges,
        imbalance=partition.num_inner * partition.num_parts / partition.num_nodes_global,
        sent_to=tuple(np.diff(partition.boundary_offset).tolist()),
        boundary_importance=tuple(importance_histogram(partition.importance[boundary]).tolist()),
        sent_importance=tuple(importance_histogram(partition.importance[partition.boundary_index]).tolist()),
    )
