"""PartitionStatistics: the numbers that tell a good partition from a bad one. Nothing is built or stored here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn.partition.importance import importance_histogram
from hpcgnn.partition.partition import Partition


@dataclass(frozen=True)
class PartitionStatistics:
    """Sizes of one part, and what it sends.

    Attributes
    ----------
    num_inner, num_central : int             rows owned; of these, rows without a halo neighbor
    num_halo : int                           rows received in an exchange
    num_boundary : int                       distinct inner rows that some other part needs
    num_sent : int                           rows sent in an exchange: its communication volume
    num_edges, num_cut_edges : int           arcs into inner rows; of these, arcs from halo rows
    imbalance : float                        inner rows over the mean of all parts
    sent_to : tuple of num_parts int         rows sent to each part
    boundary_importance : tuple of IMPORTANCE_BINS int    boundary rows by importance, see importance_histogram
    sent_importance : tuple of IMPORTANCE_BINS int        the same of rows sent: one that two parts need counts twice
    """

    part: int
    num_inner: int
    num_central: int
    num_halo: int
    num_boundary: int
    num_sent: int
    num_edges: int
    num_cut_edges: int
    imbalance: float
    sent_to: tuple[int, ...]
    boundary_importance: tuple[int, ...]
    sent_importance: tuple[int, ...]


def measure_partition(partition: Partition) -> PartitionStatistics:
    """Count what PartitionStatistics lists."""
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
