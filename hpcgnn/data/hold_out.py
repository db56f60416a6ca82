"""Held-out links: edges that carry no message, so that a model can be scored by whether it ranks them first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcgnn.data.cleaning import CleanGraph
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
    DatasetError                       links given and to be drawn; a link in both sets; a link from a node to itself
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
        if sum(counts) >= len(links):
            raise DatasetError(f"{name} has {len(links):,} links, and --hold-out {shares[0]} {shares[1]} leaves none "
                               "to train on; hold out fewer")
        drawn = links[np.random.default_rng(seed).permutation(len(links))[:sum(counts)]]
        held = np.stack([source[drawn], target[drawn], np.repeat((VALIDATION, TEST), counts)], axis=1)
    else:
        held = _checked(given, name)
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


def joined(sets: tuple[np.ndarray | None, np.ndarray | None]) -> np.ndarray | None:
    """Links of validation and test, (n, 2) int64 each or None, as one array (n, 3); None if there are none."""
    parts = [np.column_stack([links, np.full(len(links), split)])
             for split, links in zip(SETS, sets, strict=True) if links is not None and len(links)]
    return np.concatenate(parts).astype(np.int64) if parts else None


def _checked(given: np.ndarray, name: str) -> np.ndarray:
    is_loop = given[:, 0] == given[:, 1]
    if is_loop.any():
        raise DatasetError(f"{name} has a held-out link from node {given[is_loop][0, 0]} to itself; leave such links "
                           "out")
    held = np.unique(given, axis=0)
    links, count = np.unique(held[:, :2], axis=0, return_counts=True)
    if (count > 1).any():
        source, target = links[count > 1][0]
        raise DatasetError(f"{name} has the link from node {source} to {target} in both the validation and the test "
                           "set; expected it in one of them")
    return held
