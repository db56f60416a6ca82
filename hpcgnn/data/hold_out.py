"""Held-out links: edges that carry no message, so that a model can be scored by whether it ranks them first."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcgnn.data.cleaning import CleanGraph
from hpcgnn.data.columns import Cells, as_ends, as_ids, as_numbers, texts_of
from hpcgnn.data.dataset import REVERSE
from hpcgnn.data.ids import NodeRows
from hpcgnn.errors import DatasetError

VALIDATION, TEST = 1, 2      # third column of held-out links
SETS = {VALIDATION: "validation", TEST: "test"}


def hold_out(graph: CleanGraph, given: np.ndarray | None, shares: tuple[float, float], seed: int,
             name: str, relation: str = "") -> tuple[CleanGraph, np.ndarray | None]:
    """Take links out of a graph, as given or drawn at random.

    Parameters
    ----------
    given : (n, 3) int64 or None       source, target, and VALIDATION or TEST; if edges have relations
                                       (n, 4), with the link's relation
    shares : (float, float)            shares of the links that are drawn for validation and test if none are given
    relation : str                     the relation whose links are drawn; by default all

    Returns
    -------
    graph : CleanGraph                 without the links, and without their reverses where all edges, or all of a
                                       relation, have one
    held_out : as `given`, or None     a link that holds both ways is drawn once: from the lower number, or by the
                                       first relation if reverses have another one

    Raises
    ------
    DatasetError                       links given and to be drawn; a link in both sets; a set without links; without
                                       relations, a link from a node to itself; an unknown relation
    """
    if given is None and not any(shares):
        return graph, None
    if given is not None and any(shares):
        raise DatasetError(f"{name} has held-out links of its own; leave out --hold-out")
    num_nodes, edges = len(graph.indptr) - 1, _edges_of(graph)
    reverse = _Reverse.of(graph, edges)
    if given is None:
        # Parallel edges, which differ in their attributes, are one link.
        is_new = np.ones(len(edges), bool)
        is_new[1:] = (edges[1:] != edges[:-1]).any(axis=1)
        links = np.flatnonzero(is_new & reverse.is_first(edges) & reverse.are_of(relation, graph, edges, name))
        counts = [round(share * len(links)) for share in shares]
        if any(share and not count for share, count in zip(shares, counts, strict=True)):
            raise DatasetError(f"{name} has {len(links):,} links, and --hold-out {shares[0]} {shares[1]} draws none "
                               "for a set; hold out more")
        if sum(counts) >= len(links):
            raise DatasetError(f"{name} has {len(links):,} links, and --hold-out {shares[0]} {shares[1]} leaves none "
                               "to train on; hold out fewer")
        drawn = links[np.random.default_rng(seed).permutation(len(links))[:sum(counts)]]
        held = np.insert(edges[drawn], 2, np.repeat((VALIDATION, TEST), counts), axis=1)
    else:
        held = _checked(given, reverse, name)
    gone = np.delete(held, 2, axis=1)
    kept = ~_are_in(edges, np.concatenate([gone, reverse.reversed(gone)]), num_nodes)
    counted = ", ".join(f"{int((held[:, 2] == split).sum()):,} for {word}" for split, word in SETS.items())
    remark = f"{len(held):,} links are held out ({counted}), and {int((~kept).sum()):,} edges left the graph for them"
    indptr = np.concatenate([[0], np.cumsum(kept)])[graph.indptr]
    touched = np.diff(indptr) > 0
    touched[graph.indices[kept]] = True
    report = replace(graph.report, isolated_nodes=int((~touched).sum()), remarks=(*graph.report.remarks, remark))
    of_edges = {key: None if values is None else values[kept] for key, values in (
        ("edge_weight", graph.edge_weight), ("edge_type", graph.edge_type), ("edge_attr", graph.edge_attr))}
    return graph._replace(indptr=indptr, indices=graph.indices[kept], report=report, **of_edges), held


def last_links(graph: CleanGraph, ends: np.ndarray, time: np.ndarray, shares: tuple[float, float],
               name: str, relation: str = "") -> tuple[np.ndarray, str]:
    """The last links by time, which `hold_out` takes as given, and a remark.

    A link that comes several times has the time of the first one. The last links are test, those before validation.
    Links of one time stay together: a set begins with the first whole time with which it has no more than its share.

    Parameters
    ----------
    graph : CleanGraph                the cleaned edges
    ends : (n, 2) or (n, 3) int64     source, target, and relation if edges have one, of all edges of the source
    time : (n,) int or float          see `as_times`
    relation : str                    as in `hold_out`

    Raises
    ------
    DatasetError                      no share; no time for each edge; a set, or training, without links; an unknown
                                      relation
    """
    if not any(shares):
        raise DatasetError(f"{name} has times of edges, which have no effect without --hold-out; add it, such as "
                           "--hold-out 0.1 0.1, or leave the times out")
    if time.shape != (len(ends),):
        raise DatasetError(f"{name} has times of edges of shape {time.shape}; expected one for each of {len(ends)} "
                           "edges")
    ends, time = (rows[ends[:, 0] != ends[:, 1]] for rows in (ends, time))
    reverse = _Reverse.of(graph, _edges_of(graph))
    ends = reverse.one_way(ends)
    is_asked = reverse.are_of(relation, graph, ends, name)
    if relation and not is_asked.any():
        raise DatasetError(f"{name} has no times of edges of {relation}, whose last links are to be held out")
    ends, time = ends[is_asked], time[is_asked]
    order = np.lexsort((time, *ends.T))
    ends, time = ends[order], time[order]
    is_first = np.ones(len(ends), bool)
    is_first[1:] = (ends[1:] != ends[:-1]).any(axis=1)
    order = np.argsort(time[is_first], kind="stable")
    links, time = ends[is_first][order], time[is_first][order]
    # Where a time begins among the ordered links, and behind the last link.
    starts = np.append(np.flatnonzero(np.diff(np.concatenate([[-1], np.unique(time, return_inverse=True)[1]]))),
                       len(links))
    bounds = [len(links)]
    for share, word in zip(shares[::-1], reversed(SETS.values()), strict=True):
        fewest = bounds[-1] - round(share * len(links))
        bounds.append(int(starts[np.searchsorted(starts, fewest)]))
        if share and bounds[-1] == bounds[-2]:
            alike = int((time[:bounds[-1]] == time[bounds[-1] - 1]).sum()) if bounds[-1] else 0
            raise DatasetError(f"{name} has {len(links):,} links, of which {share} for {word} is less than the "
                               f"{alike:,} links of one time, which stay together; hold out more")
    if not bounds[-1]:
        raise DatasetError(f"{name} has {len(links):,} links, and --hold-out {shares[0]} {shares[1]} leaves none "
                           "to train on; hold out fewer")
    begins = ", ".join(f"{word} begins at time {time[start]}" for share, word, start in zip(
        shares, SETS.values(), bounds[:0:-1], strict=True) if share)
    split = np.repeat((VALIDATION, TEST), (bounds[1] - bounds[2], bounds[0] - bounds[1]))
    return np.insert(links[bounds[2]:], 2, split, axis=1), f"the last links by time are held out: {begins}"


def as_times(values: Any, what: str) -> np.ndarray:
    """Times of edges, (n,) in the integers or floats that hold them: of dates and times, the units of their type.

    Raises DatasetError for texts that are no dates of ISO 8601, and for an unknown time.
    """
    if getattr(getattr(values, "dtype", None), "kind", "") == "M":
        values = np.ma.MaskedArray(values.astype(np.int64), np.isnat(values)) if isinstance(values, np.ndarray) else \
            pa.array(values)
    if isinstance(values, Cells):
        with suppress(pa.ArrowInvalid):
            values = values.texts.cast(pa.timestamp("ns"))
    if isinstance(values, pa.Array | pa.ChunkedArray) and pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    times = as_numbers(values, what)
    times = times[:, 0] if times.ndim == 2 and times.shape[1] == 1 else times
    if times.dtype.kind == "f" and np.isnan(times).any():
        raise DatasetError(f"{what} are unknown at place {int(np.argmax(np.isnan(times)))}; expected one for each edge")
    return times


def doubts_about(graph: CleanGraph, held: np.ndarray | None) -> tuple[str, ...]:
    """A warning if edges of a graph lead back from targets of held-out links to their sources."""
    if held is None or graph.report.is_symmetric:
        return ()
    num_nodes, edges = len(graph.indptr) - 1, _edges_of(graph)[:, :2]
    is_back = _are_in(edges, held[:, [1, 0]], num_nodes)
    count = int(_are_in(held[:, [1, 0]], edges[is_back], num_nodes).sum())
    remedy = "relations that say the same as the link's can be left out" if held.shape[1] > 3 else \
        "if links have no direction, --symmetrize (symmetrize=True) lets both leave"
    return (f"{count:,} of {len(held):,} held-out links have an edge back, from target to source, which stays in the "
            f"graph and carries messages; {remedy}",) if count else ()


class _Reverse(NamedTuple):
    """Reverses of the edges of a graph, rows of source and target, and relation if edges have one."""

    relation: np.ndarray      # (num_relations,) int64, of the reverses of a relation's edges; -1: some have none
    is_added: bool = False      # --symmetrize added relations for the reverses

    @classmethod
    def of(cls, graph: CleanGraph, edges: np.ndarray) -> _Reverse:
        """Reverses of the `edges` of a graph, whatever their attributes.

        A relation's edges have reverses if these are all edges of one relation: the same one ("knows"), or another one
        ("rates" and "rev_rates").
        """
        numbers = np.arange(max(1, len(graph.relation_names)))
        if (half := num_reversible(graph.relation_names)):
            return cls((numbers + half) % (2 * half), is_added=True)
        if graph.report.is_symmetric:
            return cls(numbers)
        if graph.edge_type is None and graph.edge_attr is None:
            return cls(np.full(1, -1))
        num_nodes, order = len(graph.indptr) - 1, np.argsort(_relation_of(edges), kind="stable")
        bounds = np.searchsorted(_relation_of(edges)[order], [*numbers, len(numbers)])
        of_relations = [edges[order[start:stop]] for start, stop in pairwise(bounds)]
        # Relations of equal pairs are matched in their order, as rates, likes with rev_rates, rev_likes.
        pairs = [_pairs(ends[:, 0], ends[:, 1], num_nodes) for ends in of_relations]
        alike: dict[bytes, list[int]] = {}
        for number, key in enumerate(pairs):
            if key:
                alike.setdefault(key, []).append(number)
        relation = np.full(len(numbers), -1)
        for number, ends in enumerate(of_relations):
            others = alike.get(_pairs(ends[:, 1], ends[:, 0], num_nodes), [])
            own = alike.get(pairs[number], [])
            if len(others) == len(own) > 0:
                relation[number] = others[own.index(number)]
        return cls(relation)

    def is_first(self, edges: np.ndarray) -> np.ndarray:
        """Whether an edge, not its reverse, stands for the link, (n,) bool."""
        own = _relation_of(edges)
        other = self.relation[own]
        return (other < 0) | (own < other) | ((own == other) & (edges[:, 0] <= edges[:, 1]))

    def are_of(self, name: str, graph: CleanGraph, edges: np.ndarray, source: str) -> np.ndarray:
        """Whether an edge is of the relation of this name, or of its reverse, (n,) bool; of any for an empty name.

        Raises DatasetError for a relation that the graph does not have.
        """
        if not name:
            return np.ones(len(edges), bool)
        names = graph.relation_names
        if name not in names:
            raise DatasetError(f"the relation to hold out is {name!r}, and {source} has " + (
                f"{', '.join(names[:3])}{', ..' if len(names) > 3 else ''}" if names else "no relations of edges"))
        number = names.index(name)
        return np.isin(_relation_of(edges), [number, *self.relation[number:number + 1]])

    def one_way(self, edges: np.ndarray) -> np.ndarray:
        """The edges, or their reverses that stand for the links."""
        found, is_reverse = edges.copy(), ~self.is_first(edges)
        found[is_reverse] = self.reversed(edges[is_reverse])
        return found

    def reversed(self, edges: np.ndarray) -> np.ndarray:
        """The reverses of those edges that have one."""
        other = self.relation[_relation_of(edges)]
        found = edges[other >= 0][:, [1, 0, *range(2, edges.shape[1])]]
        found[:, 2:] = other[other >= 0, None]
        return found


def _relation_of(edges: np.ndarray) -> np.ndarray:
    return edges[:, 2] if edges.shape[1] > 2 else np.zeros(len(edges), np.int8)


def _pairs(source: np.ndarray, target: np.ndarray, num_nodes: int) -> bytes:
    # The set of pairs, as a key.
    return np.unique(source * num_nodes + target).tobytes()


def num_reversible(names: tuple[str, ...]) -> int:
    """R, if a graph has R relations and then R more of their added reverses, by the names of all; else 0."""
    half = len(names) // 2
    return half if names[half:] == tuple(f"{one}{REVERSE}" for one in names[:half]) else 0


def _edges_of(graph: CleanGraph) -> np.ndarray:
    """Source, target, and relation if edges have one, of a graph's edges, (num_edges, 2 or 3) int64."""
    target = np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))
    columns = [graph.indices.astype(np.int64), target, *([] if graph.edge_type is None else [graph.edge_type])]
    return np.stack(columns, axis=1)


def _are_in(edges: np.ndarray, gone: np.ndarray, num_nodes: int) -> np.ndarray:
    """Whether an edge is among the rows `gone`, (n,) bool."""
    key, of_gone = (rows[:, 0] * num_nodes + rows[:, 1] for rows in (edges, gone))
    found = np.isin(key, of_gone)
    if edges.shape[1] > 2:
        some = np.flatnonzero(found)
        # Few edges have the ends of such links, so rows are compared for these only.
        _, code = np.unique(np.concatenate([gone, edges[some]]), axis=0, return_inverse=True)
        found[some] = np.isin(code[len(gone):], code[:len(gone)])
    return found


def links_of(sets: tuple[Any, Any], num_nodes: int, rows: NodeRows | None, name: str,
             relation_names: tuple[str, ...] = ()) -> np.ndarray | None:
    """Links that are given for validation and test, as one array of `hold_out`; None without any.

    Parameters
    ----------
    sets : of each, (2, n) or (n, 2) ids, a pair of columns, or None; with relations (n, 3), or three columns: source,
           relation by name or number, and target
    rows : NodeRows or None      finds nodes by id; None if ids are row numbers

    Raises
    ------
    DatasetError                 an id that is no node, an unknown relation, or links that are no such columns
    """
    parts = []
    for (split, word), links in zip(SETS.items(), sets, strict=True):
        if links is None:
            continue
        what = f"{name}: the {word} links"
        columns = links if isinstance(links, tuple) else _columns_of(links, what, bool(relation_names))
        if relation_names and len(columns) != 3:
            raise DatasetError(f"{what} have {len(columns)} columns, and edges have relations; expected three: source, "
                               "relation, target")
        if not relation_names and len(columns) > 2:
            _refuse_false_links(columns[2], what)
        ends = [as_ids(column, what) for column in (columns[0], columns[2 if relation_names else 1])]
        if len(ends[0]) != len(ends[1]):
            raise DatasetError(f"{what} have columns of {', '.join(str(len(column)) for column in ends)} ids; expected "
                               "a source and a target of each")
        if rows is not None:
            ends = [rows.find(column, f"a {word} link") for column in ends]
        elif not all(isinstance(column, np.ndarray) for column in ends):
            raise DatasetError(f"{what} are texts, and nodes have no ids but their numbers, 0 to {num_nodes - 1}")
        found = np.stack([np.asarray(column, np.int64) for column in ends], axis=1)
        if len(found) and not 0 <= found.min() <= found.max() < num_nodes:
            bad = int(found.min() if found.min() < 0 else found.max())
            raise DatasetError(f"{what} name node {bad}, which does not exist; node ids run from 0 to {num_nodes - 1}")
        relation = [relations_of(columns[1], relation_names, what)] if relation_names else []
        parts.append(np.column_stack([found, np.full(len(found), split), *relation]))
    return np.concatenate(parts) if parts else None


def _refuse_false_links(column: Any, what: str) -> None:
    # A third column may be a weight.
    numbers = np.ones(1)
    with suppress(DatasetError):      # texts and times say nothing
        numbers = as_numbers(column, what)
    if not (numbers > 0).all():
        raise DatasetError(f"{what} hold {numbers[~(numbers > 0)][0]} in their third column, which is no weight; leave "
                           "out links that do not hold, and relations, which the edges do not have")


def relations_of(column: Any, names: tuple[str, ...], what: str) -> np.ndarray:
    """The relations of links, (n,) int64, from their names, or from their numbers if no name is a number.

    Raises DatasetError for a relation that the graph does not have.
    """
    found = as_ids(column, f"{what}: the relations")
    place = pc.index_in(texts_of(found), value_set=pa.array(names, pa.large_string()))
    lost = place.is_null().to_numpy(zero_copy_only=False)
    if lost.any() and isinstance(found, np.ndarray) and not any(one.isdigit() for one in names):
        lost, place = (found < 0) | (found >= len(names)), pa.array(found)
    if lost.any():
        one = found[int(np.argmax(lost))]
        shown = one.as_py() if isinstance(one, pa.Scalar) else one.item()
        raise DatasetError(f"{what} have the relation {shown!r}, which no edge has; relations are "
                           f"{', '.join(names[:3])}{', ..' if len(names) > 3 else ''}; leave such links out")
    return place.to_numpy(zero_copy_only=False).astype(np.int64)


def _columns_of(links: Any, what: str, has_relations: bool) -> tuple[Any, ...]:
    shape: tuple[int, ...] = getattr(links, "shape", ())
    if len(shape) == 2 and shape[1] == 3 and (has_relations or shape[0] != 2):
        return tuple(np.asarray(links)[:, column] for column in range(3))
    return as_ends(links, what)


def _checked(given: np.ndarray, reverse: _Reverse, name: str) -> np.ndarray:
    if not len(given):
        raise DatasetError(f"{name} has no link among those to hold out; give some, or leave them out")
    is_loop = given[:, 0] == given[:, 1]
    if is_loop.any() and given.shape[1] == 3:
        raise DatasetError(f"{name} has a held-out link from node {given[is_loop][0, 0]} to itself; leave such links "
                           "out")
    # A reverse that --symmetrize added stands for its link.
    one_way = np.insert(reverse.one_way(np.delete(given, 2, axis=1)), 2, given[:, 2], axis=1)
    held = np.unique(one_way if reverse.is_added else given, axis=0)
    pairs = np.unique(one_way, axis=0)
    links, count = np.unique(np.delete(pairs, 2, axis=1), axis=0, return_counts=True)
    if (count > 1).any():
        source, target = links[count > 1][0, :2]
        raise DatasetError(f"{name} has the link from node {source} to {target} in both the validation and the test "
                           "set; expected it in one of them")
    return held
