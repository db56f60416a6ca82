"""given_graph: recognizes the kind of a user's object by its attributes, without importing its library.

This file reads graphs of NetworkX, SciPy and plain NumPy arrays; pyg.py reads PyTorch Geometric's and DGL's, tables.py
reads tables.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.data.columns import as_ends, as_features, as_numbers, as_sparse
from hpcgnn.data.dataset import NO_WEIGHTS, Origins
from hpcgnn.data.given import GivenGraph
from hpcgnn.data.labels import place_beside
from hpcgnn.data.pyg import are_graphs, graph_of_data, graph_of_dgl, is_graph
from hpcgnn.data.tables import (
    FEATURE_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    RELATION_NAMES,
    SPLIT_NAMES,
    WEIGHT_NAMES,
    Choices,
    columns_of,
    first_of,
    given_arrays,
    graph_of_tables,
    is_name,
    is_table,
    mask_columns,
    named_splits,
)
from hpcgnn.errors import DatasetError

DEFAULT_NAME = "graph"
PLAIN_NODES = str | bytes | int | float | np.generic
FORMS = ("a PyG Data or HeteroData or a dict with its keys, a DGL or NetworkX graph, a SciPy sparse matrix, a table of "
         "edges of pandas or Arrow, or an array of edges")


def given_graph(data: Any, choices: Choices) -> GivenGraph:
    """Read a user's object into a GivenGraph.

    Parameters
    ----------
    data : PyG Data or HeteroData or dict of its tensors, a list or dataset of these, DGL graph, SciPy or torch sparse
        matrix, NetworkX graph, table of edges, dict of tables by type, (2, E) or (E, 2) array, or a pair of arrays
    """
    name = choices.name or _name_of(data)
    _refuse_another_order(data, choices, name)
    for takes, refused, kind, take in KINDS:
        if takes(data):
            unused = [what for what in refused if _is_given(choices, what)]
            if unused:
                raise DatasetError(f"{unused[0]}= has no effect on {kind}; leave it out")
            return take(data, choices, name)
    raise DatasetError(f"a graph can't be made of a {type(data).__module__}.{type(data).__name__}; pass {FORMS}, "
                       "or a source such as \"npz:FILE\"")


def _refuse_another_order(data: Any, choices: Choices, name: str) -> None:
    # Rows are taken by their place. If a pandas index names the same rows in another order, they belong elsewhere; an
    # index of 0, 1, 2, ... says nothing.
    ids, nodes = choices.node_ids, choices.nodes
    if hasattr(nodes, "iloc") and hasattr(nodes, "columns") and (ids is None or isinstance(ids, str)):
        ids = nodes[column] if (column := ids or first_of(ID_NAMES, nodes.columns)) in nodes.columns else None
    if _is_networkx(data):
        ids = _objects(list(data.nodes()))
    splits = choices.splits if isinstance(choices.splits, list | tuple) else [choices.splits]
    of_nodes = [(what, getattr(choices, what, None)) for what in ("node_ids", "features", "labels", "owner")]
    of_nodes += [("splits", mask) for mask in splits if str(getattr(mask, "dtype", "")) == "bool"]
    of_edges = [(what, getattr(choices, what)) for what in ("edge_weight", "relation", "edge_attr", "edge_time")]
    for rows, called, given in ((nodes, ids, of_nodes), (data, None, of_edges)):
        known = [_index_of(rows), _index_of(called), None if isinstance(called, str | bool) else called]
        for what, values in given:
            index = _index_of(values)
            if index is None or np.array_equal(index, np.arange(len(index))):
                continue
            others = [np.asarray(other) for other in known if other is not None] or [np.arange(len(index))]
            if not any(np.array_equal(index, other) for other in others) and any(
                    _are_permuted(index, other) for other in others):
                raise DatasetError(f"{name}: the index of {what} has the rows in another order, and rows are taken by "
                                   f"their place; sort {what}, or pass {what}.to_numpy() if the order is right")


def _index_of(values: Any) -> np.ndarray | None:
    return np.asarray(values.index) if hasattr(values, "iloc") else None


def _are_permuted(index: np.ndarray, other: np.ndarray) -> bool:
    with suppress(TypeError):      # values of several types have no order
        return len(index) == len(other) and np.array_equal(np.sort(index), np.sort(other))
    return False


def is_known(data: Any) -> bool:
    """Whether an object is of a kind that `given_graph` reads."""
    return any(takes(data) for takes, *_ in KINDS)


def _is_given(choices: Choices, what: str) -> bool:
    value, default = getattr(choices, what), getattr(Choices(), what)
    return value is not default and not (isinstance(value, str) and value == default)


def _name_of(data: Any) -> str:
    name = getattr(data, "name", "")
    return name if isinstance(name, str) and name.isidentifier() else DEFAULT_NAME


def graph_of_matrix(matrix: Any, choices: Choices, name: str) -> GivenGraph:
    """The graph of a square sparse matrix of SciPy or torch; stored non-zero values are weights."""
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
        raise DatasetError(f"{name} is a matrix, and its values are the weights; leave edge_weight out, or pass "
                           "edge_weight=False for none")
    for what in ("relation", "edge_attr"):
        if getattr(choices, what) is not None and getattr(choices, what) is not False:
            raise DatasetError(f"{name} is a matrix, which holds one number for each edge; pass a table or an array of "
                               f"edges to give {what}")
    given = _arrays(choices, name)
    return GivenGraph(name, source, target, weight, row_name=given.pop("node_id"), num_nodes=matrix.shape[0],
                      ignore=choices.ignored(())[1], split_column=choices.split_column,
                      origins=Origins(weights=NO_WEIGHTS if choices.edge_weight is False else "values of the matrix"),
                      **given)


def _arrays(choices: Choices, name: str) -> dict[str, Any]:
    for what in ("features", "labels", "splits", "node_ids", "relation", "edge_attr"):
        if isinstance(getattr(choices, what), str):
            raise DatasetError(f"{name} has no attributes to find {what}={getattr(choices, what)!r} in; pass an array")
    return given_arrays(choices)


def graph_of_ends(ends: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of an array of edges: (2, num_edges) or (num_edges, 2), or a pair of sources and targets."""
    if isinstance(ends, tuple) and len(ends) == 2 and np.ndim(ends[0]) == 1:
        source, target = ends
    else:
        source, target = as_ends(ends, f"{name}: the edges")
    weight, relation, edge_attr, time = (None if choice is False else choice for choice in (
        choices.edge_weight, choices.relation, choices.edge_attr, choices.edge_time))
    return GivenGraph(name, source, target, weight, relation=relation, edge_attr=edge_attr, time=time,
                      ignore=choices.ignored(())[1], split_column=choices.split_column,
                      origins=Origins(**{what: "an array" for what, value in (
                          ("relations", relation), ("edge_attr", edge_attr)) if value is not None}),
                      **_arrays(choices, name))


def graph_of_networkx(graph: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a NetworkX graph, its nodes in their order; edges of an undirected one hold both ways.

    Attributes of nodes and edges are found by the given names, or by usual ones.
    """
    ids = list(graph.nodes())
    odd = next((node for node in ids if not isinstance(node, PLAIN_NODES) and np.ndim(node)), None)
    if odd is not None:
        raise DatasetError(f"{name} has the node {odd!r}, a {type(odd).__name__}, and shards keep texts and integers; "
                           "pass networkx.relabel_nodes(graph, str)")
    edges = list(graph.edges(data=True))
    source, target = (_objects([edge[end] for edge in edges]) for end in (0, 1))
    of_edges = tuple(dict.fromkeys(key for edge in edges for key in edge[2]))
    weight, weight_key = _edge_weight(edges, choices.edge_weight, of_edges)
    relation, relation_key = _of_edges(edges, choices.relation, (*RELATION_NAMES, "type"), name)
    edge_attr, attr_key = _of_edges(edges, choices.edge_attr, ("edge_attr",), name)
    of_nodes = [graph.nodes[node] for node in ids]
    held = list(dict.fromkeys(key for attributes in of_nodes for key in attributes))
    label, feature, split = (first_of(usual, held) if choice is None else choice for choice, usual in (
        (choices.labels, LABEL_NAMES), (choices.features, FEATURE_NAMES), (choices.splits, SPLIT_NAMES)))
    # A node may lack a label or a split; a node without features is an error.
    labels = _attribute(of_nodes, ids, label, name, True)
    features = _attribute(of_nodes, ids, feature, name)
    masks = list(chain(*mask_columns(held, of_rows=True).values()))
    if choices.finds_masks and masks:
        splits = named_splits({mask: _values(of_nodes, ids, mask, name) for mask in masks}, of_rows=True)
    else:
        splits = _attribute(of_nodes, ids, split, name, True)
    left_out, ignored = choices.ignored(held)
    label, feature, split = (choice if isinstance(choice, str) else None for choice in (label, feature, split))
    listed = {key for choice in (choices.labels, choices.features) if is_name(choice) for key in np.atleast_1d(choice)}
    others = [key for key in held if key not in (label, split) and key not in left_out]
    read_of_edges = {key for found in (weight_key, relation_key, attr_key) for key in
                     found.removeprefix("attribute").removeprefix("s").lstrip().split(", ")}
    origins = Origins(
        labels=f"attribute {label}" if label else "",
        features=choices.said("features", f"attribute {feature}" if feature else (
            f"attributes {', '.join(choices.features)}" if is_name(choices.features) else "")),
        splits=choices.said("splits", f"attribute {split}" if split else "masks"), others=tuple(map(str, others)),
        relations=relation_key, edge_attr=attr_key, weights=weight_key,
        unused=(*(f"{key} of edges" for key in of_edges if str(key) not in read_of_edges),
                *(str(key) for key in held if key not in (label, feature, split, *masks, *listed))),
        place=place_beside(label, of_nodes[0]) if choices.labels is None and label else "")
    return GivenGraph(name, source, target, weight, _objects(ids), features=None if features is None
                      else as_features(features, f"{name}: the features"), labels=labels, splits=splits,
                      is_symmetric=not graph.is_directed(), relation=relation, edge_attr=edge_attr,
                      ignore=ignored, split_column=choices.split_column, origins=origins,
                      remarks=(f"weights of edges are {weight_key}",) if weight_key.startswith("attribute") else (),
                      labels_hint="labels=ATTRIBUTE of the nodes")


def _objects(ids: list) -> np.ndarray:
    array = np.empty(len(ids), dtype=object)
    array[:] = ids
    return array


def _edge_weight(edges: list[tuple], choice: Any, held: tuple[str, ...]) -> tuple[Any, str]:
    if choice is False:
        return None, NO_WEIGHTS
    if choice is not None and not isinstance(choice, str):
        return choice, "an array"
    key = choice or first_of(WEIGHT_NAMES, held)
    if key is None:
        return None, ""
    # As in NetworkX, an edge without a weight weighs 1.
    weight = as_numbers([edge[2].get(key, 1) for edge in edges], f"the weights of edges in attribute {key!r}")
    num_lacking = sum(key not in edge[2] for edge in edges)
    return weight, f"attribute {key}" + f", 1 of {num_lacking:,} edges that lack it" * (num_lacking > 0)


def _of_edges(edges: list[tuple], choice: Any, usual: tuple[str, ...], name: str) -> tuple[Any, str]:
    # Returns a value, or several, of each edge, and where they were; an edge may not lack one.
    if choice is None:
        choice = next((key for key in usual if any(key in edge[2] for edge in edges)), None)
    if choice is None or choice is False:
        return None, ""
    if not is_name(choice):
        return choice, "an array"
    columns = []
    for key in ([choice] if isinstance(choice, str) else choice):
        lacking = next((edge for edge in edges if key not in edge[2]), None)
        if lacking is not None:
            raise DatasetError(f"{name} has no {key!r} at the edge from {lacking[0]!r} to {lacking[1]!r}; expected "
                               "this attribute at every edge")
        columns.append(_objects([edge[2][key] for edge in edges]))
    if isinstance(choice, str):
        return columns[0], f"attribute {choice}"
    values = [as_numbers(column, f"{name}: the values of attribute {key!r} of edges")
              for key, column in zip(choice, columns, strict=True)]
    return np.column_stack(values), f"attributes {', '.join(choice)}"


def _attribute(of_nodes: list[dict], ids: list, choice: Any, name: str, may_lack: bool = False) -> Any:
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


def _is_networkx(data: Any) -> bool:
    return all(hasattr(data, name) for name in ("adj", "is_directed", "nodes", "edges"))


def _is_matrix(data: Any) -> bool:
    return scipy.sparse.issparse(data) or hasattr(data, "sparse_sizes") or (
        hasattr(data, "detach") and "sparse" in str(getattr(data, "layout", "")))


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda data: all(hasattr(data, name) for name in names)


OF_TABLES, OF_MATRICES, TIME = ("nodes", "source", "target"), ("rows",), ("edge_time",)
# A test for the object, choices that do not apply to it, its name in errors, and the function that takes it apart.
KINDS: tuple[tuple[Callable[[Any], bool], tuple[str, ...], str, Callable[[Any, Choices, str], GivenGraph]], ...] = (
    (_is_matrix, (*OF_TABLES, *TIME), "a matrix", graph_of_matrix),
    (_has("ndata", "edata"), (*OF_TABLES, *OF_MATRICES, *TIME), "a DGL graph", graph_of_dgl),
    (_is_networkx, (*OF_TABLES, *OF_MATRICES, *TIME, "node_ids"), "a NetworkX graph",
     graph_of_networkx),
    (lambda data: is_graph(data) or are_graphs(data), (*OF_TABLES, *OF_MATRICES), "a PyG Data", graph_of_data),
    (is_table, OF_MATRICES, "a table of edges",
     lambda data, choices, name: graph_of_tables(columns_of(data, "edges"), choices, name)),
    (lambda data: isinstance(data, np.ndarray | list | tuple) or hasattr(data, "detach"), (*OF_TABLES, *OF_MATRICES),
     "an array of edges", graph_of_ends),
)
