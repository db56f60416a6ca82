"""Importance of boundary nodes, and the numbers that show how good a partition is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.partition.partition import Halo, Partition

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
