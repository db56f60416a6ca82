"""A small directed graph with features, labels and splits, for the tests of every source format."""

from dataclasses import dataclass

import numpy as np
import pytest


@dataclass
class SmallGraph:
    """30 nodes, node 29 isolated; arcs have no duplicates and no self-loops, and are not symmetric."""

    num_nodes: int
    source: np.ndarray
    target: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    split: tuple[np.ndarray, np.ndarray, np.ndarray]

    def arcs(self):
        return set(zip(self.source.tolist(), self.target.tolist(), strict=True))

    def both_ways(self):
        return self.arcs() | {(target, source) for source, target in self.arcs()}


@pytest.fixture
def small_graph():
    rng = np.random.default_rng(7)
    num_nodes, num_arcs = 30, 120
    codes = rng.choice(29 * 29, num_arcs, replace=False)
    source, target = codes // 29, codes % 29
    keep = source != target
    order = rng.permutation(num_nodes)
    return SmallGraph(num_nodes, source[keep], target[keep], rng.standard_normal((num_nodes, 5)).astype(np.float32),
                      rng.integers(0, 4, num_nodes), (order[:18], order[18:24], order[24:]))


@pytest.fixture
def arcs_of():
    """Set of (source, target) of a GraphDataset."""
    def arcs(dataset):
        target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
        return set(zip(dataset.indices.tolist(), target.tolist(), strict=True))
    return arcs


@pytest.fixture
def split_of():
    """Ascending training, validation and test ids of a GraphDataset."""
    def split(dataset):
        return [np.flatnonzero(mask).tolist() for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
    return split
