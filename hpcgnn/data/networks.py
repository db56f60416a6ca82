"""

Graphs of NetworkX, SciPy and plain NumPy arrays, by what they hold; NetworkX is not imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.data.columns import as_ends, as_features, as_numbers, as_sparse
from hpcgnn.data.given import GivenGraph
from hpcgnn.data.labels import place_beside
from hpcgnn.data.pyg import FEATURE_NAMES
from hpcgnn.data.tables import (
    LABEL_NAMES,
    MASK_NAMES,
    SPLIT_NAMES,
    WEIGHT_NAMES,
    Choices,
    first_of,
    given_arrays,
    is_name,
    named_splits,
)
from hpcgnn.data.what_was_read import NO_WEIGHTS, Origins
from hpcgnn.errors import DatasetError

PLAIN_NODES = str | bytes | int | float | np.generic


def graph_of_matrix(matrix: Any, choices: Choices, name: str) -> GivenGraph:
    """The graph of a square sparse matrix of SciPy or torch; stored non-zero values are weights.

    Raises DatasetError for a matrix that is not square or has damaged index arrays.
    """
    matrix = as_sparse(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DatasetError(f"{name} has an adjacency matrix of shape {matrix.shape}; expected as many rows as columns")
    try:
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        entries = matrix.tocoo(copy=False)
    except (ValueError, TypeError, IndexError) as reason:
        raise DatasetError(f"{name} has an adjacency matrix that is damaged: {reason}") from None
    is_edge = entries.data != 0
    row, column, value = entries.row[is_edge], entries.col[is_edge], entries.data[is_edge]
    source, target = (row, column) if choices.rows == "sources" else (column, row)
    weight = None if choices.edge_weight is False else value
    if choices.edge_weight is not None and choices.edge_weight is not False:
        raise DatasetError(f"{name} is a matrix, whose values are the weights; leave edge_weight out, or pass "
                           "edge_weight=False for none")
    given = _arrays(choices, name)
    return GivenGraph(name, source, target, weight, row_name=given.pop("node_id"), num_nodes=matrix.shape[0],
                      ignore=choices.ignored(())[1], split_column=choices.split_column,
                      origins=Origins(weights=NO_WEIGHTS if choices.edge_weight is False else "values of the matrix"),
                      **given)


def _arrays(choices: Choices, name: str) -> dict[str, Any]:
    for what in ("features", "labels", "splits", "node_ids"):
        if isinstance(getattr(choices, what), str):
            raise DatasetError(f"{name} has no attributes to find {what}={getattr(choices, what)!r} in; pass an array")
    return given_arrays(choices)


def graph_of_ends(ends: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of an array of edges: (2, num_edges) or (num_edges, 2), or a pair of sources and targets.

    Raises DatasetError for an array of another shape, or of shape (2, 2), which can be read both ways.
    """
    if isinstance(ends, tuple) and len(ends) == 2 and np.ndim(ends[0]) == 1:
        source, target = ends
    else:
        source, target = as_ends(ends, f"{name}: the edges")
    weight = None if choices.edge_weight is False else choices.edge_weight
    return GivenGraph(name, source, target, weight, ignore=choices.ignored(())[1],
                      split_column=choices.split_column, **_arrays(choices, name))


def graph_of_networkx(graph: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a NetworkX graph, its nodes in their order; edges of an undirected one hold both ways.

    Attributes of nodes and edges are found by the names that are given, or by usual ones.

    Raises DatasetError for an attribute that some nodes lack, or nodes that are neither texts nor integers.
    """
    ids = list(graph.nodes())
    odd = next((node for node in ids if not isinstance(node, PLAIN_NODES) and np.ndim(node)), None)
    if odd is not None:
        raise DatasetError(f"{name} has the node {odd!r}, a {type(odd).__name__}, and shards keep texts and integers; "
                           "pass networkx.relabel_nodes(graph, str)")
    edges = list(graph.edges(data=True))
    source, target = (_objects([edge[end] for edge in edges]) for end in (0, 1))
    weight, remarks = _edge_weight(edges, choices.edge_weight)
    of_nodes = [graph.nodes[node] for node in ids]
    held = list(dict.fromkeys(key for attributes in of_nodes for key in attributes))
    # A node without a label or a split has none; one without features is an error.
    labels = _attribute(of_nodes, ids, choices.labels, LABEL_NAMES, held, name, True)
    features = _attribute(of_nodes, ids, choices.features, FEATURE_NAMES, held, name)
    if (choices.splits is None or choices.split_column is not None) and MASK_NAMES[0] in held:
        splits = named_splits({mask: _values(of_nodes, ids, mask, name) for mask in MASK_NAMES if mask in held})
    else:
        splits = _attribute(of_nodes, ids, choices.splits, SPLIT_NAMES, held, name, True)
    left_out, ignored = choices.ignored(held)
    label, feature, split = (choice if isinstance(choice, str) else first_of(usual, held) if choice is None else None
                             for choice, usual in ((choices.labels, LABEL_NAMES), (choices.features, FEATURE_NAMES),
                                                   (choices.splits, SPLIT_NAMES)))
    others = [key for key in held if key not in (label, split) and key not in left_out]
    origins = Origins(
        labels=f"attribute {label}" if label else "", features=f"attribute {feature}" if feature else "",
        splits=f"attribute {split}" if split else "masks", others=tuple(map(str, others)),
        weights=NO_WEIGHTS if choices.edge_weight is False else f"attribute {choices.edge_weight or 'weight'}",
        unused=tuple(str(key) for key in held if key not in (label, feature, split, *MASK_NAMES)),
        place=place_beside(label, of_nodes[0]) if choices.labels is None and label else "")
    return GivenGraph(name, source, target, weight, _objects(ids), features=None if features is None
                      else as_features(features, f"{name}: the features"), labels=labels, splits=splits,
                      is_symmetric=not graph.is_directed(),
                      ignore=ignored,
                      split_column=choices.split_column, origins=origins, remarks=remarks,
                      labels_hint="labels=ATTRIBUTE of the nodes")


def _objects(ids: list) -> np.ndarray:
    array = np.empty(len(ids), dtype=object)
    array[:] = ids
    return array


def _edge_weight(edges: list[tuple], choice: Any) -> tuple[Any, tuple[str, ...]]:
    if choice is False:
        return None, ()
    if choice is not None and not isinstance(choice, str):
        return choice, ()
    key = choice or next((name for name in WEIGHT_NAMES if any(name in edge[2] for edge in edges)), None)
    # As in NetworkX, an edge without a weight weighs 1.
    if key is None:
        return None, ()
    weight = as_numbers([edge[2].get(key, 1) for edge in edges], f"the weights of edges in attribute {key!r}")
    return weight, (f"weights of edges are attribute {key}",)


def _attribute(of_nodes: list[dict], ids: list, choice: Any, usual: tuple[str, ...], held: list[str], name: str,
               may_lack: bool = False) -> Any:
    if choice is None:
        choice = first_of(usual, held)
    if choice is None or choice is False:
        return None
    if isinstance(choice, str):
        return _values(of_nodes, ids, choice, name, may_lack)
    if is_name(choice):
        return np.column_stack([as_numbers(_values(of_nodes, ids, key, name, may_lack), f"values of attribute {key!r}")
                                for key in choice])
    return choice


def _values(of_nodes: list[dict], ids: list, key: str, name: str, may_lack: bool = False) -> np.ndarray:
    lacking = next((node for node, held in zip(ids, of_nodes, strict=True) if key not in held), None)
    if lacking is not None and (not may_lack or not any(key in held for held in of_nodes)):
        raise DatasetError(f"{name} has no {key!r} at node {lacking!r}; expected this attribute at every node")
    return _objects([held.get(key) for held in of_nodes])
