"""Partition: what one rank owns and needs of a graph, in local numbering.

No file format and no message is known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Partition:
    """One part of a partitioned graph.

    Local rows are numbered inner rows first (central, then marginal; in each, the order that preprocess --reorder
    chose, ascending global id without one), then halo rows (by owner, ascending global id in each). A central row has
    inner neighbours only; a marginal row has a halo one.

    Attributes
    ----------
    part, num_parts : int
    num_nodes_global : int
    num_central : int                        inner rows [0, num_central) are central, the rest marginal
    inner_id : (num_inner,) int64            global ids
    halo_id : (num_halo,) int64              global ids
    halo_offset : (num_parts + 1,) int64     halo rows owned by part q are halo_offset[q]:halo_offset[q + 1]
    boundary_index : (num_sent,) int32       local inner rows to send, by receiving part, in the receiver's halo order
    boundary_offset : (num_parts + 1,) int64 boundary_index[boundary_offset[q]:boundary_offset[q + 1]] goes to part q
    indptr : (num_inner + 1,) int64          CSR by destination
    indices : (num_local_edges,) int32       local rows, inner or halo
    in_degree : (num_inner + num_halo,) int32   in-degree in the whole graph
    importance : (num_inner + num_halo,) float32   of the row's messages, see node_importance; 0 for inner rows that
                                             no other part needs. Owner and user of a row hold the same number
    features : (num_inner, num_features) float32 or float16
    labels : (num_inner,) int64 class ids, (num_inner, num_classes) uint8 indicators, or (num_inner, num_outputs)
                                             float32 targets of a regression
    train_mask, val_mask, test_mask : (num_inner,) bool
    edge_weight : (num_local_edges,) float32, beside `indices`, or None where all arcs weigh the same
    inner_name : (num_inner,) int64, or objects that are str: the nodes' ids in their source, or None where these are
        the global ids
    cluster : (num_inner,) int32, the cluster of the whole graph that each inner row is in, see cluster_nodes, or None
    """

    part: int
    num_parts: int
    num_nodes_global: int
    num_central: int
    inner_id: np.ndarray
    halo_id: np.ndarray
    halo_offset: np.ndarray
    boundary_index: np.ndarray
    boundary_offset: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    in_degree: np.ndarray
    importance: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train_mask: np.ndarray
    val_mask: np.ndarray
    test_mask: np.ndarray
    edge_weight: np.ndarray | None = None
    inner_name: np.ndarray | None = None
    cluster: np.ndarray | None = None

    @property
    def num_inner(self) -> int:
        return len(self.inner_id)

    @property
    def num_halo(self) -> int:
        return len(self.halo_id)

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def num_cut_edges(self) -> int:
        """Count the arcs whose source is a halo row."""
        return int((self.indices >= self.num_inner).sum())
