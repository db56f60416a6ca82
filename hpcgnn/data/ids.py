"""Ids of nodes, which are texts or integers with gaps, and the row of each id."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcgnn.data.arcs import ARCS_A_CHUNK, INT32_NODES, Ends, chunks
from hpcgnn.data.columns import SUSPECTS, Ids, as_ids, texts_of
from hpcgnn.errors import DatasetError

FEW = 0.01            # share of ids that are no numbers, as the others are
NUMBER = r"^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$"
NUMERAL, PLAIN = r"^\+?(-?)0*(\d+)(\.0*)?$", r"\1\2"      # +7, 007 and 7.0 are 7
NO_SIGN = r"[\x{200b}-\x{200f}\x{2060}\x{feff}]"         # characters that nobody sees
SIGNS, LIST, MOST_LISTS = "[,;|]", r"^[^,;|]+([,;|][^,;|]+)+$", 100
SHORTENED = r"^-?\d\.\d+[eE]\+\d+$"                    # as spreadsheets write long numbers
SPARSE = 2            # ids have gaps if the largest number exceeds this multiple of their count


class NodeRows:
    """From ids to rows: row k belongs to the node `ids[k]`.

    Parameters
    ----------
    ids : (num_nodes,) column of ids, see as_ids
    name : str           name of the dataset, for messages
    where : str          where the ids come from, as in "column id", for messages
    """

    def __init__(self, ids: Any, name: str, where: str = "") -> None:
        self.ids, self._name = as_ids(ids, f"{name}: the ids of nodes"), name
        self._where = where and f", which are those of {where}: add a row for it there"
        if isinstance(self.ids, pa.Array):
            counts = pc.value_counts(self.ids)
            place = pc.index(pc.greater(counts.field(1), 1), True).as_py()
            twice = None if place < 0 else counts.field(0)[place].as_py()
        else:
            self._order = np.argsort(self.ids, kind="stable")
            self._sorted = self.ids[self._order]
            is_twice = self._sorted[1:] == self._sorted[:-1]
            twice = self._sorted[int(np.argmax(is_twice))].item() if is_twice.any() else None
        if twice is not None:
            raise DatasetError(f"{name} has node {twice!r} twice; expected each id once")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> np.ndarray | None:
        """The ids, int64 or str objects; None if they are the row numbers."""
        if isinstance(self.ids, pa.Array):
            return self.ids.to_numpy(zero_copy_only=False)
        return None if np.array_equal(self.ids, np.arange(len(self.ids))) else self.ids

    def id_of(self, row: int) -> int | str:
        return _item(self.ids, row)

    def find(self, ids: Any, what: str) -> np.ndarray:
        """Return the row of each id, (num_ids,) int64. An integer also finds a text that is the same number in decimal.

        Parameters
        ----------
        ids : (num_ids,) column of ids, see as_ids
        what : str           where the ids are used, for messages, as in "an edge"
        """
        ids = as_ids(ids, f"{self._name}: the ids of {what}")
        if not len(ids):
            return np.empty(0, np.int64)
        if isinstance(ids, pa.Array) or isinstance(self.ids, pa.Array):
            place = pc.index_in(texts_of(ids), value_set=texts_of(self.ids)).cast(pa.int64())
            is_lost = place.is_null().to_numpy(zero_copy_only=False)
            row = place.fill_null(0).to_numpy()
        else:
            place = np.minimum(np.searchsorted(self._sorted, ids), max(0, len(self.ids) - 1))
            is_lost = self._sorted[place] != ids if len(self.ids) else np.ones(len(ids), bool)
            row = self._order[place] if len(self.ids) else place
        if is_lost.any():
            raise DatasetError(f"{self._name} has {what} to node {_item(ids, int(np.argmax(is_lost)))!r}, which does "
                               f"not exist; it is none of its {len(self.ids)} nodes{self._kinds(ids) or self._where}")
        return row

    def _kinds(self, ids: Ids) -> str:
        if isinstance(ids, pa.Array) == isinstance(self.ids, pa.Array) or not len(self.ids):
            return ""
        kinds = ("integers", "texts")
        return (f"; its ids are {kinds[isinstance(self.ids, pa.Array)]} such as {self.id_of(0)!r}, and the ids here "
                f"are {kinds[isinstance(ids, pa.Array)]}")


def look_at_ids(ids: Ids) -> tuple[str, ...]:
    """Warnings about texts that may be one node and are several, or name no node."""
    if not isinstance(ids, pa.Array) or not len(ids):
        return ()
    found = ()
    short = ids.filter(pc.less_equal(pc.binary_length(ids), max(map(len, SUSPECTS))))
    lost = short.filter(pc.is_in(pc.utf8_lower(short), value_set=pa.array(SUSPECTS, pa.large_string())))
    if len(lost):
        found += (f"a node is called {lost[0].as_py()!r}; if that stands for an unknown id, leave out its edges",)
    lists = ids.filter(pc.match_substring_regex(ids, LIST))
    first = [text for text in lists[:MOST_LISTS].to_pylist() if pc.all(pc.is_in(
        pa.array(re.split(SIGNS, text), pa.large_string()), value_set=ids)).as_py()]
    if first:
        found += (f"{len(lists):,} ids are written as {first[0][:40]!r}, which joins other ids; write one node in each "
                  "cell if these are lists",)
    is_number = pc.match_substring_regex(ids, NUMBER)
    numbers = ids.filter(is_number)
    if len(short := numbers.filter(pc.match_substring_regex(numbers, SHORTENED))):
        found += (f"{len(short):,} ids are written as {short[0].as_py()}, as spreadsheets shorten long numbers, and "
                  "several nodes may have become one; export that column as text",)
    num_odd = len(ids) - len(numbers)
    if 0 < num_odd <= max(1, FEW * len(ids)) and len(ids) > 2 and not len(lost):
        odd = ids[pc.index(is_number, False).as_py()].as_py()
        found += (f"all ids are numbers but {num_odd:,}, such as {odd[:40]!r}",)
    # Ids that a plainer text may mean, too; all others are the plainest already.
    foreign = ids.filter(pc.invert(pc.string_is_ascii(ids)))
    written = pa.concat_arrays([numbers, foreign])
    plain = pa.concat_arrays([pc.replace_substring_regex(numbers, NUMERAL, PLAIN), pc.replace_substring_regex(
        pc.utf8_normalize(foreign, form="NFKC"), NO_SIGN, "")])
    is_other = pc.not_equal(written, plain)
    written, plain = written.filter(is_other), plain.filter(is_other)
    is_there = pc.is_in(plain, value_set=ids)
    num_alike = pc.sum(is_there).as_py() or 0
    if num_alike:
        place = pc.index(is_there, True).as_py()
        found += (f"{num_alike:,} ids look or count like another and are nodes of their own, such as "
                  f"{written[place].as_py()!a} beside {plain[place].as_py()!a}; write them alike if they are one",)
    return found


def places_of(ids: Ids, among: Ids) -> np.ndarray:
    """Place of each id in `among`, which has each once, (num_ids,) int64; -1 where it is not there."""
    if isinstance(ids, pa.Array) or isinstance(among, pa.Array):
        place = pc.index_in(texts_of(ids), value_set=texts_of(among))
        return place.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(among)
    if not len(among):
        return np.full(len(ids), -1)
    place = order[np.minimum(np.searchsorted(among, ids, sorter=order), len(among) - 1)]
    return np.where(among[place] == ids, place, -1)


def ids_of_ends(source: Ids, target: Ids) -> Ids:
    """Ids of a graph known by its edges only, ascending, each once."""
    if not (isinstance(source, pa.Array) or isinstance(target, pa.Array)):
        return np.unique(np.concatenate([source, target]))
    ids = pc.unique(pa.chunked_array([texts_of(source), texts_of(target)]))
    return ids.take(pc.sort_indices(ids))


def numbers_of_ends(source: Ends, target: Ends) -> tuple[int, np.ndarray | None]:
    """Number of nodes of a graph known by its edges only, and the nodes' ids.

    Numbers without large gaps count the nodes, and unused ones are isolated nodes: ids are None. If fewer than half of
    the numbers occur, as in ids of a database, the numbers that occur are the nodes: ids are (num_nodes,) int64,
    ascending.
    """
    lowest, highest = 0, -1
    for ends in (ends for part in chunks(source, target) for ends in part):
        lowest, highest = min(int(ends.min()), lowest), max(int(ends.max()), highest)
    if lowest < 0 or highest < 0:      # a negative number is refused where edges are cleaned
        return highest + 1, None
    if highest >= 2 * SPARSE * len(source):
        distinct = np.empty(0, np.int64)
        for part in chunks(source, target):
            distinct = np.unique(np.concatenate([distinct, *part]))
        return len(distinct), distinct
    occurs = np.zeros(highest + 1, bool)
    for ends in (ends for part in chunks(source, target) for ends in part):
        occurs[ends] = True
    if highest + 1 <= SPARSE * np.count_nonzero(occurs):
        return highest + 1, None
    ids = np.flatnonzero(occurs)
    return len(ids), ids


def renumbered(ends: Ends, ids: np.ndarray) -> np.ndarray:
    """Place of each end in ascending ids, (num_edges,) int32, or int64 from 2^31 nodes on."""
    places = np.empty(len(ends), np.int32 if len(ids) < INT32_NODES else np.int64)
    for first in range(0, len(ends), ARCS_A_CHUNK):
        part = slice(first, first + ARCS_A_CHUNK)
        places[part] = np.searchsorted(ids, ends[part])
    return places


def _item(ids: Ids, place: int) -> int | str:
    return ids[place].as_py() if isinstance(ids, pa.Array) else ids[place].item()
