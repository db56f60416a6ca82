"""Several graphs of PyTorch Geometric as one: a list, a dataset, or the tensors and slices that datasets keep.

PyG's datasets concatenate the tensors of their graphs, and `slices` say where each begins; ends of edges still count
the nodes of their own graph. Two graphs of 3 and 2 nodes become one of 5: edge 0 -> 1 of the second one is 3 -> 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.datasets.columns import as_features, as_numbers
from hpcgnn.errors import DatasetError

WAY_OUT = "pass Batch.from_data_list(list(dataset))"
OF_NODES = ("x", "y", "train_mask", "val_mask", "test_mask")
OF_EDGES = ("edge_weight", "edge_attr")
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
        return bool({"edge_index", "adj_t"} & set(data))
    return hasattr(data, "to_dict") and (hasattr(data, "edge_index") or hasattr(data, "node_types"))


def held_of(data: Any, name: str) -> Held:
    """Return the attributes of one graph by name, without those that are None.

    Raises
    ------
    DatasetError       a graph of several types of nodes
    """
    if hasattr(data, "node_types") or "HeteroData" in type(data).__name__:
        raise DatasetError(f"{name} has nodes of several types (HeteroData), and hpcgnn trains on one; convert it by "
                           "data.to_homogeneous()")
    held = dict(data) if isinstance(data, dict) else data.to_dict()
    return {key: value for key, value in held.items() if value is not None}


def graphs_in(data: Any, name: str) -> list[Held]:
    """Return the graphs of a list, of (tensors, slices) or of a dataset.

    Raises
    ------
    DatasetError       slices that don't say where each graph begins, or items that are no graphs
    """
    if isinstance(data, tuple) and len(data) in (2, 3) and (data[1] is None or _are_slices(data[1])):
        held = held_of(data[0], name)
        return [held] if data[1] is None else _sliced(held, data[1], name)
    items = data if isinstance(data, list | tuple) else [data[place] for place in range(len(data))]
    odd = next((place for place, item in enumerate(items) if not is_graph(item)), None)
    if odd is not None:
        raise DatasetError(f"{name} has a {type(items[odd]).__name__} at place {odd} of a list of graphs; expected PyG "
                           "Data, or their dicts, throughout")
    graphs = [held_of(item, name) for item in items]
    for item, held in zip(items, graphs, strict=True):
        if "num_nodes" not in held and not isinstance(item, dict):
            held["num_nodes"] = item.num_nodes
    return graphs


def _are_slices(value: Any) -> bool:
    return isinstance(value, dict) and np.ndim(value.get("edge_index", value.get("adj_t"))) == 1


def _sliced(held: Held, slices: dict[str, Any], name: str) -> list[Held]:
    starts = {key: as_numbers(where, f"{name}: the slices of {key!r}") for key, where in slices.items() if key in held}
    counts = {len(where) - 1 for where in starts.values() if where.ndim == 1}
    if len(counts) != 1 or any(where.ndim != 1 for where in starts.values()):
        raise DatasetError(f"{name} is a file of several graphs whose slices don't say where each begins; {WAY_OUT}")
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


def joined(graphs: list[Held], edges_of: Edges, named: tuple[str, ...], name: str) -> tuple[Held, tuple[str, ...]]:
    """Return several graphs as one, by the keys of a PyG Data, and what to say of it.

    Parameters
    ----------
    edges_of : callable(held, name) -> (source, target, weight or None)
    named : tuple of str       attributes that are read beside the usual ones

    Raises
    ------
    DatasetError       no graph, one that doesn't say how many nodes it has, or attributes that only some have
    """
    if not graphs:
        raise DatasetError(f"{name} is a list of no graph; expected at least one")
    if len(graphs) == 1:
        return graphs[0], ()
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
    for key in dict.fromkeys((*OF_NODES, *OF_EDGES, *named)):
        lacking = [place for place, held in enumerate(graphs) if key not in held]
        if len(lacking) == len(graphs) or key in found:
            continue
        if lacking:
            raise DatasetError(f"{name} has graphs with {key!r}, and graph {lacking[0]} has none; give it to all or to "
                               "none")
        expected = [len(source) for source, _, _ in edges] if key in OF_EDGES else num_nodes
        found[key] = _column(key, [held[key] for held in graphs], expected, name)
    return found, (f"{len(graphs):,} graphs were joined to one, in which no edge leads from one to another",)


def _num_nodes(held: Held, place: int, name: str) -> int:
    if np.ndim(held.get("num_nodes")) == 0 and held.get("num_nodes") is not None:
        return int(held["num_nodes"])
    for key in ("x", "pos", "train_mask", "adj_t", "adj"):
        if key in held:
            return int(held[key].size(0) if hasattr(held[key], "size") and callable(held[key].size)
                       else len(held[key]))
    raise DatasetError(f"{name} doesn't say how many nodes graph {place} has, neither by x nor by num_nodes; {WAY_OUT}")


def _column(key: str, values: list[Any], expected: list[int], name: str) -> Any:
    what = f"{name}: the values of {key!r}"
    parts = [as_features(value, what) if key == "x" else as_numbers(value, what) for value in values]
    rows = [part.shape[0] for part in parts]
    if rows != expected:
        place = next(number for number, pair in enumerate(zip(rows, expected, strict=True)) if pair[0] != pair[1])
        kind = "edges" if key in OF_EDGES else "nodes"
        of_graphs = ": labels are of whole graphs, and hpcgnn trains on nodes" * (set(rows) == {1} and key == "y")
        raise DatasetError(f"{name} has {rows[place]} values of {key!r} for {expected[place]} {kind} of graph "
                           f"{place}{of_graphs}; expected one for each of the {kind}")
    if len({part.shape[1:] for part in parts}) > 1:
        raise DatasetError(f"{name} has graphs whose {key!r} differ in width; expected as many columns in each")
    return scipy.sparse.vstack(parts).tocsr() if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)


def refuse_collated(held: Held, source: np.ndarray, target: np.ndarray, name: str) -> None:
    """Raise DatasetError for the tensors of several graphs that have lost their slices, as `dataset._data` has.

    Their edges count the nodes of their own graph, so they lead to the first rows of x only, in no order of the whole.
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
