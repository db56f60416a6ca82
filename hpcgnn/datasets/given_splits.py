"""Splits as users have them: masks, lists of ids, or a word a node. No file format is known here."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.datasets.ids import NodeRows, plain_ids
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
    elif isinstance(splits, list | tuple) and len(splits) == 3:
        members = list(splits)
    else:
        return masks_from_words(np.asarray(splits), num_nodes, name)
    if members[0] is None:
        raise DatasetError(f"{name} has splits without training nodes; expected train, val and test")
    return tuple(np.zeros(num_nodes, bool) if part is None
                 else _mask(np.asarray(part), num_nodes, name, place, rows, column)
                 for place, part in enumerate(members))


def masks_from_words(words: np.ndarray, num_nodes: int, name: str) -> Masks:
    """Return masks of a word a node; see read_splits.

    Raises
    ------
    DatasetError          a word that names no split, or another number of words than nodes
    """
    if words.shape != (num_nodes,) or words.dtype.kind not in "OUS":
        raise DatasetError(f"{name} has splits of {words.dtype} and shape {words.shape}; expected a word a node "
                           "(train, val, test), or three masks or lists of node ids")
    if words.dtype.kind == "O":      # None and NaN are missing words
        words = np.where([word is None or word != word for word in words], "", words)
    distinct, place = np.unique(words.astype(str), return_inverse=True)
    split = np.array([-1 if word.strip().lower() in NO_SPLIT else _place_of(word, name)
                      for word in distinct.tolist()], np.int64)[place]
    return tuple(split == number for number in range(3))


def _place_of(word: str, name: str) -> int:
    place = WORDS.get(word.strip().lower())
    if place is None:
        raise DatasetError(f"{name} has a split called {word[:40]!r}; expected train, val (valid, validation) or test")
    return place


def _mask(array: np.ndarray, num_nodes: int, name: str, place: int, rows: NodeRows | None,
          column: int | None) -> np.ndarray:
    if array.ndim == 2:
        array = _one_of_several(array, num_nodes, name, place, column)
    if array.dtype == bool:
        if array.shape != (num_nodes,):
            raise DatasetError(f"{name} has a {SPLITS[place]} mask of shape {array.shape}; expected ({num_nodes},)")
        return array
    members = [np.empty(0, np.int64)] * 3
    members[place] = plain_ids(array, f"{name}: the nodes of the {SPLITS[place]} split") if array.size else members[0]
    if rows is not None:
        members[place] = rows.find(members[place], f"a {SPLITS[place]} split that leads")
    return masks_from_ids(tuple(members), num_nodes, name)[place]


def _one_of_several(masks: np.ndarray, num_nodes: int, name: str, place: int, column: int | None) -> np.ndarray:
    """Return one split of several, (num_nodes,) bool, from masks of shape (num_nodes, num_splits)."""
    if len(masks) != num_nodes or not np.isin(masks, (0, 1)).all():
        raise DatasetError(f"{name} has {SPLITS[place]} masks of {masks.dtype} and shape {masks.shape}; expected a row "
                           f"for each of {num_nodes} nodes, with 0 or 1 for each split")
    num_splits = masks.shape[1]
    if column is None and num_splits == 1:
        column = 0
    if column is None or not 0 <= column < num_splits:
        chosen = "and none is chosen" if column is None else f"and split {column} is none of them"
        raise DatasetError(f"{name} has {num_splits} splits, the columns of its {SPLITS[place]} mask, {chosen}; choose "
                           f"one from 0 to {num_splits - 1}, as in split=0 (splits=0 in Python)")
    return masks[:, column].astype(bool)
