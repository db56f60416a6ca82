"""Held-out links: edges that carry no message, so that a model can be scored by whether it ranks them first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcgnn.data.cleaning import CleanGraph
from hpcgnn.data.columns import as_ends, as_ids
from hpcgnn.data.ids import NodeRows
from hpcgnn.errors import DatasetError

VALIDATION, TEST = 1, 2      # third column of held-out links
SETS = {VALIDATION: "validation", TEST: "test"}


def hold_out(graph: CleanGraph, given: np.ndarray | None, shares: tuple[float, float], seed: int,
             name: str) -> tuple[CleanGraph, np.ndarray | None]:
    """Take links out of a graph, as given or drawn at random.

    Parameters
    ----------
    given : (n, 3) int64 or None       source, target, and VALIDATION or TEST
    shares : (float, float)            shares of the links that are drawn for validation and test if none are given

    Returns
    -------
    graph : CleanGraph                 without the links; where every edge holds both ways, without their reverses
    held_out : (n, 3) int64 or None    as `given`; a link that holds both ways is drawn once, from the lower number

    Raises
    ------
    DatasetError                       links given and to be drawn; a link in both sets, or from a node to itself; a set
                                       without links
    """
    if given is None and not any(shares):
        return graph, None
    if given is not None and any(shares):
        raise DatasetError(f"{name} has held-out links of its own; leave out --hold-out")
    num_nodes = len(graph.indptr) - 1
    target, source = np.repeat(np.arange(num_nodes), np.diff(graph.indptr)), graph.indices.astype(np.int64)
    if given is None:
        links = np.flatnonzero(source < target) if graph.report.is_symmetric else np.arange(len(source))
        counts = [round(share * len(links)) for share in shares]
        if any(share and not count for share, count in zip(shares, counts, strict=True)):
            raise DatasetError(f"{name} has {len(links):,} links, and --hold-out {shares[0]} {shares[1]} draws none "
                               "for a set; hold out more")
        if sum(counts) >= len(links):
            raise DatasetError(f"{name} has {len(links):,} links, and --hold-out {shares[0]} {shares[1]} leaves none "
                               "to train on; hold out fewer")
        drawn = links[np.random.default_rng(seed).permutation(len(links))[:sum(counts)]]
        held = np.stack([source[drawn], target[drawn], np.repeat((VALIDATION, TEST), counts)], axis=1)
    else:
        held = _checked(given, graph.report.is_symmetric, name)
    gone = held[:, 0] * num_nodes + held[:, 1]
    if graph.report.is_symmetric:
        gone = np.concatenate([gone, held[:, 1] * num_nodes + held[:, 0]])
    kept = ~np.isin(source * num_nodes + target, gone)
    counted = ", ".join(f"{int((held[:, 2] == split).sum()):,} for {word}" for split, word in SETS.items())
    remark = f"{len(held):,} links are held out ({counted}), and {int((~kept).sum()):,} edges left the graph for them"
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    indptr = np.concatenate([[0], np.cumsum(kept)])[graph.indptr]
    touched = np.diff(indptr) > 0
    touched[graph.indices[kept]] = True
    report = replace(graph.report, isolated_nodes=int((~touched).sum()), remarks=(*graph.report.remarks, remark))
    return CleanGraph(indptr, graph.indices[kept], report, weight), held


def links_of(sets: tuple[Any, Any], num_nodes: int, rows: NodeRows | None, name: str) -> np.ndarray | None:
    """Links that are given for validation and test, as one array (n, 3) int64; None without any.

    Parameters
    ----------
    sets : of each, (2, n) or (n, 2) ids, a pair of columns, or None
    rows : NodeRows or None      finds nodes by id; None if ids are row numbers

    Raises
    ------
    DatasetError                 an id that is no node, or links that are no pairs of ids
    """
    parts = []
    for (split, word), links in zip(SETS.items(), sets, strict=True):
        if links is None:
            continue
        what = f"{name}: the {word} links"
        ends = [as_ids(column, what) for column in (links if isinstance(links, tuple) else as_ends(links, what))]
        if len(ends) != 2 or len(ends[0]) != len(ends[1]):
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
        parts.append(np.column_stack([found, np.full(len(found), split)]))
    return np.concatenate(parts) if parts else None


def _checked(given: np.ndarray, is_symmetric: bool, name: str) -> np.ndarray:
    if not len(given):
        raise DatasetError(f"{name} has no link among those to hold out; give some, or leave them out")
    is_loop = given[:, 0] == given[:, 1]
    if is_loop.any():
        raise DatasetError(f"{name} has a held-out link from node {given[is_loop][0, 0]} to itself; leave such links "
                           "out")
    held = np.unique(given, axis=0)
    # Where every edge holds both ways, a link and its reverse are one.
    ends = np.sort(held[:, :2], axis=1) if is_symmetric else held[:, :2]
    pairs = np.unique(np.column_stack([ends, held[:, 2]]), axis=0)
    links, count = np.unique(pairs[:, :2], axis=0, return_counts=True)
    if (count > 1).any():
        source, target = links[count > 1][0]
        raise DatasetError(f"{name} has the link from node {source} to {target} in both the validation and the test "
                           "set; expected it in one of them")
    return held
