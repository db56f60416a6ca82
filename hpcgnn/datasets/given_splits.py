"""Splits as users have them: masks, lists of ids, or a word a node. No file format is known here."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.datasets.columns import as_ids, as_mask, as_words, is_mask
from hpcgnn.datasets.ids import NodeRows
from hpcgnn.datasets.splits import Masks, masks_from_ids
from hpcgnn.errors import DatasetError

SPLITS = ("training", "validation", "test")
WORDS = {"train": 0, "training": 0, "tr": 0, "val": 1, "valid": 1, "validation": 1, "va": 1, "dev": 1, "test": 2,
         "testing": 2, "te": 2}
NO_SPLIT = ("", "none", "nan", "unused")


def read_splits(splits: Any, num_nodes: int, name: str, rows: NodeRows | None = None,
                column: int | None = None) -> Masks:
    """Return training, validation and test masks.

    Parameters
    ----------
    splits : a word a node, (num_nodes,) str: train, val (valid, validation), test, or "" for none of them;
        or three arrays in this order, or a dict of them by these words; each a mask, (num_nodes,) bool, or a list of
        the nodes' ids. A mask of several splits is (num_nodes, num_splits). A dict may leave out all but the training
        nodes
    column : int or None      which of several splits, counted from 0; masks of one split hold for all of them
    rows : NodeRows       by which lists name nodes; None where ids are the numbers of rows

    Returns
    -------
    train_mask, val_mask, test_mask : (num_nodes,) bool

    Raises
    ------
    DatasetError          another form, a word that is none of these, an id that no node has
    """
    if isinstance(splits, dict):
        members = [None, None, None]
        for key, value in splits.items():
            members[_place_of(str(key), name)] = value
    elif isinstance(splits, list | tuple) and len(splits) == 3 and not isinstance(splits[0], str):
        members = list(splits)
    else:
        return masks_from_words(splits, num_nodes, name)
    if members[0] is None:
        raise DatasetError(f"{name} has splits without training nodes; expected train, val and test")
    return tuple(np.zeros(num_nodes, bool) if part is None
                 else _mask(part, num_nodes, name, place, rows, column)
                 for place, part in enumerate(members))


def masks_from_words(words: Any, num_nodes: int, name: str) -> Masks:
    """Return masks of a word a node; see read_splits.

    Raises
    ------
    DatasetError          a word that names no split, or another number of words than nodes
    """
    try:
        found = as_words(words, f"{name}: the splits")
    except DatasetError as reason:
        raise DatasetError(f"{reason}: expected a word a node (train, val, test), or three masks or lists of node "
                           "ids") from None
    if found.code.shape != (num_nodes,):
        raise DatasetError(f"{name} has splits of shape {found.code.shape} for {num_nodes} nodes; expected a word a "
                           "node (train, val, test), or three masks or lists of node ids")
    split = np.array([*(-1 if word.strip().lower() in NO_SPLIT else _place_of(word, name) for word in found.word), -1],
                     np.int64)[found.code]
    return tuple(split == number for number in range(3))


def _place_of(word: str, name: str) -> int:
    place = WORDS.get(word.strip().lower())
    if place is None:
        raise DatasetError(f"{name} has a split called {word[:40]!r}; expected train, val (valid, validation) or test")
    return place


def _mask(part: Any, num_nodes: int, name: str, place: int, rows: NodeRows | None, column: int | None) -> np.ndarray:
    what = f"{name}: the nodes of the {SPLITS[place]} split"
    if np.ndim(part) == 2:
        return _one_of_several(as_mask(part, what), num_nodes, name, place, column)
    if is_mask(part, num_nodes, what):
        mask = as_mask(part, what)
        if mask.shape != (num_nodes,):
            raise DatasetError(f"{name} has a {SPLITS[place]} mask of shape {mask.shape}; expected ({num_nodes},)")
        return mask
    members = [np.empty(0, np.int64)] * 3
    members[place] = as_ids(part, what) if len(part) else members[0]
    if rows is not None:
        members[place] = rows.find(members[place], f"a {SPLITS[place]} split that leads")
    elif not isinstance(members[place], np.ndarray):
        raise DatasetError(f"{what} are texts, and nodes have no ids but their numbers, 0 to {num_nodes - 1}")
    return masks_from_ids(tuple(members), num_nodes, name)[place]


def _one_of_several(masks: np.ndarray, num_nodes: int, name: str, place: int, column: int | None) -> np.ndarray:
    """Return one split of several, (num_nodes,) bool, from masks of shape (num_nodes, num_splits)."""
    if len(masks) != num_nodes:
        raise DatasetError(f"{name} has {SPLITS[place]} masks of shape {masks.shape}; expected a row for each of "
                           f"{num_nodes} nodes, with 0 or 1 for each split")
    num_splits = masks.shape[1]
    if column is None and num_splits == 1:
        column = 0
    if column is None or not 0 <= column < num_splits:
        chosen = "and none is chosen" if column is None else f"and split {column} is none of them"
        raise DatasetError(f"{name} has {num_splits} splits, the columns of its {SPLITS[place]} mask, {chosen}; choose "
                           f"one from 0 to {num_splits - 1}, as in split=0 (splits=0 in Python)")
    return masks[:, column]
