"""Graphs whose best cut and order are known."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.data.dataset import GraphDataset


@pytest.fixture
def grid():
    """grid(side, shuffle_seed=None) -> GraphDataset."""
    def make_grid(side: int, shuffle_seed: int | None = None) -> GraphDataset:
        """A side × side grid, its ids shuffled if a seed is given."""
        num_nodes = side * side
        new_id = np.arange(num_nodes)
        if shuffle_seed is not None:
            new_id = np.random.default_rng(shuffle_seed).permutation(num_nodes)
        cell = new_id.reshape(side, side)
        ends = np.concatenate([np.stack([cell[1:].ravel(), cell[:-1].ravel()]),
                               np.stack([cell[:, 1:].ravel(), cell[:, :-1].ravel()])], axis=1)
        ends = np.concatenate([ends, ends[::-1]], axis=1)
        ends = ends[:, np.lexsort(ends)]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[1], minlength=num_nodes))])
        everywhere, nowhere = np.ones(num_nodes, bool), np.zeros(num_nodes, bool)
        return GraphDataset("grid", indptr, ends[0].astype(np.int32), np.zeros((num_nodes, 1), np.float32),
                            np.zeros(num_nodes, np.int64), 1, everywhere, nowhere, nowhere).check()

    return make_grid
