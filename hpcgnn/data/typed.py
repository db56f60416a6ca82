"""Graphs with several types of nodes: PyG's HeteroData or a dict of its form, a dict of tables, DGL's typed graphs, and
npz archives.

hpcgnn numbers all nodes in one range, type after type. Each kind of edge (type of the source, name, type of the target)
is a relation. Two papers and three authors become nodes 0, 1 and 2, 3, 4; an edge from author 2 to paper 0 becomes
4 -> 0. Each type has its own columns of features:

    papers, 2 columns     1 2 | 0 0 0
    authors, 3 columns    0 0 | 5 6 7

So the first linear layer of a model has weights of its own for each type. A type without features has one column of
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse

from hpcgnn.data.arcs import INT32_NODES
from hpcgnn.data.arrays import Archive
from hpcgnn.data.assemble import Masks
from hpcgnn.data.columns import Ids, Words, as_features, as_ids, as_labels, as_numbers, texts_of
from hpcgnn.data.dataset import NO_WEIGHTS, Origins
from hpcgnn.data.features import Features
from hpcgnn.data.given import GivenGraph, read_splits
from hpcgnn.data.hold_out import as_times
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.tables import (
    FEATURE_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    PYG_FEATURES,
    PYG_LABELS,
    SPLIT_NAMES,
    WEIGHT_NAMES,
    Choices,
    Table,
    columns_of,
    ends_of,
    first_of,
    index_columns,
    is_table,
    mask_columns,
    named_splits,
    pick,
    row_lists,
    split_of_list,
)
from hpcgnn.errors import DatasetError

DGL_ATTRIBUTES = ("edge_attr", "e_feat", "feat")      # of edges; case is ignored
MAX_SHOWN = 8
TYPE_END = pa.scalar(":", pa.large_string())      # between the type and the number in a node's name
Held = dict[str, Any]
Ends = tuple[Any, Any, Any]      # sources, targets, weights or None
Column = tuple[str, str]         # a type of node, and the name of one of its columns


class Nodes(NamedTuple):
    """The nodes of one type: their number, columns by name, and ids by which edges of tables name them, or None."""

    count: int
    held: Held
    ids: Ids | None = None


class Kind(NamedTuple):
    """A kind of edge: sources and targets, each counted within its type; weights or None; and columns by name."""

    source_type: str
    name: str
    target_type: str
    ends: Ends
    held: Held

    def __str__(self) -> str:
        return f"{self.source_type}__{self.name}__{self.target_type}"


class Usual(NamedTuple):
    """Names that columns have if a user names none."""

    features: tuple[str, ...] = PYG_FEATURES
    labels: tuple[str, ...] = PYG_LABELS
    splits: tuple[str, ...] = ()
    weights: tuple[str, ...] = ("edge_weight",)
    attributes: tuple[str, ...] = ("edge_attr",)


class Typed(NamedTuple):
    """A graph with types, before it becomes one range of nodes.

    types : dict of Nodes by type, in the order of their numbers
    kinds : list of Kind, in the order of the relations
    unused : tuple of str      what belongs to neither
    """

    name: str
    types: dict[str, Nodes]
    kinds: list[Kind]
    usual: Usual
    unused: tuple[str, ...] = ()


def is_typed(data: Any) -> bool:
    """Whether an object is a HeteroData of PyG, or a dict of its form or of tables: some key is a kind of edge, a tuple
    of texts.
    """
    if isinstance(data, dict):
        return any(isinstance(key, tuple) and len(key) in (2, 3) and all(isinstance(part, str) for part in key)
                   and (isinstance(value, dict) or is_table(value)) for key, value in data.items())
    return hasattr(data, "to_dict") and hasattr(data, "node_types") and hasattr(data, "edge_types")


def graph_of_hetero(data: Any, choices: Choices, name: str, ends_of: Callable[[Held, str], Ends]) -> GivenGraph:
    """Return the graph of a HeteroData, or of a dict of its form or of tables; see `is_typed`.

    x, y and masks of a type are read if present; edge_index or adj_t, edge_weight and edge_attr of a kind of edge. The
    columns of tables are found as by `graph_of_tables`; edges name nodes by their ids.

    Parameters
    ----------
    ends_of : callable(held, name) -> (sources, targets, weights or None)      reads edge_index or adj_t of a kind
    """
    stores = data if isinstance(data, dict) else data.to_dict()
    if any(is_table(store) and not isinstance(store, dict) for store in stores.values()):
        return graph_of_typed_tables(stores, choices, name)
    types, kinds, unused = {}, [], ()
    for key, store in stores.items():
        if not isinstance(store, dict):
            unused += (str(key),)
        elif isinstance(key, tuple):
            held = _known(store)
            kinds.append(Kind(*_kind(key), ends_of(held, f"{name}: the edges {'__'.join(key)}"), held))
        elif key == "_global_store":
            unused += tuple(map(str, store))
        else:
            types[str(key)] = Nodes(_num_nodes(_known(store), str(key), name), _known(store))
    # As in one Data, an attribute that is a single number is a weight unless it is asked for by name.
    may_be_weights = choices.edge_attr is None and not choices.edge_weight and all(
        "edge_weight" not in kind.held and tuple(np.shape(kind.held.get("edge_attr", ())))[1:] in ((), (1,))
        for kind in kinds)
    usual = Usual(weights=("edge_attr",), attributes=()) if may_be_weights else Usual()
    return given_of(Typed(name, types, kinds, usual, unused), choices)


def _kind(key: tuple[str, ...]) -> tuple[str, str, str]:
    return (key[0], "to" if len(key) == 2 else key[1], key[-1])


def _known(store: Held) -> Held:
    return {key: value for key, value in store.items() if value is not None}


def _num_nodes(held: Held, type_of: str, name: str) -> int:
    if "num_nodes" in held:
        return count_of(held["num_nodes"], name)
    for key, values in held.items():
        if split_of_list(key) is None and (isinstance(values, list) or len(getattr(values, "shape", ()))):
            return _num_rows(values)
    raise DatasetError(f"{name} doesn't say how many nodes of type {type_of!r} it has; set data[{type_of!r}].num_nodes")


def count_of(num_nodes: Any, name: str) -> int:
    """The number of nodes that a graph states, a whole number in any form."""
    with suppress(TypeError, ValueError, OverflowError):
        if float(num_nodes) == int(num_nodes):
            return int(num_nodes)
    raise DatasetError(f"{name} has num_nodes {str(num_nodes)[:40]}; expected one whole number")


def _num_rows(values: Any) -> int:
    return int(values.shape[0]) if hasattr(values, "shape") else len(values)


def graph_of_typed_dgl(graph: Any, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a DGL graph with several types of nodes or kinds of edges."""
    types = {str(known): Nodes(int(graph.num_nodes(known)), dict(graph.nodes[known].data)) for known in graph.ntypes}
    kinds = []
    for key in graph.canonical_etypes:
        source, target = graph.edges(etype=key)
        kinds.append(Kind(*key, (source, target, None), dict(graph.edges[key].data)))
    usual = Usual(FEATURE_NAMES, LABEL_NAMES, SPLIT_NAMES, WEIGHT_NAMES, DGL_ATTRIBUTES)
    return given_of(Typed(name, types, kinds, usual), choices)


def graph_of_typed_tables(tables: dict[Any, Any], choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a dict of tables: nodes by type, and edges by kind, (type, name, type)."""
    of_nodes = {str(key): columns_of(table, f"{name}: the nodes {key}") for key, table in tables.items()
                if not isinstance(key, tuple)}
    if isinstance(choices.node_ids, str) and not any(choices.node_ids in columns for columns in of_nodes.values()):
        raise DatasetError(f"{name} has no table of nodes with {choices.node_ids!r} to take ids from")
    types = {known: _nodes_in(columns, known, choices, name) for known, columns in of_nodes.items()}
    rows = {known: NodeRows(nodes.ids, f"{name} ({known})") for known, nodes in types.items()}
    kinds, dubious = [], ()
    for key, table in tables.items():
        if isinstance(key, tuple):
            kind = _kind(key)
            what = f"{name}: the edges {'__'.join(kind)}"
            columns, ends = columns_of(table, what), []
            found, is_guess = ends_of(columns, Choices(), what, "call it {}")
            dubious += (f"{'__'.join(kind)}: edges lead from column {found[0][1]} to column {found[1][1]}, as no name "
                        "tells more; call them source and target",) * (is_guess and kind[0] == kind[2])
            for place, (values, column) in enumerate(found):
                known = rows.get(kind[2 * place])      # an unknown type is refused later, with the others' names
                ends.append((column, values if known is None else known.find(values, f"an edge {'__'.join(kind)}")))
            held = {column: values for column, values in columns.items() if column not in dict(ends)}
            kinds.append(Kind(*kind, (ends[0][1], ends[1][1], None), held))
    usual = Usual(("features",), LABEL_NAMES, SPLIT_NAMES, WEIGHT_NAMES)
    given = given_of(Typed(name, types, kinds, usual), choices)
    return replace(given, origins=replace(given.origins, dubious=given.origins.dubious + dubious))


def _nodes_in(columns: Table, known: str, choices: Choices, name: str) -> Nodes:
    # Ids, labels and splits have usual names or chosen ones; all other columns are features.
    choice = choices.node_ids if isinstance(choices.node_ids, str) and choices.node_ids in columns else None
    ids, of_ids = pick(columns, choice, ID_NAMES, "nodes")
    if of_ids is None:
        raise DatasetError(f"{name} has a table of {known} without ids in any of {', '.join(ID_NAMES)}; name their "
                           "column by node_ids=COLUMN")
    no_features = choices.ignored([f"{known}.{column}" for column in columns])[0] | {
        choice for choice in (choices.labels, choices.splits) if isinstance(choice, str)}
    no_features.update(LABEL_NAMES, SPLIT_NAMES, *mask_columns(columns, of_rows=True).values(), index_columns(columns))
    held, features = {}, []
    for column, values in columns.items():
        if column != of_ids and {column, column.lower(), f"{known}.{column}"} & no_features:
            held[column] = values
        elif column != of_ids:
            try:
                features.append(as_features(values, f"{name}: the values of column {column!r} of {known}"))
            except DatasetError as reason:
                raise DatasetError(f"{reason}; ignore={known}.{column} leaves the column out") from None
    if features:
        held["features"] = np.column_stack(features).astype(np.float32)
    return Nodes(len(ids), held, as_ids(ids, f"{name}: the ids of {known}"))


# An archive, see docs/typed.md.

COUNT, EDGES, FEATURES, TARGET, LABELS = "num_", "edge_", "feat_", "target", "labels"
SPLITS = ("train", "val", "test")
CSR = ("indptr", "indices", "data", "columns")
OF_EDGES, LINKS = ("edge_weight", "edge_attr", "edge_time"), ("val_links", "test_links")


def is_typed_archive(archive: Archive) -> bool:
    """Whether an archive has kinds of edges, in arrays edge_A__B."""
    return "indptr" not in archive and bool(_kinds_in(archive))


def _kinds_in(archive: Archive) -> dict[str, tuple[str, str, str]]:
    # By what follows edge_ in the array's name; arrays of their weights and attributes begin with edge_, too.
    ends = [key.removeprefix(EDGES) for key in archive.names if key.startswith(EDGES)]
    of_edges = {f"{what}_{end}".removeprefix(EDGES) for what in OF_EDGES for end in ends}
    return {end: _kind(tuple(end.split("__"))) for end in ends
            if len(end.split("__")) in (2, 3) and end not in of_edges}


def _pairs_in(archive: Archive, key: str) -> np.ndarray:
    found = archive.read(key)
    if found.ndim != 2 or len(found) != 2 or found.dtype.kind not in "iu":
        raise DatasetError(f"{archive.path}: {key} is {found.dtype} of shape {found.shape}; expected integers of shape "
                           "(2, number of edges)")
    return found


def _links_in(archive: Archive, typed: Typed, key: str, has_relations: bool) -> tuple[Any, ...] | None:
    # Held-out links of all kinds, in arrays such as val_links_A__B, by numbers of the one range.
    kinds = [Kind(*kind[:3], (*_pairs_in(archive, name), None), {})
             for kind, name in zip(typed.kinds, (f"{key}_{end}" for end in _kinds_in(archive)), strict=True)
             if name in archive]
    if not kinds:
        return None
    count = np.array([nodes.count for nodes in typed.types.values()], np.int64)
    start = dict(zip(typed.types, (np.cumsum(count) - count).tolist(), strict=True))
    source, target = _ends(typed._replace(name=f"{typed.name}: {key}", kinds=kinds), start, int(count.sum()))
    relation = np.repeat([str(kind) for kind in kinds], [_num_edges(kind) for kind in kinds])
    return (source, relation, target) if has_relations else (source, target)


def graph_of_archive(archive: Archive, choices: Choices, name: str, is_featured: bool) -> GivenGraph:
    """Return the graph of an archive with arrays num_TYPE, edge_A__B, feat_TYPE, target, labels and train_K, and with
    edge_weight_A__B, edge_attr_A__B, edge_time_A__B, val_links_A__B and test_links_A__B.

    Parameters
    ----------
    is_featured : bool      whether to read features
    """
    types = {}
    for key in archive.names:
        if key.startswith(COUNT) and key not in ("num_classes", "num_features"):
            known, count = key.removeprefix(COUNT), archive.integer(key)
            features = _features_in(archive, f"{FEATURES}{known}", count) if is_featured else None
            types[known] = Nodes(count, {} if features is None else {"features": features})
    kinds, used = [], {f"{FEATURES}{known}{end}" for known in types for end in ("", *(f"_{part}" for part in CSR))}
    for end, kind in _kinds_in(archive).items():
        held = {what: archive.read(f"{what}_{end}") for what in OF_EDGES if f"{what}_{end}" in archive}
        kinds.append(Kind(*kind, (*_pairs_in(archive, f"{EDGES}{end}"), None), held))
        used.update(f"{what}_{end}" for what in ("edge", *OF_EDGES, *LINKS))
    used |= {f"{COUNT}{known}" for known in types} | {TARGET}
    if LABELS in archive:
        target = str(archive.read(TARGET)) if TARGET in archive else ""
        if target not in types:
            raise DatasetError(f"{archive.path} has labels of {target or 'no type'!r}; expected an array 'target' with "
                               f"one of the types {', '.join(types)}")
        listed = {*chain(*mask_columns(archive.names).values()), *filter(split_of_list, archive.names)}
        masks = _masks_in(archive, types[target].count, choices) or {key: archive.read(key) for key in sorted(listed)}
        types[target].held.update(labels=archive.read(LABELS), **masks)
        used |= {LABELS, *masks, *(f"{split}_{number}" for split in SPLITS for number in _numbers_of_splits(archive))}
    unused = tuple(key for key in archive.names if key not in used)
    typed = Typed(name, types, kinds, Usual(("features",), (LABELS,)), unused)
    given = given_of(typed, choices)
    val_links, test_links = (_links_in(archive, typed, key, bool(given.relation_names)) for key in LINKS)
    return replace(given, val_links=val_links, test_links=test_links)


def _features_in(archive: Archive, key: str, count: int) -> Any:
    if key in archive:
        return archive.read(key)
    columns = f"{key}_{CSR[-1]}"
    return archive.sparse(key, (count, archive.integer(columns))) if columns in archive else None


def _numbers_of_splits(archive: Archive) -> list[int]:
    return sorted(int(key.removeprefix("train_")) for key in archive.names
                  if key.startswith("train_") and key.removeprefix("train_").isdecimal())


def _masks_in(archive: Archive, count: int, choices: Choices) -> dict[str, np.ndarray]:
    # Masks of the chosen split K, whose nodes are listed in train_K, val_K and test_K.
    numbers = _numbers_of_splits(archive)
    if not numbers or choices.splits is False:
        return {}
    chosen = choices.split_column if len(numbers) > 1 or choices.split_column is not None else numbers[0]
    if chosen not in numbers:
        raise DatasetError(f"{archive.path} has splits {', '.join(map(str, numbers))}, and "
                           f"{'none is chosen' if chosen is None else f'{chosen} is none of them'}; choose one as in "
                           f"split={numbers[0]}")
    masks = {}
    for split in SPLITS:
        mask = masks[f"{split}_mask"] = np.zeros(count, bool)
        listed = archive.integers(f"{split}_{chosen}")
        if len(listed) and not 0 <= listed.min() <= listed.max() < count:
            raise DatasetError(f"{archive.path}: {split}_{chosen} lists node {listed.max()}; expected 0 to {count - 1}")
        mask[listed] = True
    return masks


# From types to one range of nodes.


def given_of(typed: Typed, choices: Choices) -> GivenGraph:
    """Number the nodes type after type, and bring edges, features, labels and splits into the form of one graph."""
    name, types, kinds = typed.name, typed.types, typed.kinds
    _check(typed, choices)
    count = np.array([nodes.count for nodes in types.values()], np.int64)
    start = dict(zip(types, (np.cumsum(count) - count).tolist(), strict=True))
    num_nodes = int(count.sum())
    source, target = _ends(typed, start, num_nodes)
    weight, of_weights = _weights(typed, choices.edge_weight)
    edge_attr, of_attributes, relation_columns = _attributes(typed, choices.edge_attr)
    time, is_timed = _times(typed, choices.edge_time)
    features, of_features, shown, columns = _features(typed, choices.features)
    labeled = _labels_of(typed, choices.labels)
    labels, splits, used, of_splits = None, None, [*of_features], ()
    if labeled is not None:
        known, key = labeled
        rows = slice(start[known], start[known] + types[known].count)
        labels = _labels_among(_column(typed, known, key), rows, num_nodes, f"{name}: the labels {key!r} of {known}")
        masks, of_splits = _masks(typed, known, choices)
        splits = None if masks is None else tuple(_mask_among(mask, rows, num_nodes) for mask in masks)
        used += [labeled, *((known, column) for column in of_splits)]
    rest = [".".join(column) for column in _columns(types) if column not in used]
    left_out, ignored = choices.ignored(rest)
    of_edges = [f"{kind}.{key}" for kind in kinds for key in kind.held
                if key not in (*of_weights, *of_attributes, choices.edge_time, "edge_index", "adj_t")]
    split = "" if choices.split_column is None else f", split {choices.split_column}"
    lacking = [column for known in types if features is not None and known not in dict(of_features) for column in (
        *rest, *typed.unused) if column == f"x_{known}" or column.startswith(f"{known}.")]
    origins = Origins(
        dubious=(f"types of nodes without features have ones, and {', '.join(lacking[:MAX_SHOWN])} may hold some; call "
                 "features x, or feat_TYPE in an archive",) * bool(lacking),
        weights=NO_WEIGHTS if choices.edge_weight is False else ", ".join(of_weights),
        features=choices.said("features", shown),
        edge_attr=", ".join(of_attributes),
        labels="" if labeled is None else f"{labeled[1]} of {labeled[0]}",
        splits=choices.said("splits", "" if labeled is None else f"{', '.join(of_splits)} of {labeled[0]}{split}"),
        unused=(*rest, *of_edges, *typed.unused), others=tuple(column for column in rest if column not in left_out))
    has_relations = len(kinds) > 1 and choices.relation is not False
    relation = np.repeat(np.arange(len(kinds), dtype=np.int32), list(map(_num_edges, kinds)))
    return GivenGraph(
        name, source, target, weight, row_name=_names(typed, choices.node_ids), num_nodes=num_nodes,
        features=features, labels=labels, splits=splits, ignore=ignored, edge_attr=edge_attr, time=time,
        is_timed=is_timed, relation=relation if has_relations else None,
        relation_names=tuple(map(str, kinds)) if has_relations else (),
        node_types=tuple((known, nodes.count) for known, nodes in types.items()), type_columns=columns,
        relation_columns=relation_columns if has_relations else (), origins=origins,
        labels_hint="labels=TYPE or labels=TYPE.COLUMN (label= in a command)")


def _columns(types: dict[str, Nodes]) -> list[Column]:
    return [(known, key) for known, nodes in types.items() for key in nodes.held if key != "num_nodes"]


def _check(typed: Typed, choices: Choices) -> None:
    name, types = typed.name, typed.types
    if choices.relation:
        raise DatasetError(f"{name} has kinds of edges, which are its relations; leave out relation=, or pass "
                           "relation=False to drop them")
    for what in ("features", "labels", "splits", "node_ids", "edge_weight", "edge_attr", "edge_time"):
        choice = getattr(choices, what)
        if not (choice is None or isinstance(choice, str | int)):
            raise DatasetError(f"{name} has types of nodes, and {what}= is a {type(choice).__name__}; put it into the "
                               f"graph as a column of a type or of a kind of edge, and pass its name as {what}=")
    names = [str(kind) for kind in typed.kinds]
    twice = next((kind for kind in names if names.count(kind) > 1), None)
    if twice is not None:
        raise DatasetError(f"{name} has two kinds of edges that would both be called {twice}; rename one")
    for kind in typed.kinds:
        unknown = next((known for known in (kind.source_type, kind.target_type) if known not in types), None)
        if unknown is not None:
            raise DatasetError(f"{name} has edges {kind} and no nodes of type {unknown!r}; its types are "
                               f"{', '.join(types) or 'none'}, and a type without columns needs its number of nodes")


def _ends(typed: Typed, start: dict[str, int], num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    dtype = np.int32 if num_nodes < INT32_NODES else np.int64
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([np.empty(0, dtype)], [np.empty(0, dtype)])
    for kind in typed.kinds:
        for part, given, known in zip(parts, kind.ends, (kind.source_type, kind.target_type), strict=False):
            ends, count = as_ids(given, f"{typed.name}: the ends of edges {kind}"), typed.types[known].count
            if isinstance(ends, pa.Array):
                raise DatasetError(f"{typed.name} has edges {kind} between texts such as {ends[0].as_py()!r}; expected "
                                   "numbers of nodes, counted from 0 within their type")
            if len(ends) and not 0 <= ends.min() <= ends.max() < count:
                raise DatasetError(f"{typed.name} has an edge {kind} with {known} "
                                   f"{ends.min() if ends.min() < 0 else ends.max()}, which does not exist; it has "
                                   f"{count} nodes of this type, counted from 0")
            part.append((ends + start[known]).astype(dtype))
        if len(parts[0][-1]) != len(parts[1][-1]):
            raise DatasetError(f"{typed.name} has {len(parts[0][-1])} sources and {len(parts[1][-1])} targets of edges "
                               f"{kind}; expected as many of both")
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def _num_edges(kind: Kind) -> int:
    return len(kind.ends[0])


def _weights(typed: Typed, choice: Any) -> tuple[np.ndarray | None, tuple[str, ...]]:
    # The weights of all edges, 1 where a kind has none, and the names of their columns.
    kinds, names = typed.kinds, (choice,) if isinstance(choice, str) else typed.usual.weights
    keys = [first_of(names, kind.held) for kind in kinds]
    if choice and not any(keys):
        raise DatasetError(f"{typed.name} has no kind of edge with {choice!r} to take weights from")
    held = [kind.held[key] if key else kind.ends[2] for kind, key in zip(kinds, keys, strict=True)]
    if choice is False or all(values is None for values in held):
        return None, ()
    parts = [np.ones(_num_edges(kind)) if values is None else _numbers_of(typed, kind, values, "weights")
             for kind, values in zip(kinds, held, strict=True)]
    if any(part.size != len(part) for part in parts):
        raise DatasetError(f"{typed.name} has weights of several columns; expected one number per edge")
    lacking = [str(kind) for kind, values in zip(kinds, held, strict=True) if values is None]
    return np.concatenate([part.reshape(-1) for part in parts]), (
        *dict.fromkeys(key for key in keys if key), *([f"1 of each edge {' and '.join(lacking)}"] if lacking else []))


def _attributes(typed: Typed, choice: Any) -> tuple[np.ndarray | None, tuple[str, ...], tuple[int, ...]]:
    # Attributes of all edges, 0 where a kind has none, their names, and the number of columns of each kind. Kinds share
    # columns if all attributes have one width, and there are no such numbers; else each kind has its own.
    names = (choice,) if isinstance(choice, str) else () if choice is False else typed.usual.attributes
    keys = [first_of(names, kind.held) for kind in typed.kinds]
    if isinstance(choice, str) and not any(keys):
        raise DatasetError(f"{typed.name} has no kind of edge with {choice!r} to take attributes from")
    parts = [_numbers_of(typed, kind, kind.held[key], f"values of {key!r}") if key else None
             for kind, key in zip(typed.kinds, keys, strict=True)]
    parts = [part if part is None else part.reshape(len(part), -1) for part in parts]
    widths = [0 if part is None else part.shape[1] for part in parts]
    if not any(widths):
        return None, (), ()
    is_shared = len(set(filter(None, widths))) == 1
    found = np.zeros((sum(map(_num_edges, typed.kinds)), max(widths) if is_shared else sum(widths)),
                     np.result_type(np.float32, *(part.dtype for part in parts if part is not None)))
    row = column = 0
    for kind, part, width in zip(typed.kinds, parts, widths, strict=True):
        if part is not None:
            found[row:row + len(part), column:column + width] = part
        row, column = row + _num_edges(kind), 0 if is_shared else column + width
    return found, tuple(dict.fromkeys(key for key in keys if key)), () if len(set(widths)) == 1 else tuple(widths)


def _times(typed: Typed, choice: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    # The times of the edges of those kinds that have any, and which edges these are.
    if choice is None or choice is False:
        return None, None
    timed = [kind for kind in typed.kinds if choice in kind.held]
    if not timed:
        raise DatasetError(f"{typed.name} has no kind of edge with {choice!r} to take times from")
    parts = [as_times(kind.held[choice], f"{typed.name}: the times of edges {kind}") for kind in timed]
    for kind, part in zip(timed, parts, strict=True):
        if part.shape != (_num_edges(kind),):
            raise DatasetError(f"{typed.name} has times of shape {part.shape} for {_num_edges(kind)} edges {kind}; "
                               "expected one each")
        if part.dtype.kind != parts[0].dtype.kind:
            raise DatasetError(f"{typed.name} has times of {timed[0]} as {parts[0].dtype} and of {kind} as "
                               f"{part.dtype}, which can't be compared exactly; give both in one type")
    return np.concatenate(parts), np.repeat([kind in timed for kind in typed.kinds], list(map(_num_edges, typed.kinds)))


def _numbers_of(typed: Typed, kind: Kind, values: Any, what: str) -> np.ndarray:
    found = as_numbers(values, f"{typed.name}: the {what} of edges {kind}")
    if len(found) != _num_edges(kind):
        raise DatasetError(f"{typed.name} has {len(found)} {what} for {_num_edges(kind)} edges {kind}; expected one "
                           "each")
    return found


def _column(typed: Typed, known: str, key: str) -> Any:
    values, count = typed.types[known].held[key], typed.types[known].count
    if _num_rows(values) != count:
        raise DatasetError(f"{typed.name} has {_num_rows(values)} rows of {key!r} for {count} nodes of type {known!r}; "
                           "expected one each")
    return values


def _features(typed: Typed, choice: Any) -> tuple[Features | None, list[Column], str, tuple[int, ...]]:
    # Features of all nodes, the columns that they were read from, a text about these, and the number of columns of each
    # type. Each type has its own columns: its features, or a column of ones. Without any features, None.
    name, types = typed.name, typed.types
    names = (choice,) if isinstance(choice, str) else () if choice is False else typed.usual.features
    keys = {known: first_of(names, nodes.held) for known, nodes in types.items()}
    if isinstance(choice, str) and not any(keys.values()):
        raise DatasetError(f"{name} has no type of node with {choice!r} to take features from")
    if not any(keys.values()):
        return None, [], "", ()
    blocks, said = [], []
    for known, key in keys.items():
        blocks.append(np.ones((types[known].count, 1), np.float32) if key is None else
                      as_features(_column(typed, known, key), f"{name}: the features {key!r} of {known}"))
        said.append(f"{known} ({blocks[-1].shape[1]:,})" if key else f"{known} (1, ones, as it has none)")
    used = [(known, key) for known, key in keys.items() if key]
    return _side_by_side(blocks), used, ", ".join(said), tuple(block.shape[1] for block in blocks)


def _side_by_side(blocks: list[Any]) -> Features:
    # Rows of all types, in columns of their own.
    if len(blocks) == 1:
        return blocks[0]
    num_columns, first, rows = sum(block.shape[1] for block in blocks), 0, []
    for block in blocks:
        own = scipy.sparse.csr_matrix(block, dtype=np.float32)
        index = own.indices.astype(np.int64 if num_columns >= INT32_NODES else np.int32) + first
        rows.append(scipy.sparse.csr_matrix((own.data, index, own.indptr), shape=(own.shape[0], num_columns)))
        first += own.shape[1]
    return scipy.sparse.vstack(rows, format="csr")


def _labels_of(typed: Typed, choice: Any) -> Column | None:
    # The type that has the labels, and their column.
    if choice is False:
        return None
    found = []
    for known, nodes in typed.types.items():
        usual = first_of(typed.usual.labels, nodes.held)
        if choice is None or choice == known:
            found += [(known, usual)] if usual else []
        else:
            found += [(known, key) for key in nodes.held if choice in (key, f"{known}.{key}")]
    if not found and choice is not None:
        columns = ", ".join(map(".".join, _columns(typed.types)))
        raise DatasetError(f"{typed.name} has no labels {choice!r}; expected a type of nodes that has "
                           f"{typed.usual.labels[0]}, or a column, one of {columns or 'none'}")
    if len(found) > 1:
        shown = [".".join(pair) for pair in found]
        raise DatasetError(f"{typed.name} has labels of {len(found)} types, {', '.join(shown)}, and a model learns "
                           f"those of one; choose by labels={shown[0]} (label={shown[0]} in a command)")
    return found[0] if found else None


def _masks(typed: Typed, known: str, choices: Choices) -> tuple[Masks | None, tuple[str, ...]]:
    # Masks of the nodes of one type, and the columns that they were read from.
    keys: tuple[str, ...]
    splits: Any
    held = typed.types[known].held
    if choices.splits is False:
        return None, ()
    if lists := row_lists(held, choices):
        keys, splits = tuple(lists), {split: held[key] for key, split in lists.items()}
    elif choices.finds_masks and (masks := named_splits(held)) is not None:
        keys = tuple(chain(*mask_columns(held).values()))
        splits = masks
    else:
        key = choices.splits
        if choices.finds_masks:
            key = first_of((*typed.usual.splits, "split_idx", *SPLIT_NAMES[:2]), held)
        if key is None:
            return None, ()
        if key not in held:
            raise DatasetError(f"{typed.name} has no {key!r} of {known}, the type with the labels; it has "
                               f"{', '.join(held)}")
        keys, splits = (key,), held[key]
    return read_splits(splits, typed.types[known].count, f"{typed.name} ({known})", None, choices.split_column), keys


def _mask_among(mask: np.ndarray, rows: slice, num_nodes: int) -> np.ndarray:
    found = np.zeros(num_nodes, bool)
    found[rows] = mask
    return found


def _labels_among(values: Any, rows: slice, num_nodes: int, what: str) -> np.ndarray:
    # Labels of all nodes: those of other types are unknown, NaN or None.
    own = as_labels(values, what)
    if isinstance(own, Words):
        code = np.full((num_nodes, *own.code.shape[1:]), -1, np.int32)
        code[rows] = own.code
        return np.array([*own.word, None], object)[code]
    found = np.full((num_nodes, *own.shape[1:]), np.nan, np.float32 if own.dtype.itemsize < 4 else np.float64)
    found[rows] = own
    return found


def _names(typed: Typed, choice: Any) -> pa.Array | None:
    # Names of all nodes: type:number, or type:id if the choice is a column of ids.
    if choice is False:
        return None
    if choice is not None and not any(choice in nodes.held or nodes.ids is not None for nodes in typed.types.values()):
        raise DatasetError(f"{typed.name} has no type of node with {choice!r} to take ids from")
    parts = []
    for known, nodes in typed.types.items():
        ids: Ids = np.arange(nodes.count) if nodes.ids is None else nodes.ids
        if choice in nodes.held:
            ids = as_ids(_column(typed, known, choice), f"{typed.name}: the ids {choice!r} of {known}")
        parts.append(pc.binary_join_element_wise(pa.scalar(known, pa.large_string()), texts_of(ids), TYPE_END))
    return pa.concat_arrays(parts)
