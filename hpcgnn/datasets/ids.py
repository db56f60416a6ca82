"""Node ids of any kind, texts or integers with gaps, and the rows that they stand for. No file format is known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import DatasetError


def plain_ids(values: np.ndarray, what: str) -> np.ndarray:
    """Return ids as int64 or as texts; whole numbers that a table holds as floats become integers.

    Parameters
    ----------
    values : (num_ids,) of any type
    what : str           what they are, to start a sentence

    Raises
    ------
    DatasetError         an id that is missing, a number with a fraction, texts among integers, or not a vector
    """
    values = np.asarray(values)
    if values.ndim != 1:
        raise DatasetError(f"{what} have shape {values.shape}; expected one id each")
    if values.dtype.kind == "O":
        return _from_objects(values, what)
    if values.dtype.kind == "S":
        values = values.astype(str)
    if values.dtype.kind == "U":
        if (values == "").any():
            raise DatasetError(f"{what} lack an id at place {int(np.argmax(values == ''))}; expected one each")
        return values
    if values.dtype.kind == "f":
        if not (np.isfinite(values).all() and (np.floor(values) == values).all()):
            raise DatasetError(f"{what} hold numbers that are missing or have a fraction; expected texts or integers")
        return values.astype(np.int64)
    if values.dtype.kind not in "iu" or values.max(initial=0) > np.iinfo(np.int64).max:
        raise DatasetError(f"{what} are of type {values.dtype}; expected texts or integers of 64 bits")
    return values.astype(np.int64)


def _from_objects(values: np.ndarray, what: str) -> np.ndarray:
    kinds = {str if isinstance(value, str) else int if isinstance(value, int | np.integer) and value is not True
             and value is not False else None for value in values}
    if kinds == {str}:
        return plain_ids(values.astype(str), what)
    if kinds == {int}:
        try:
            return values.astype(np.int64)
        except OverflowError:
            raise DatasetError(f"{what} hold an integer past 64 bits; pass texts") from None
    if not len(values):
        return np.empty(0, np.int64)
    raise DatasetError(f"{what} are a mix of types, or some are missing; expected all texts or all integers")


class NodeRows:
    """From ids to rows: row k belongs to the node `ids[k]`.

    Parameters
    ----------
    ids : (num_nodes,) int64 or str, as plain_ids returns them
    name : str           of the dataset, for messages

    Raises
    ------
    DatasetError         an id twice
    """

    def __init__(self, ids: np.ndarray, name: str) -> None:
        self.ids, self._name = ids, name
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]
        is_twice = self._sorted[1:] == self._sorted[:-1]
        if is_twice.any():
            raise DatasetError(f"{name} has node {self._sorted[int(np.argmax(is_twice))].item()!r} twice; expected "
                               "each id once")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> np.ndarray | None:
        """Return the ids, or None where they are the rows' own numbers."""
        is_plain = self.ids.dtype.kind == "i" and np.array_equal(self.ids, np.arange(len(self.ids)))
        return None if is_plain else self.ids

    def find(self, ids: np.ndarray, what: str) -> np.ndarray:
        """Return the row of each id, (num_ids,) int64.

        Parameters
        ----------
        ids : (num_ids,) int64 or str
        what : str           where they stand, for messages, as in "an edge"

        Raises
        ------
        DatasetError         an id that no node has, or ids of another kind
        """
        if not len(ids):
            return np.empty(0, np.int64)
        if ids.dtype.kind != self.ids.dtype.kind:
            kinds = {"i": "integers", "U": "texts"}
            raise DatasetError(f"{self._name} has {what} with ids that are {kinds[ids.dtype.kind]}, such as "
                               f"{ids[0].item()!r}, and nodes with {kinds[self.ids.dtype.kind]}; expected one kind")
        place = np.minimum(np.searchsorted(self._sorted, ids), max(0, len(self.ids) - 1))
        is_lost = self._sorted[place] != ids if len(self.ids) else np.ones(len(ids), bool)
        if is_lost.any():
            raise DatasetError(f"{self._name} has {what} to node {ids[int(np.argmax(is_lost))].item()!r}, which does "
                               f"not exist; it is none of its {len(self.ids)} nodes")
        return self._order[place]


def ids_of_ends(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the ids of a graph that is known by its edges only, ascending, each once."""
    return np.unique(np.concatenate([source, target]))
