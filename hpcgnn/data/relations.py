"""Relations and attributes of edges: columns of any library become numbers, names and a matrix.

Relations that are texts are numbered in alphabetical order: "likes", "cites" and "likes" become 1, 0 and 1. Relations
that are numbers stay as they are, up to the largest. If fewer than half of these numbers occur, as with ids of a
database, those that occur are numbered in ascending order and keep the numbers as names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.data.columns import Words, as_labels, as_numbers, as_words
from hpcgnn.data.dataset import MAX_CLASSES, MAX_FEATURES
from hpcgnn.data.ids import SPARSE
from hpcgnn.errors import DatasetError


def read_relations(given: Any, names: tuple[str, ...], num_edges: int, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The relation of each edge, (num_edges,) int32, and the names of relations, (num_relations,) by number.

    Parameters
    ----------
    given : column of numbers or texts
    names : tuple of str      by number, or empty
    name : str                name of the dataset, for messages

    Raises
    ------
    DatasetError              a relation that is unknown, negative or not whole, a number that has no name, names for
                              texts, or another number of relations than of edges
    """
    what = f"{name}: the relations of edges"
    found = as_labels(given, what)
    values = found.code if isinstance(found, Words) else found
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (num_edges,):
        raise DatasetError(f"{what} have shape {values.shape}; expected one for each of {num_edges} edges")
    if isinstance(found, Words):
        return _of_words(values, found.word, names, what)
    with np.errstate(invalid="ignore"):
        is_bad = ~(values >= 0) | (values > np.iinfo(np.int64).max)
        is_bad |= (values % 1 != 0) if values.dtype.kind == "f" else False
    if is_bad.any():
        place = int(np.argmax(is_bad))
        raise DatasetError(f"{what} are {values[place]} at place {place}; expected whole numbers from 0, or texts: "
                           "leave out edges without a relation, or all relations by relation=none (relation=False in "
                           "Python)")
    values = values.astype(np.int64)
    highest = int(values.max(initial=-1))
    if names:
        if highest >= len(names):
            raise DatasetError(f"{what} go up to {highest}, and there are {len(names)} relation names; expected a name "
                               "for each number from 0")
        return _numbered(values, names, what)
    if highest < SPARSE * num_edges:
        occurs = np.bincount(values, minlength=highest + 1) > 0
        if highest + 1 <= SPARSE * np.count_nonzero(occurs):
            return _numbered(values, tuple(map(str, range(highest + 1))), what)
    numbers, place = np.unique(values, return_inverse=True)
    return _numbered(place, tuple(map(str, numbers.tolist())), what)


def _of_words(code: np.ndarray, word: tuple[str, ...], names: tuple[str, ...],
              what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    is_unknown = np.isin(code, [-1, *(number for number, text in enumerate(word) if not text)])
    if is_unknown.any():
        raise DatasetError(f"{what} lack a name at place {int(np.argmax(is_unknown))}; leave out edges without a "
                           "relation, or all relations by relation=none (relation=False in Python)")
    lacking = next((text for text in word if text not in names), None) if names else None
    if lacking is not None:
        raise DatasetError(f"{what} hold {lacking[:40]!r}, which is none of {len(names)} relation names; expected one "
                           "of them for each edge")
    names = names or tuple(sorted(word))
    number_of = {text: number for number, text in enumerate(names)}
    return _numbered(np.array([number_of[text] for text in word], np.int64)[code], names, what)


def _numbered(number: np.ndarray, names: tuple[str, ...], what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    if len(names) > MAX_CLASSES:
        raise DatasetError(f"{what} are of {len(names)} kinds; expected at most {MAX_CLASSES}")
    return number.astype(np.int32), names


def read_relation_names(given: Any, what: str) -> tuple[str, ...]:
    """Names of relations by number, from a column of texts; DatasetError for a name that is unknown or comes twice."""
    words = as_words(given, what)
    names = [words.word[code] if code >= 0 else "" for code in words.code.reshape(-1).tolist()]
    if "" in names or len(set(names)) < len(names):
        raise DatasetError(f"{what} lack a name or have one twice; expected a different one for each relation")
    return tuple(names)


def read_attributes(given: Any, num_edges: int, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Attributes of edges, (num_edges, num_edge_features) float32, from a column or matrix of numbers, and a warning if
    float32 rounds whole numbers among them.

    Raises DatasetError for texts, for another number of rows than of edges, and for values that are unknown, infinite
    or too large for float32.
    """
    what = f"{name}: the attributes of edges"
    values = as_numbers(given, what)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != num_edges or not 1 <= values.shape[1] <= MAX_FEATURES:
        raise DatasetError(f"{what} have shape {values.shape}; expected a row for each of {num_edges} edges, with at "
                           "least one number")
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32)
    is_bad = ~np.isfinite(stored)
    if is_bad.any():
        edge, column = np.argwhere(is_bad)[0].tolist()
        raise DatasetError(f"{what} hold {values[edge, column]} in column {column} of edge {edge}; expected finite "
                           "numbers: fill in such values first, or leave all attributes out by edge_features=none "
                           "(edge_attr=False in Python)")
    # float32 holds each whole number up to 2**24, and float64 up to 2**53: beyond, a float is no count or time.
    most = 2.0**53 if values.dtype.kind == "f" else np.inf
    is_rounded = (np.abs(stored) >= 2**24) & (np.abs(stored) < most) & (stored != values) & (values % 1 == 0)
    if not is_rounded.any():
        return stored, ()
    edge, column = np.argwhere(is_rounded)[0].tolist()
    return stored, (
        f"{int(is_rounded.any(axis=1).sum()):,} edges have attributes that float32 rounds, such as "
        f"{values[edge, column]:.0f} in column {column}, and edges that are equal then are duplicates; subtract the "
        "least value of the column from it first",)
