"""The cost of each node in training, so that parts can get equal work.

A training pass computes only rows within reach of a training node, so nodes near training nodes cost more. With 2
layers and one training node t, the last layer computes only t, the first computes t and its in-neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.partition.choices import EDGES_A_NODE, EPOCHS_AN_EVALUATION
from hpcgnn.partition.partition import row_blocks

PASSES = 3              # an epoch's forward and backward pass cost about this many forward passes
MOST_WEIGHT = 1 << 30   # sum over all nodes: partitioners add up weights in 32 bits


class _Arcs(NamedTuple):
    indptr: np.ndarray
    indices: np.ndarray


@dataclass(frozen=True)
class TrainingWork:
    """The work of a training, for parts with equal work."""

    num_layers: int
    owner: np.ndarray | None = None      # (num_nodes,) int32, parts of an earlier training
    seconds: tuple[float, ...] = ()      # seconds of each of these parts per epoch

    def weight(self, dataset: GraphDataset) -> np.ndarray:
        """Cost of each node, (num_nodes,) int64; see `training_weight`."""
        in_degree = dataset.in_degree()
        hops = hops_to_loss(dataset.indptr, dataset.indices, dataset.train_mask, self.num_layers)
        cost = None
        if self.owner is not None:
            # If parts were measured, a node's work is weighted by the seconds per unit of work of its earlier part.
            work = work_of_parts(in_degree, hops, self.num_layers, self.owner, len(self.seconds))
            seconds = np.array(self.seconds)
            mean = seconds.sum() / max(work.sum(), 1.0)
            # A part without work has no cost per unit of work.
            cost = np.where(work > 0, seconds / np.maximum(work, 1.0) / mean, 1.0)[self.owner]
        return training_weight(in_degree, hops, self.num_layers, cost)


def hops_to_loss(indptr: np.ndarray, indices: np.ndarray, train_mask: np.ndarray, num_hops: int) -> np.ndarray:
    """Hops from each node to the nearest training node, against edges, (num_nodes,) int32; num_hops + 1 if farther."""
    hops = np.where(train_mask, 0, num_hops + 1).astype(np.int32)
    for step in range(1, num_hops + 1):
        for _, _, sources in row_blocks(_Arcs(indptr, indices), np.flatnonzero(hops == step - 1)):
            hops[sources] = np.minimum(hops[sources], step)
    return hops


def layers_of_rows(hops: np.ndarray, num_layers: int) -> np.ndarray:
    """Number of layers of a training pass that compute each row: all at 0 hops, one fewer per hop."""
    return np.maximum(num_layers - hops, 0)


def training_weight(in_degree: np.ndarray, hops: np.ndarray, num_layers: int,
                    cost: np.ndarray | None = None) -> np.ndarray:
    """Cost of each node in training and its evaluations, (num_nodes,) int64 >= 1, in total about MOST_WEIGHT at most.

    A layer's work on a row is EDGES_A_NODE + in-degree. Evaluations compute all rows in all layers. `hops` come from
    `hops_to_loss` with num_layers hops; `cost` is measured seconds per unit of work over their mean.
    """
    layers = PASSES * EPOCHS_AN_EVALUATION * layers_of_rows(hops, num_layers).astype(np.int64) + num_layers
    weight = layers * (EDGES_A_NODE + in_degree.astype(np.int64))
    if cost is not None:
        weight = weight * cost
    scale = min(1.0, MOST_WEIGHT / weight.sum())
    return np.maximum((weight * scale).astype(np.int64), 1)


def work_of_parts(in_degree: np.ndarray, hops: np.ndarray, num_layers: int, owner: np.ndarray,
                  num_parts: int) -> np.ndarray:
    """Work of an epoch without evaluations in each part, (num_parts,) float64, in edges."""
    work = layers_of_rows(hops, num_layers) * (EDGES_A_NODE + in_degree.astype(np.float64))
    return np.bincount(owner, work, minlength=num_parts)
