"""Training, validation and test masks from id lists or from a random permutation. No file format is known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.datasets.labels import UNKNOWN_INDICATOR
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.errors import DatasetError

Masks = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_split(labels: np.ndarray, options: SourceOptions, unlabeled: np.ndarray | None = None) -> Masks:
    """Cut one random permutation of the labeled nodes into training, validation and test nodes.

    Parameters
    ----------
    labels : (num_nodes,) int64, -1 where unknown, (num_nodes, num_classes) uint8, 255 where unknown, or
        (num_nodes, num_targets) float32, NaN where unknown
    options : SourceOptions     seed and split_fractions
    unlabeled : (num_nodes,) bool, nodes that are left out, or None

    Returns
    -------
    train_mask, val_mask, test_mask : (num_nodes,) bool
    """
    labeled = np.flatnonzero(is_labeled(labels) if unlabeled is None else is_labeled(labels) & ~unlabeled)
    order = labeled[np.random.default_rng(options.seed).permutation(len(labeled))]
    train, val = options.split_fractions
    # The cuts are int(0.6 n) and int(0.8 n) at the default fractions, free of 0.6 + 0.2's rounding.
    cuts = [int(train * len(order)), int(round(train + val, 12) * len(order))]
    return tuple(_mask(part, len(labels)) for part in np.split(order, cuts))


def is_labeled(labels: np.ndarray) -> np.ndarray:
    """Which nodes have a label, in any form that a GraphDataset knows; (num_nodes,) bool."""
    if labels.dtype.kind == "f":
        return ~np.isnan(labels).all(axis=1)
    return labels >= 0 if labels.ndim == 1 else (labels != UNKNOWN_INDICATOR).any(axis=1)


def masks_from_ids(ids: tuple[np.ndarray, np.ndarray, np.ndarray], num_nodes: int, name: str) -> Masks:
    """Turn lists of training, validation and test node ids into masks.

    Raises
    ------
    DatasetError      an id that is no node
    """
    for split, members in zip(("training", "validation", "test"), ids, strict=True):
        if len(members) and (members.min() < 0 or members.max() >= num_nodes):
            bad = int(members.min() if members.min() < 0 else members.max())
            raise DatasetError(f"{name} has node {bad} in its {split} split, which does not exist; "
                               f"node ids run from 0 to {num_nodes - 1}")
    return tuple(_mask(members, num_nodes) for members in ids)


def _mask(members: np.ndarray, num_nodes: int) -> np.ndarray:
    mask = np.zeros(num_nodes, dtype=bool)
    mask[members.astype(np.int64)] = True
    return mask
