"""Graphs of PyTorch Geometric and DGL, by what they hold; neither library is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.datasets.columns import as_features, as_numbers, as_sparse
from hpcgnn.datasets.given import GivenGraph
from hpcgnn.datasets.objects.choices import Choices, first_of, named_splits
from hpcgnn.datasets.objects.pyg_graphs import WAY_OUT, are_graphs, graphs_in, held_of, joined, refuse_collated
from hpcgnn.datasets.objects.tables import LABEL_NAMES, SPLIT_NAMES, WEIGHT_NAMES
from hpcgnn.datasets.what_was_read import NO_WEIGHTS, Origins
from hpcgnn.errors import DatasetError

FEATURE_NAMES = ("x", "feat", "features", "attr")


def graph_of_data(data: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a PyG `Data`, of a dict with its keys, or of several of them, which become one.

    edge_index, (2, num_edges), holds sources and targets; x, y, edge_weight, or edge_attr where it has one column, and
    train_mask, val_mask and test_mask are read where they are.

    Raises
    ------
    DatasetError       no edge_index, a graph of several types of nodes, or an attribute that is not there
    """
    named = tuple(choice for choice in (choices.features, choices.labels, choices.splits, choices.node_ids)
                  if isinstance(choice, str))
    if are_graphs(data):
        held, joined_remarks = joined(graphs_in(data, name), _edges, named, name)
    else:
        held, joined_remarks = held_of(data, name), ()
    source, target, weight = _edges(held, name)
    refuse_collated(held, source, target, name)
    remarks = ()
    left_out, ignored = choices.ignored(held)
    if choices.edge_weight is not None:
        weight = None if choices.edge_weight is False else _found(held, choices.edge_weight, (), name)
    elif weight is None:
        weight, remarks = _weight(held)
    features = None if choices.features is False else _found(held, choices.features, FEATURE_NAMES[:1], name, True)
    num_nodes = held.get("num_nodes")
    labels = None if choices.labels is False else _found(held, choices.labels, ("y",), name)
    if choices.splits is None or choices.split_column is not None:
        splits = named_splits(held)
    else:
        splits = None if choices.splits is False else _splits(held, choices.splits, name)
    ids = None if choices.node_ids is None else _found(held, choices.node_ids, (), name)
    return GivenGraph(name, source, target, weight, row_name=ids, features=features, labels=labels, splits=splits,
                      num_nodes=None if num_nodes is None else int(num_nodes), remarks=joined_remarks + remarks,
                      ignore=ignored, split_column=choices.split_column, origins=_origins(held, choices, left_out),
                      labels_hint="data.y, labels=KEY or labels=ARRAY (label=KEY in a command)")


def _origins(held: dict[str, Any], choices: Choices, left_out: set[str]) -> Origins:
    chosen = {what: choice if isinstance(choice, str) else usual if choice is None and usual in held else ""
              for what, choice, usual in (("labels", choices.labels, "y"), ("features", choices.features, "x"),
                                          ("ids", choices.node_ids, ""))}
    weights = NO_WEIGHTS if choices.edge_weight is False else (
        choices.edge_weight if isinstance(choices.edge_weight, str) else
        next((key for key in ("edge_weight", "edge_attr", "adj_t") if key in held and _may_be_weights(key, held)), ""))
    masks = [key for key in held if key.endswith("_mask")]
    splits = choices.splits if isinstance(choices.splits, str) else "masks" + (
        "" if choices.split_column is None else f", split {choices.split_column}")
    used = {*chosen.values(), weights, splits, "num_nodes", "edge_index", "adj_t", *(masks if masks else ())}
    others = tuple(str(key) for key, value in held.items() if key not in used | left_out and hasattr(value, "shape"))
    return Origins(splits=splits, weights=weights, unused=tuple(map(str, (key for key in held if key not in used))),
                   others=others, **chosen)


def _edges(held: dict[str, Any], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    if "edge_index" in held and as_sparse(held["edge_index"]) is None:
        ends = as_numbers(held["edge_index"], f"{name}: the values of edge_index")
        if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
            raise DatasetError(f"{name} has an edge_index of {ends.dtype} and shape {ends.shape}; expected integers of "
                               "shape (2, number of edges), sources and targets")
        return ends[0], ends[1], None
    for key, rows in (("adj_t", "targets"), ("adj", "sources"), ("edge_index", "sources")):
        matrix = as_sparse(held[key]) if key in held else None
        if matrix is not None:
            entries = matrix.tocoo()
            ends = (entries.row, entries.col) if rows == "sources" else (entries.col, entries.row)
            return *ends, None if (entries.data == 1).all() else entries.data
    if isinstance(held.get("adj_t"), list):
        raise DatasetError(f"{name} holds the adj_t of several graphs without their slices; {WAY_OUT}")
    raise DatasetError(f"{name} has no edge_index; it holds {', '.join(map(str, held)) or 'nothing'}")


def _may_be_weights(key: str, held: dict[str, Any]) -> bool:
    """Whether an attribute of edges has one number per edge; edge_attr may have several."""
    return key != "edge_attr" or tuple(getattr(held[key], "shape", ()))[1:] in ((), (1,))


def _weight(held: dict[str, Any]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if "edge_weight" in held:
        return held["edge_weight"], ()
    if "edge_attr" not in held:
        return None, ()
    values = as_numbers(held["edge_attr"], "values of edge_attr")
    if values.ndim == 1 or values.shape[1:] == (1,):
        return values.reshape(-1), ("weights of edges are edge_attr",)
    return None, (f"edge_attr has {values.shape[1]} columns, which no model here uses, and was left out",)


def _found(held: dict[str, Any], choice: Any, usual: tuple[str, ...], name: str, is_matrix: bool = False) -> Any:
    """Return a value by its name, by a usual one where none is given, or the given array; None for none."""
    if choice is None:
        choice = first_of(usual, held)
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice not in held:
            raise DatasetError(f"{name} has no {choice!r}; it holds {', '.join(map(str, held))}")
        choice = held[choice]
    return as_features(choice) if is_matrix else choice


def _splits(held: dict[str, Any], choice: Any, name: str) -> Any:
    return _found(held, choice, (), name) if isinstance(choice, str) else choice


def graph_of_dgl(graph: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a DGL graph: edges(), num_nodes(), and by usual or given names of ndata and edata.

    Raises
    ------
    DatasetError       a graph of several types of nodes or edges, or a name that is not there
    """
    if not getattr(graph, "is_homogeneous", True):
        raise DatasetError(f"{name} has several types of nodes or edges, and hpcgnn trains on one; convert it by "
                           "dgl.to_homogeneous(graph)")
    source, target = graph.edges()
    of_nodes, of_edges = dict(graph.ndata), dict(graph.edata)
    weight = None if choices.edge_weight is False else _found(of_edges, choices.edge_weight, WEIGHT_NAMES, name)
    features = None if choices.features is False else _found(of_nodes, choices.features, FEATURE_NAMES, name, True)
    labels = None if choices.labels is False else _found(of_nodes, choices.labels, LABEL_NAMES, name)
    if choices.splits is None or choices.split_column is not None:
        splits = named_splits(of_nodes)
        splits = of_nodes.get(first_of(SPLIT_NAMES, of_nodes)) if splits is None else splits
    else:
        splits = None if choices.splits is False else _splits(of_nodes, choices.splits, name)
    ids = None if choices.node_ids is None else _found(of_nodes, choices.node_ids, (), name)
    ignored = choices.ignored(of_nodes)[1]
    used = {key for key in (*of_nodes,) if key in (*FEATURE_NAMES, *LABEL_NAMES, *SPLIT_NAMES) or key.endswith("_mask")}
    origins = Origins(unused=tuple(key for key in of_nodes if key not in used),
                      others=tuple(key for key in of_nodes if key not in LABEL_NAMES))
    source, target = (as_numbers(ends, f"{name}: the ends of edges") for ends in (source, target))
    return GivenGraph(name, source, target, weight,
                      row_name=ids, num_nodes=int(graph.num_nodes()), features=features, labels=labels, splits=splits,
                      ignore=ignored, split_column=choices.split_column, origins=origins,
                      labels_hint="labels=NAME of ndata, or labels=ARRAY")
