"""Graphs of PyTorch Geometric and DGL: one, several joined as one, `pyg:FILE`, or a public dataset, `pyg:CLASS/NAME`.

Only a public dataset imports PyTorch Geometric, whose class downloads it.

PyG's datasets concatenate the tensors of their graphs, and `slices` say where each begins; edges number the nodes
within their own graph. Two graphs with 3 and 2 nodes become one with 5: edge 0 -> 1 of the second becomes 3 -> 4.
`pyg:FILE` holds tensors saved as a dict; pickles of objects are never loaded.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.data.columns import as_features, as_mask, as_numbers, as_sparse, is_mask
from hpcgnn.data.dataset import NO_WEIGHTS, GraphDataset, Origins
from hpcgnn.data.given import GivenGraph, finish_dataset, read_relation_names
from hpcgnn.data.options import SourceOptions, choice_of, reading, split_path
from hpcgnn.data.tables import (
    FEATURE_NAMES,
    LABEL_NAMES,
    PYG_FEATURES,
    PYG_LABELS,
    SPLIT_NAMES,
    WEIGHT_NAMES,
    Choices,
    first_of,
    mask_columns,
    named_splits,
    row_lists,
    split_of_list,
)
from hpcgnn.data.typed import DGL_ATTRIBUTES, count_of, graph_of_hetero, graph_of_typed_dgl, is_typed
from hpcgnn.errors import DatasetError

# DGL calls the types of edges _TYPE in a graph that was of several types; case is ignored.
DGL_RELATIONS = ("etype", "edge_type", "rel_type", "relation", "_type")


def graph_of_data(data: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a PyG `Data`, of a dict with its keys, or of several of them, which become one.

    edge_index, (2, num_edges), holds sources and targets; x, y, edge_weight, edge_type, edge_attr, relation_names,
    train_mask, val_mask and test_mask are read if present. edge_attr with one column holds weights, unless there are
    other weights or it is asked for by name. A graph with types of nodes is read by `graph_of_hetero`.
    """
    if (typed := _typed_in(data)) is not None:
        return graph_of_hetero(typed, choices, name, _edges)
    named, of_edges = (tuple(choice for choice in chosen if isinstance(choice, str)) for chosen in (
        (choices.features, choices.labels, choices.splits, choices.node_ids),
        (choices.edge_weight, choices.relation, choices.edge_attr, choices.edge_time)))
    if are_graphs(data):
        held, unread, joined_remarks = joined(graphs_in(data, name), _edges, named, name, of_edges)
    else:
        held, unread, joined_remarks = held_of(data, name), (), ()
    source, target, weight = _edges(held, name)
    refuse_collated(held, source, target, name)
    left_out, ignored = choices.ignored(held)
    weight_of, attr_of = _of_edges(held, choices, weight is not None)
    if weight_of is not None:
        weight = _found(held, weight_of, (), name)
    is_guess = choices.edge_weight is None and isinstance(weight_of, str) and weight_of == "edge_attr"
    remarks = ("weights of edges are edge_attr",) if is_guess else ()
    num_nodes = count_of(held["num_nodes"], name) if "num_nodes" in held else None
    relation_of = first_of(("edge_type",), held) if choices.relation is None else choices.relation
    relation, names = _found(held, relation_of, (), name), held.get("relation_names")
    features = _found(held, choices.features, PYG_FEATURES, name)
    splits, lists = splits_in(held, choices, name)
    return GivenGraph(name, source, target, weight, row_name=_found(held, choices.node_ids, (), name),
                      features=None if features is None else as_features(features),
                      labels=_found(held, choices.labels, PYG_LABELS, name), splits=splits, relation=relation,
                      relation_names=() if relation is None or names is None else read_relation_names(
                          names, f"{name}: relation_names"),
                      edge_attr=_found(held, attr_of, (), name), time=_found(held, choices.edge_time, (), name),
                      num_nodes=num_nodes, remarks=joined_remarks + remarks,
                      ignore=ignored, split_column=choices.split_column,
                      origins=_origins(held, replace(choices, relation=relation_of, edge_attr=attr_of), left_out,
                                       lists, unread),
                      labels_hint="data.y, labels=KEY or labels=ARRAY (label=KEY in a command)")


def _typed_in(data: Any) -> Any:
    # The graph with types of nodes that an object is, or holds as its only graph; None for others.
    is_saved = isinstance(data, tuple) and len(data) in (2, 3) and data[1] is None      # a dataset of one graph
    if is_saved or (are_graphs(data) and len(data) == 1):
        data = data[0]
    return data if is_typed(data) else None


def splits_in(held: Held, choices: Choices, name: str) -> tuple[Any, tuple[str, ...]]:
    """Splits, and the keys of those that are no masks: lists of rows, or a dict or words per node under a usual key."""
    if lists := row_lists(held, choices):
        return {split: held[key] for key, split in lists.items()}, tuple(lists)
    if not choices.finds_masks:
        return _found(held, choices.splits, (), name), (choices.splits,) * isinstance(choices.splits, str)
    key = first_of(("split_idx", *SPLIT_NAMES), held)
    if choices.splits is None and key is not None and not mask_columns(held) and (
            isinstance(held[key], dict) or np.asarray(held[key]).dtype.kind in "UT" or key.startswith("split")):
        return held[key], (key,)
    return named_splits(held), ()


def _origins(held: dict[str, Any], choices: Choices, left_out: set[str], lists: tuple[str, ...],
             unread: tuple[str, ...]) -> Origins:
    chosen = {what: choice if isinstance(choice, str) else (first_of(usual, held) or "") if choice is None else ""
              for what, choice, usual in (("labels", choices.labels, PYG_LABELS), ("ids", choices.node_ids, ()),
                                          ("features", choices.features, PYG_FEATURES))}
    weights = NO_WEIGHTS if choices.edge_weight is False else (
        choices.edge_weight if isinstance(choices.edge_weight, str) else
        next((key for key in ("edge_weight", "edge_attr", "adj_t") if key in held and _may_be_weights(key, held)
              and not (isinstance(choices.edge_attr, str) and key == choices.edge_attr)), ""))
    relations, edge_attr = (
        choice if isinstance(choice, str) else "" if choice is None or choice is False else "an array"
        for choice in (choices.relation, choices.edge_attr))
    masks = [*chain(*mask_columns(held).values()), *lists]
    splits = choices.splits if isinstance(choices.splits, str) else ", ".join(lists) or "masks" + (
        "" if choices.split_column is None else f", split {choices.split_column}")
    used = {*chosen.values(), weights, relations, edge_attr, splits, "num_nodes", "edge_index", "adj_t", *masks}
    used |= {"relation_names"} if relations else set()
    used |= {choices.edge_time} if isinstance(choices.edge_time, str) else set()
    others = tuple(str(key) for key, value in held.items()
                   if key not in used | left_out | {"batch", "ptr"} and hasattr(value, "shape"))
    chosen["features"] = choices.said("features", chosen["features"])
    return Origins(splits=choices.said("splits", splits), weights=weights, relations=relations, edge_attr=edge_attr,
                   others=others, unused=(*(str(key) for key in held if key not in used), *unread), **chosen)


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
    return key != "edge_attr" or tuple(getattr(held[key], "shape", ()))[1:] in ((), (1,))


def _of_edges(held: dict[str, Any], choices: Choices, has_values: bool) -> tuple[Any, Any]:
    # Returns what to take as weights and as attributes of edges, each a key or as in choices. edge_attr of one column
    # holds weights, unless there are others (`has_values`: in the matrix of edges) or it is named as attributes.
    weight, attr = choices.edge_weight, choices.edge_attr
    if weight is None and not has_values:
        weight = next((key for key in ("edge_weight", "edge_attr") if key in held and _may_be_weights(key, held)
                       and not (isinstance(attr, str) and attr == key)), None)
    if attr is None and "edge_attr" in held:
        is_weight = isinstance(weight, str) and weight == "edge_attr"
        is_left_out = weight is False and _may_be_weights("edge_attr", held)
        attr = None if is_weight or is_left_out else "edge_attr"
    return weight, attr


def _found(held: dict[str, Any], choice: Any, usual: tuple[str, ...], name: str) -> Any:
    choice = first_of(usual, held) if choice is None else choice
    if not isinstance(choice, str):
        return None if choice is False else choice
    if choice not in held:
        raise DatasetError(f"{name} has no {choice!r}; it holds {', '.join(map(str, held))}")
    return held[choice]


def graph_of_dgl(graph: Any, choices: Choices, name: str) -> GivenGraph:
    """Read a DGL graph: edges(), num_nodes(), and columns of ndata and edata by usual names or those in `choices`."""
    if not getattr(graph, "is_homogeneous", True):
        return graph_of_typed_dgl(graph, choices, name)
    source, target = graph.edges()
    of_nodes, of_edges = dict(graph.ndata), dict(graph.edata)
    features = _found(of_nodes, choices.features, FEATURE_NAMES, name)
    splits = named_splits(of_nodes, of_rows=True) if choices.finds_masks else None
    if splits is None:
        splits = _found(of_nodes, None if choices.finds_masks else choices.splits, SPLIT_NAMES, name)
    used = {key for key in of_nodes if key in (*FEATURE_NAMES, *LABEL_NAMES, *SPLIT_NAMES)}
    used |= set(chain(*mask_columns(of_nodes, of_rows=True).values()))
    weight = first_of(WEIGHT_NAMES, of_edges) if choices.edge_weight is None else choices.edge_weight
    relation, edge_attr = (choice if choice is not None else first_of(usual, of_edges) for choice, usual in (
        (choices.relation, DGL_RELATIONS), (choices.edge_attr, DGL_ATTRIBUTES)))
    of_edges_used = [key for key in (weight, relation, edge_attr, "_ID") if isinstance(key, str)]
    origins = Origins(weights=NO_WEIGHTS if weight is False else f"edata {weight}" if isinstance(weight, str) else "",
                      splits=choices.said("splits", ""), features=choices.said("features", ""),
                      unused=(*(key for key in of_nodes if key not in used),
                              *(f"{key} of edges" for key in of_edges if key not in of_edges_used)),
                      **{what: f"edata {key}" if isinstance(key, str) else "an array" for what, key in (
                          ("relations", relation), ("edge_attr", edge_attr)) if key is not None and key is not False},
                      others=tuple(key for key in of_nodes if key not in LABEL_NAMES))
    source, target = (as_numbers(ends, f"{name}: the ends of edges") for ends in (source, target))
    return GivenGraph(name, source, target, _found(of_edges, weight, (), name),
                      relation=_found(of_edges, relation, (), name), edge_attr=_found(of_edges, edge_attr, (), name),
                      row_name=_found(of_nodes, choices.node_ids, (), name), num_nodes=int(graph.num_nodes()),
                      features=None if features is None else as_features(features),
                      labels=_found(of_nodes, choices.labels, LABEL_NAMES, name), splits=splits,
                      ignore=choices.ignored(of_nodes)[1], split_column=choices.split_column, origins=origins,
                      labels_hint="labels=NAME of ndata, or labels=ARRAY")


WAY_OUT = "pass Batch.from_data_list(list(dataset))"
OF_NODES = ("x", "y", "train_mask", "val_mask", "test_mask")
OF_EDGES = ("edge_weight", "edge_attr", "edge_type")
Held = dict[str, Any]
Edges = Callable[[Held, str], tuple[np.ndarray, np.ndarray, Any]]


def are_graphs(data: Any) -> bool:
    """Whether an object holds one or several graphs of PyG in a list, with slices, or as a dataset."""
    if isinstance(data, list | tuple):
        return len(data) > 0 and (is_graph(data[0]) or (isinstance(data[0], list) and are_graphs(data[0])))
    return hasattr(data, "_indices") and hasattr(data, "get") and hasattr(data, "__getitem__")


def is_graph(data: Any) -> bool:
    """Whether an object is one graph of PyG, or a dict of its tensors."""
    if isinstance(data, dict):
        return bool({"edge_index", "adj_t"} & set(data)) or is_typed(data)
    return hasattr(data, "to_dict") and (hasattr(data, "edge_index") or hasattr(data, "node_types"))


def held_of(data: Any, name: str) -> Held:
    """Attributes of one graph by name, except None. Raises DatasetError for TemporalData and one of several HeteroData.
    """
    if is_typed(data):
        raise DatasetError(f"{name} is several graphs with types of nodes, and hpcgnn trains on one; join them by "
                           "Batch.from_data_list(graphs)")
    if all(hasattr(data, key) for key in ("src", "dst", "t")):
        raise DatasetError(f"{name} is a list of events with times (TemporalData), and hpcgnn trains on one graph; "
                           "pass Data(edge_index=torch.stack([data.src, data.dst])) of a span of time")
    held = dict(data) if isinstance(data, dict) else data.to_dict()
    return {key: value for key, value in held.items() if value is not None}


def graphs_in(data: Any, name: str) -> list[Held]:
    """Return the graphs of a list, of (tensors, slices) or of a dataset."""
    has_slices = isinstance(data, tuple) and len(data) in (2, 3) and (data[1] is None or (
        isinstance(data[1], dict) and np.ndim(data[1].get("edge_index", data[1].get("adj_t"))) == 1))
    if has_slices:
        held = held_of(data[0], name)
        return [held] if data[1] is None else _sliced(held, data[1], name)
    items = data if isinstance(data, list | tuple) else [data[place] for place in range(len(data))]
    odd = next((place for place, item in enumerate(items) if not is_graph(item)), None)
    if odd is not None:
        raise DatasetError(f"{name} has a {type(items[odd]).__name__} at place {odd} of a list of graphs; expected PyG "
                           "Data, or their dicts, throughout; labels of one graph are passed as labels=")
    graphs = [held_of(item, name) for item in items]
    for item, held in zip(items, graphs, strict=True):
        if "num_nodes" not in held and not isinstance(item, dict):
            held["num_nodes"] = item.num_nodes
    return graphs


def _sliced(held: Held, slices: dict[str, Any], name: str) -> list[Held]:
    starts = {key: as_numbers(where, f"{name}: the slices of {key!r}") for key, where in slices.items() if key in held}
    counts = {len(where) - 1 for where in starts.values() if where.ndim == 1}
    if len(counts) != 1 or any(where.ndim != 1 for where in starts.values()):
        raise DatasetError(f"{name} is a file of several graphs, and its slices don't say where each begins; {WAY_OUT}")
    num_graphs = counts.pop()
    if num_graphs == 1:
        held = {key: value[0] if key in starts and isinstance(value, list) else value for key, value in held.items()}
        return [{key: value for key, value in held.items() if key != "_num_nodes"}]
    graphs: list[Held] = [{} for _ in range(num_graphs)]
    for key, where in starts.items():
        for place, graph in enumerate(graphs):
            part = slice(int(where[place]), int(where[place + 1]))
            if isinstance(held[key], list):
                graph[key] = held[key][place]
            else:
                graph[key] = held[key][..., part] if "index" in key or "face" in key else held[key][part]
    counted = held.get("_num_nodes", held.get("num_nodes"))
    if np.ndim(counted) == 1 and len(counted) == num_graphs:
        for graph, num_nodes in zip(graphs, counted, strict=True):
            graph["num_nodes"] = int(num_nodes)
    return graphs


def joined(graphs: list[Held], edges_of: Edges, named: tuple[str, ...], name: str,
           of_edges: tuple[str, ...] = ()) -> tuple[Held, tuple[str, ...], tuple[str, ...]]:
    """Join several graphs into one; return its columns under the keys of a PyG Data, the keys not read, and remarks.

    Parameters
    ----------
    edges_of : callable(held, name) -> (source, target, weight or None)
    named, of_edges : tuple of str     attributes of nodes and of edges that are read besides the usual ones
    """
    if not graphs:
        raise DatasetError(f"{name} is a list of no graph; expected at least one")
    if len(graphs) == 1:
        return graphs[0], (), ()
    if all("edge_label_index" in held for held in graphs):
        raise DatasetError(f"{name} is {len(graphs)} views of one graph with held-out links, as RandomLinkSplit makes "
                           "them; pass the graph itself and hold_out=(0.05, 0.1), or val_links= and test_links=")
    edges = [edges_of(held, name) for held in graphs]
    num_nodes = [_num_nodes(held, place, name) for place, held in enumerate(graphs)]
    first = np.concatenate([[0], np.cumsum(num_nodes)])
    for place, (source, target, _) in enumerate(edges):
        highest = max(int(source.max(initial=-1)), int(target.max(initial=-1)))
        if highest >= num_nodes[place]:
            raise DatasetError(f"{name} has an edge to node {highest} in graph {place}, which has {num_nodes[place]} "
                               "nodes")
    found: Held = {"num_nodes": int(first[-1]), "edge_index": np.concatenate([
        np.stack([source, target]).astype(np.int64) + offset
        for (source, target, _), offset in zip(edges, first, strict=False)], axis=1)}
    if all(weight is not None for _, _, weight in edges):
        found["edge_weight"] = np.concatenate([weight for _, _, weight in edges])
    of_edges = (*OF_EDGES, *of_edges)
    read = {"adj_t", "adj"}
    for key in dict.fromkeys((*OF_NODES, *of_edges, *named)):
        lacking = [place for place, held in enumerate(graphs) if key not in held]
        if len(lacking) == len(graphs) or key in found:
            continue
        if lacking:
            raise DatasetError(f"{name} has graphs with {key!r}, and graph {lacking[0]} has none; give it to all or to "
                               "none")
        counted = ("edges", [len(source) for source, _, _ in edges]) if key in of_edges else ("nodes", num_nodes)
        found[key] = _column(key, [held[key] for held in graphs], *counted, name)
    for key in graphs[0]:
        if (split := split_of_list(key)) and not mask_columns(graphs[0]) and all(key in held for held in graphs):
            found[f"{split}_mask"] = np.concatenate([
                _rows_marked(held[key], count, f"{name}: {key} of graph {place}")
                for place, (held, count) in enumerate(zip(graphs, num_nodes, strict=True))])
            read.add(key)
    if (names := graphs[0].get("relation_names")) is not None:
        if any(list(held.get("relation_names", ())) != list(names) for held in graphs):
            raise DatasetError(f"{name} has graphs with different relation_names; expected the same in all")
        found["relation_names"] = names
    unread = tuple(str(key) for key in dict.fromkeys(chain(*graphs)) if key not in found and key not in read)
    return found, unread, (f"{len(graphs):,} graphs were joined into one; no edge connects two of them",)


def _rows_marked(rows: Any, num_nodes: int, what: str) -> np.ndarray:
    if is_mask(rows, num_nodes, what):
        return as_mask(rows, what)
    members = as_numbers(rows, what)
    if members.ndim != 1 or members.dtype.kind not in "iu" or (len(members) and (
            members.min() < 0 or members.max() >= num_nodes)):
        raise DatasetError(f"{what} lists no rows of its {num_nodes} nodes; expected numbers from 0 to {num_nodes - 1}")
    return np.isin(np.arange(num_nodes), members)


def _num_nodes(held: Held, place: int, name: str) -> int:
    if np.ndim(held.get("num_nodes")) == 0 and held.get("num_nodes") is not None:
        return count_of(held["num_nodes"], name)
    for key in ("x", "pos", "train_mask", "adj_t", "adj"):
        if key in held:
            return int(held[key].size(0) if hasattr(held[key], "size") and callable(held[key].size)
                       else len(held[key]))
    raise DatasetError(f"{name} doesn't say how many nodes graph {place} has, neither by x nor by num_nodes; {WAY_OUT}")


def _column(key: str, values: list[Any], kind: str, expected: list[int], name: str) -> Any:
    what = f"{name}: the values of {key!r}"
    parts = [as_features(value, what) if key == "x" else as_numbers(value, what) for value in values]
    rows = [part.shape[0] for part in parts]
    if rows != expected:
        place = next(number for number, pair in enumerate(zip(rows, expected, strict=True)) if pair[0] != pair[1])
        of_graphs = ": labels are of whole graphs, and hpcgnn trains on nodes" * (set(rows) == {1} and key == "y")
        raise DatasetError(f"{name} has {rows[place]} values of {key!r} for {expected[place]} {kind} of graph "
                           f"{place}{of_graphs}; expected one for each of the {kind}")
    if len({part.shape[1:] for part in parts}) > 1:
        raise DatasetError(f"{name} has graphs with {key!r} of different widths; expected equally many columns in each")
    return scipy.sparse.vstack(parts).tocsr() if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)


def refuse_collated(held: Held, source: np.ndarray, target: np.ndarray, name: str) -> None:
    """Raise DatasetError for concatenated tensors of several graphs without their slices, such as `dataset._data`.

    Their edges number the nodes within each graph, so they lead only to the first rows of x.
    """
    counted = held.get("_num_nodes")
    is_several = "batch" not in held and np.ndim(counted) == 1 and len(counted) > 1
    if not is_several and "x" in held and not {"batch", "num_nodes"} & set(held) and len(source):
        num_rows = held["x"].shape[0] if hasattr(held["x"], "shape") else len(held["x"])
        reached = max(int(source.max()), int(target.max())) + 1
        if 0 < reached <= num_rows * 2 // 3 and min(source.min(), target.min()) >= 0:
            occurs = np.zeros(reached, bool)
            occurs[source] = occurs[target] = True
            is_sorted = (source[1:] >= source[:-1]).all() or (target[1:] >= target[:-1]).all()
            is_several = not is_sorted and bool(occurs.mean() > 0.9)
    if is_several:
        raise DatasetError(f"{name} looks like the tensors of several graphs without their slices (dataset._data): its "
                           "edges lead to the first nodes only, counted in each graph anew; "
                           f"{WAY_OUT}, or set data.num_nodes if it is one graph")


SETTINGS = ("label", "features", "weight", "relation", "edge_features", "time", "id", "split", "ignore")
DEFAULT_ROOT = Path("dataset")
PUBLIC_NAME = re.compile(r"(?P<kind>[A-Z]\w+)(?:/(?P<name>[\w-]+))?")
FILE_WAY_OUT = ("in Python, save its tensors by torch.save(data.to_dict(), FILE), or pass the object itself to "
           "hpcgnn.preprocess(data, ...)")


def load_pyg(rest: str, options: SourceOptions) -> GraphDataset:
    """Load "FILE[,label=KEY][,features=KEY][,weight=KEY][,relation=KEY][,edge_features=KEY][,time=KEY]
    [,id=KEY][,split=KEY or number][,ignore=...]", torch.save of Data.to_dict(); the dataset is named after the file.

    If there is no such file, "CLASS/NAME" or "CLASS" is a dataset of torch_geometric.datasets, which its class
    downloads to options.root if it is missing.
    """
    file, settings = split_path(rest, SETTINGS, "a pyg: source")
    path = Path(file)
    choices = Choices.of(settings, features=False if options.feature_kind == "structural" else choice_of(
        settings.get("features")))
    if (public := PUBLIC_NAME.fullmatch(file)) and not path.exists():
        dataset = _public_dataset(public["kind"], public["name"], Path(options.root or DEFAULT_ROOT))
        return finish_dataset(graph_of_data(dataset, choices, (public["name"] or public["kind"]).lower()), options)
    with reading(path, "a file of torch.save",
                 "can't be read as a file of torch.save ({}); it is damaged or of another format"):
        import torch

        try:
            with _known_classes(torch):
                held = torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError:
            raise DatasetError(f"{path} is a pickle of objects, or damaged; hpcgnn loads no pickles, since they can "
                               f"run code; {FILE_WAY_OUT}") from None
    # PyG's datasets save the tensors and the begin of each graph.
    if not (is_graph(held) or (isinstance(held, list | tuple) and are_graphs(held))):
        raise DatasetError(f"{path} holds a {type(held).__name__} without edge_index; {FILE_WAY_OUT}")
    return finish_dataset(graph_of_data(held, choices, path.stem), options)


def _public_dataset(kind: str, name: str | None, root: Path) -> Any:
    # Classes take the folder of their files and, if they have several datasets, the name of one.
    source = f"pyg:{kind}/{name}" if name else f"pyg:{kind}"
    try:
        from torch_geometric import datasets
    except ImportError:
        raise DatasetError(f"{source} names no file, and datasets of PyTorch Geometric need its package; "
                           "pip install torch-geometric, or name a file of torch.save") from None
    if not isinstance(found := getattr(datasets, kind, None), type):
        raise DatasetError(f"{source} names neither a file nor a class of torch_geometric.datasets; expected "
                           "pyg:FILE, or pyg:CLASS/NAME such as pyg:Planetoid/Cora")
    taken = inspect.signature(found).parameters
    if ("name" in taken) != (name is not None):
        expected = f"{kind}/NAME, the name of one of its datasets" if "name" in taken else kind
        raise DatasetError(f"{source} is not how torch_geometric.datasets.{kind} is named; expected pyg:{expected}")
    try:
        return found(**{key: value for key, value in (("root", str(root / kind)), ("name", name)) if key in taken})
    except Exception as error:      # any error of the network, the disk or the class's own checks
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{source} can't be made by torch_geometric.datasets.{kind} ({reason}); without a network, "
                           f"copy {root / kind} from a machine where this command has run") from None


class _Class:
    """Placeholder for PyG's Data and HeteroData, to which its saved datasets refer; so they load without importing PyG.
    """


def _known_classes(torch: Any) -> AbstractContextManager:
    # Allow files that refer to the class of their graphs; torch before 2.5 refuses such files.
    known = getattr(torch.serialization, "safe_globals", None)
    return nullcontext() if known is None else known([
        (_Class, f"torch_geometric.data.{name}") for name in ("data.Data", "hetero_data.HeteroData")])
