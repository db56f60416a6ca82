"""Tables of edges and nodes from any library, and a user's choices of where things are in an object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from hpcgnn.data.columns import as_features, as_mask, as_numbers, as_sparse, as_words
from hpcgnn.data.dataset import NO_WEIGHTS, Origins
from hpcgnn.data.given import WORDS, GivenGraph
from hpcgnn.data.labels import place_beside
from hpcgnn.data.options import NOTHING, choice_of
from hpcgnn.errors import DatasetError

ROWS = ("sources", "destinations")


@dataclass(frozen=True)
class Choices:
    """Where in an object things are, or the things themselves as arrays; `hpcgnn.preprocess` describes each option.

    `features`, `labels`, `splits`, `edge_weight`, `relation`, `edge_attr` and `node_ids` may be False, which leaves
    them out. With `ignore` False, every label except NaN is a class.
    """

    name: str | None = None
    features: Any = None
    labels: Any = None
    splits: Any = None
    edge_weight: Any = None
    relation: Any = None
    edge_attr: Any = None
    edge_time: Any = None
    node_ids: Any = None
    nodes: Any = None
    source: str | int | None = None
    target: str | int | None = None
    rows: str = "sources"
    ignore: Any = None

    def __post_init__(self) -> None:
        if self.rows not in ROWS:
            raise DatasetError(f"rows is {self.rows!r}; expected sources (A[u, v] is the edge u -> v) or destinations")

    @classmethod
    def of(cls, settings: dict[str, str], **more: Any) -> Choices:
        """Choices from the settings label=, weight=, relation=, edge_features=, time=, id=, split=, ignore= of a
        source.
        """
        ignore, split = settings.get("ignore"), settings.get("split")
        found = {name: choice_of(settings.get(key)) for name, key in (
            ("labels", "label"), ("edge_weight", "weight"), ("relation", "relation"), ("edge_attr", "edge_features"),
            ("edge_time", "time"), ("node_ids", "id"))}
        if found["edge_attr"] and ";" in found["edge_attr"]:
            found["edge_attr"] = found["edge_attr"].split(";")
        found["splits"] = int(split) if split is not None and split.isdecimal() else choice_of(split)
        found["ignore"] = choice_of(ignore) if ignore in (None, NOTHING) else ignore.split(";")
        return cls(**found | more)

    @property
    def split_column(self) -> int | None:
        """Number of the chosen split if masks hold several; None if none was chosen."""
        return self.splits if isinstance(self.splits, int) and not isinstance(self.splits, bool) else None

    def said(self, what: str, found: str) -> str:
        """Where splits or features were found, for Origins."""
        return NO_WEIGHTS if getattr(self, what) is False else found

    @property
    def finds_masks(self) -> bool:
        """Whether to look for masks under their usual names; a chosen number takes one split of several."""
        return self.splits is None or self.split_column is not None

    def ignored(self, held: Iterable[str]) -> tuple[set[str], tuple | None]:
        """The held columns and the labels to ignore; None for the labels if every label except NaN is a class."""
        if self.ignore is None:
            return set(), ()
        if self.ignore is False or self.ignore == "none":
            return set(), None
        listed = self.ignore if isinstance(self.ignore, list | tuple | set) else [self.ignore]
        columns = {item for item in listed if isinstance(item, str) and item in set(held)}
        return columns, tuple(item for item in listed if item not in columns)


def is_name(choice: Any) -> bool:
    """Whether a choice is a column name or a list of names, not an array."""
    return isinstance(choice, str) or (isinstance(choice, list | tuple) and len(choice) > 0
                                       and all(isinstance(item, str) for item in choice))


def mask_columns(held: Iterable[str], of_rows: bool = False) -> dict[str, list[str]]:
    """Columns of masks among `held` by split, train, val or test; case is ignored.

    They are called train_mask, valid_mask, mask_train and so on; or is_train, is_val, is_test; or train, val, test, if
    a train and a test are there. With `of_rows` each column has a value per node, so that train_idx and so on are
    masks, too.
    """
    by_mask, by_is, by_word = found = {}, {}, {}
    for column in held:
        name = str(column).lower()
        word = re.sub("^(is|mask)_|_?masks?$", "", name)
        word = re.sub(OF_MARKS, "", word) if of_rows else word
        if word in WORDS:
            form = by_mask if "mask" in name else by_word if name == word else by_is
            form.setdefault(("train", "val", "test")[WORDS[word]], []).append(column)
    forms = [form for form, needed in zip(found, ((), ("train",), ("train", "test")), strict=True)
             if set(needed) <= set(form)]
    return {split: columns for split in ("train", "val", "test")
            if (columns := [column for form in forms for column in form.get(split, [])])}


def row_lists(held: Iterable[str], choices: Choices) -> dict[str, str]:
    """Keys of lists of rows, such as train_idx, val_idx and test_idx, and their splits, if there are no masks.

    Ids name no rows.
    """
    found = {key: split for key in held if (split := split_of_list(key))}
    is_free = choices.splits is None and choices.node_ids is None and not mask_columns(held)
    return found if is_free and 0 in (WORDS[word] for word in found.values()) else {}


def split_of_list(key: str) -> str | None:
    """The split that a key such as train_idx lists rows of, by one of its names; None for other keys."""
    word = re.sub(OF_LISTS, "", str(key).lower())
    return word if word in WORDS and word != str(key).lower() else None


def named_splits(found: dict[str, Any], of_rows: bool = False) -> dict[str, np.ndarray] | None:
    """The masks by split among columns with usual names, see `mask_columns`; None if there is none.

    Raises DatasetError for two masks of one split, or masks without one of the training nodes.
    """
    by_split = mask_columns((column for column, values in found.items() if values is not None), of_rows)
    several = next((columns for columns in by_split.values() if len(columns) > 1), None)
    if several:
        raise DatasetError(f"{several[0]} and {several[1]} are masks of one split; leave one out")
    if by_split and "train" not in by_split:
        raise DatasetError(f"there is {' and '.join(column for column, in by_split.values())}, and no mask of the "
                           "training nodes; add train_mask, or have a split drawn by split=none (splits=False)")
    return {split: as_mask(found[column], f"values of {column}") for split, (column,) in by_split.items()} or None


def first_of(names: Iterable[str], held: Iterable[str]) -> str | None:
    """Return the first of `names` that occurs in `held`, ignoring case, as `held` spells it; None if none does."""
    by_lower = {str(name).lower(): name for name in reversed(list(held))}
    return next((by_lower[name] for name in names if name in by_lower), None)


SOURCE_NAMES = ("source", "src", "from", "u", "source_id", "node1", "head", "src_id", "source_node", "from_node",
                "from_id", "fromnodeid", "start_id", "start_node", ":start_id", "_start", "sender", "citing", "subject")
TARGET_NAMES = ("target", "dst", "to", "v", "target_id", "node2", "tail", "destination", "dest", "dst_id",
                "target_node", "to_node", "to_id", "tonodeid", "end_id", "end_node", ":end_id", "_end", "receiver",
                "cited", "object")
SOURCE_WORDS, TARGET_WORDS = {*SOURCE_NAMES, "start", "origin", "out"}, {*TARGET_NAMES, "end", "in"}
WEIGHT_NAMES = ("weight", "edge_weight", "w")
RELATION_NAMES = ("relation", "edge_type", "predicate")
ID_NAMES = ("id", "node_id", "node", "nodeid", "name", "key", "vertex", "vertex_id", "index")
FEATURE_NAMES = ("x", "feat", "features", "node_feat", "attr")      # of objects that hold a matrix
PYG_FEATURES, PYG_LABELS = FEATURE_NAMES[:4], ("y", "label", "labels")      # of PyG's objects and archives
# Of names of columns such as train_idx, each with a value per node, and of names of lists of rows.
OF_MARKS = r"^(idx|index)_|_(idx|index|indices|nodes|set)$"
OF_LISTS = r"^(idx|index|ids?)_|_(idx|index|indices|(node_)?ids?|nodes)$"
LABEL_NAMES = ("label", "labels", "y", "class", "target")
SPLIT_NAMES = ("split", "splits", "role", "set")
EXACT = 1 << 24      # float32 rounds whole numbers from here on, such as times; they are rounded once standardized
AN_INDEX = "which has no name and counts the rows"
Table = dict[str, Any]     # columns of any library, by name


def is_table(data: Any) -> bool:
    """Whether an object is a table: of pandas, Arrow or Polars, records of NumPy, a dict of columns, a list of rows."""
    return _has_fields(data) or (hasattr(data, "columns") and (hasattr(data, "iloc") or hasattr(data, "to_arrow"))) or (
        hasattr(data, "column_names") and hasattr(data, "to_pydict")) or (
        isinstance(data, dict) and "edge_index" not in data and len(data) > 0) or _are_records(data)


def _are_records(data: Any) -> bool:
    return isinstance(data, list) and len(data) > 0 and all(isinstance(row, dict) for row in data)


def _has_fields(data: Any) -> bool:
    return bool(getattr(getattr(data, "dtype", None), "names", None))


def columns_of(data: Any, what: str) -> Table:
    """Columns of a table by name, each with num_rows values, as their library holds them."""
    if hasattr(data, "to_arrow"):
        data = data.to_arrow()
    if hasattr(data, "column_names") and hasattr(data, "to_pydict"):
        pairs = [(name, data.column(place)) for place, name in enumerate(data.column_names)]
    elif hasattr(data, "iloc") and hasattr(data, "columns"):
        pairs = [(name, data.iloc[:, place]) for place, name in enumerate(data.columns)]
    elif _has_fields(data):
        pairs = [(name, data[name]) for name in data.dtype.names]
    elif isinstance(data, dict):
        pairs = list(data.items())
    elif _are_records(data):
        pairs = [(name, [row.get(name) for row in data]) for name in dict.fromkeys(chain(*data))]
    else:
        raise DatasetError(f"{what} are a {type(data).__name__}; expected a table of pandas, Arrow or Polars, or a "
                           "dict of columns")
    names = [str(name) for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(f"{what} have the column {twice[0]!r} twice; rename one")
    table = {str(name): values for name, values in pairs}
    way = "; a dict of neighbors becomes a graph by networkx.DiGraph(data), JSON of NetworkX by node_link_graph(data)"
    odd = next((name for name, values in table.items()
                if not hasattr(values, "__len__") or as_sparse(values) is not None), None)
    if odd is not None:
        raise DatasetError(f"{what} have the column {odd!r}, a {type(table[odd]).__name__}; expected an array or a "
                           f"list{way * (what == 'edges')}")
    if len({len(values) for values in table.values()}) > 1:
        raise DatasetError(f"{what} have columns of unequal length; expected one value per row in each"
                           f"{way * (what == 'edges')}")
    return table


def graph_of_tables(edges: Table, choices: Choices, name: str) -> GivenGraph:
    """Return the graph of a table of edges and, if choices.nodes is one, a table of nodes."""
    index = index_columns(edges)
    ((source, source_column), (target, target_column)), is_guess = ends_of(edges, choices)
    weight, weight_column = pick(edges, choices.edge_weight, WEIGHT_NAMES, "edges")
    relation, relation_column = pick(edges, choices.relation, RELATION_NAMES, "edges")
    edge_attr, attr_columns = edge_columns(edges, choices.edge_attr, name)
    time, time_column = pick(edges, choices.edge_time, (), "edges")
    used_columns = {source_column, target_column, weight_column, relation_column, time_column, *attr_columns}
    of_edges = {"relation": relation, "edge_attr": edge_attr, "time": time}
    origins = Origins(weights=_weights(weight_column, choices.edge_weight), relations=_or_array(
        relation, relation_column), edge_attr=_or_array(edge_attr, *attr_columns))
    unused = [column for column in edges if column not in used_columns]
    origins = replace(origins, dubious=_both_ways(edges, unused),
                      direction=direction(source_column, target_column) if is_guess else "")
    skipped = tuple(f"column {column!r} of edges, {AN_INDEX}" for column in unused if column in index)
    unused = [column for column in unused if column not in index]
    if choices.nodes is None:
        origins = replace(origins, skipped=skipped, unused=tuple(f"{column} of edges" for column in unused))
        return replace(_without_nodes(source, target, weight, choices, name, origins), **of_edges)
    nodes = columns_of(choices.nodes, "nodes")
    left_out, ignored = choices.ignored([*nodes, *edges])
    ids, id_column = pick(nodes, choices.node_ids, ID_NAMES, "nodes")
    if ids is None:
        raise DatasetError(f"{name} has a table of nodes without ids in any of {', '.join(ID_NAMES)}; name their "
                           f"column, one of {', '.join(nodes)}, as node_ids=COLUMN (id=COLUMN in a command); an index "
                           "becomes a column by nodes.reset_index()")
    labels, label_columns = _labels(nodes, choices.labels)
    splits, split_columns = _splits(nodes, choices.splits)
    index = index_columns(nodes)
    used = {id_column, *label_columns, *split_columns, *left_out, *index, *chain(*mask_columns(nodes, True).values())}
    way = "name a column of labels by labels=... (label=... in a command)" if labels is choices.labels is None else ""
    features, feature_columns = _features(nodes, choices.features, used, name, way)
    chosen = {id_column, *label_columns, *split_columns, *feature_columns}
    index = [column for column in index if column not in chosen]
    others = [column for column in nodes if column not in {id_column, *label_columns, *split_columns, *index}]
    counted = tuple(f"feature {column} has another whole number for every node, as an id has; ignore={column} leaves "
                    "it out" for column in feature_columns if column.lower() in ID_NAMES and _are_ids(nodes[column]))
    counted += tuple(f"feature {column} is called as labels are, which a model must not see; ignore={column} leaves it "
                     "out" for column in feature_columns if column.lower() in LABEL_NAMES and choices.features is None)
    place = ""
    if choices.labels is None and label_columns and len(ids):
        place = place_beside(label_columns[0], {
            column: values.iloc[0] if hasattr(values, "iloc") else values[0] for column, values in nodes.items()})
    origins = replace(
        origins, ids=_named(id_column), features=choices.said("features", "the nodes' columns"),
        feature_names=tuple(feature_columns), labels=_named(*label_columns),
        splits=choices.said("splits", _named(*split_columns)),
        unused=(*(f"{column} of edges" for column in unused),
                *(f"{column} of nodes" for column in nodes if column not in chosen.difference(left_out).union(index))),
        skipped=(*skipped, *(f"column {column!r} of nodes, {AN_INDEX}" for column in index)),
        others=tuple(others), place=place, dubious=origins.dubious + counted)
    return GivenGraph(name, source, target, weight, ids, features=features, labels=labels, splits=splits,
                      label_names=tuple(label_columns) if len(label_columns) > 1 else (), ignore=ignored, **of_edges,
                      split_column=choices.split_column, origins=origins,
                      labels_hint="labels=COLUMN of the nodes (label=COLUMN in a command)")


def _both_ways(edges: Table, unused: list[str]) -> tuple[str, ...]:
    # Gephi writes whether an edge has a direction into a column.
    column = next((column for column in unused if column.lower() in ("type", "directed")), None)
    with suppress(DatasetError):
        if column and {word.lower() for word in as_words(edges[column], column).word} == {"undirected"}:
            return (f"edges are undirected by their column {column}; --symmetrize (symmetrize=True) adds reverses",)
    return ()


def _are_ids(values: Any) -> bool:
    numbers = as_numbers(values, "ids")
    step = np.diff(np.sort(numbers)) if numbers.ndim == 1 else np.zeros(1)
    is_counting = (np.diff(numbers, axis=0) == 1).all()      # look_at_features says so
    return len(numbers) > 2 and bool((step > 0).all() and (numbers % 1 == 0).all() and not is_counting)


def index_columns(table: Table) -> list[str]:
    """Names of the first, unnamed columns that count the rows, as pandas writes an index: they rise from 0 or later."""
    found = []
    for name, values in table.items():
        if name and not name.lower().startswith("unnamed:"):
            break
        try:
            numbers = as_numbers(values, name)
        except DatasetError:
            continue
        if numbers.ndim == 1 and (numbers[:1] >= 0).all() and (np.diff(numbers.astype(np.float64)) > 0).all():
            found.append(name)
    return found


def _without_nodes(source: Any, target: Any, weight: Any, choices: Choices, name: str, origins: Origins) -> GivenGraph:
    for what in ("features", "labels", "splits", "node_ids"):
        if isinstance(getattr(choices, what), str):
            raise DatasetError(f"{name} has no table of nodes to find {what}={getattr(choices, what)!r} in; pass "
                               "nodes=TABLE")
    return GivenGraph(name, source, target, weight, **given_arrays(choices), ignore=choices.ignored(())[1],
                      split_column=choices.split_column, origins=origins,
                      labels_hint="nodes=TABLE with a column of labels, or labels=ARRAY")


def _or_array(value: Any, *columns: str | None) -> str:
    return "" if value is None else _named(*columns)


def _named(*columns: str | None) -> str:
    found = [str(column) for column in columns if column is not None]
    if not found:
        return "an array"
    return f"column{'s' * (len(found) > 1)} {', '.join(found[:8])}{', ...' * (len(found) > 8)}"


def _weights(column: str | None, choice: Any) -> str:
    return NO_WEIGHTS if choice is False else "" if column is None else _named(column)


def given_arrays(choices: Choices) -> dict[str, Any]:
    """Arrays given in addition to an object that holds only edges, for GivenGraph."""
    given = {what: getattr(choices, what) for what in ("node_ids", "features", "labels", "splits")}
    found = {what: None if value is None or value is False else value for what, value in given.items()}
    if found["features"] is not None:
        found["features"] = as_features(found["features"])
    return {"node_id": found.pop("node_ids"), **found}


def pick(table: Table, choice: Any, usual: tuple[str, ...], what: str) -> tuple[Any, str | None]:
    """Return the column that a choice names, or that has a usual name, and its name; an array is returned as it is."""
    if choice is None:
        choice = first_of(usual, table)
    if choice is None or choice is False:
        return None, None
    if isinstance(choice, int) and not isinstance(choice, bool):
        if not -len(table) <= choice < len(table):
            raise DatasetError(f"the {what} have {len(table)} columns; there is none at place {choice}")
        choice = list(table)[choice]
    if isinstance(choice, str):
        if choice not in table:
            raise DatasetError(f"the {what} have no column {choice!r}; they have {', '.join(table)}")
        return table[choice], choice
    return choice, None


def in_order(names: Sequence[str]) -> list[int]:
    """Places of the columns of edges in the order source, target, or source, relation, target; others last.

    A source and a target are found by their usual names, else columns stay in their places. A relation has its usual
    name, or the second place.
    """
    known = [str(name).lower() for name in names]
    source, target = (next((place for place, name in enumerate(known) if name in usual), -1)
                      for usual in (SOURCE_NAMES, TARGET_NAMES))
    if source < 0 or target < 0:
        return order_of_two(names)[0] if len(names) == 2 else list(range(len(names)))
    relation = next((place for place, name in enumerate(known) if place not in (source, target) and (
        name in RELATION_NAMES or place == 1)), None)
    found = [source, target] if relation is None else [source, relation, target]
    return found + [place for place in range(len(names)) if place not in found]


def edge_columns(edges: Table, choice: Any, name: str) -> tuple[Any, list[str]]:
    """Return the attributes of edges that a choice names, (num_edges, num_columns), and their columns.

    An array is returned as it is; None and False are none.
    """
    if choice is None or choice is False:
        return None, []
    if not is_name(choice):
        return choice, []
    picked = [pick(edges, column, (), "edges") for column in ([choice] if isinstance(choice, str) else choice)]
    return np.column_stack([as_numbers(values, f"{name}: the values of column {column!r} of edges")
                            for values, column in picked]), [column for _, column in picked]


def ends_of(edges: Table, choices: Choices, what: str = "the edges", remedy: str = "name it as {}=COLUMN"
            ) -> tuple[list[tuple[Any, str]], bool]:
    """The columns of sources and of targets, each with its name, and whether their order is a guess.

    Ends are columns that a choice names or that have a usual name; in a table of two columns, the other column, and if
    none is known, both, see `order_of_two`.
    """
    index, chosen = index_columns(edges), (choices.source, choices.target)
    named = {column: values for column, values in edges.items() if column not in index}
    found = [pick(named if choice is None else edges, choice, usual, "edges")
             for choice, usual in zip(chosen, (SOURCE_NAMES, TARGET_NAMES), strict=True)]
    columns, is_guess = [column for _, column in found], False
    if None in columns and len(named) == 2:
        order, is_guess = order_of_two(list(named))
        columns = [list(named)[place] for place in order] if columns == [None, None] else [
            next(name for name in named if name not in columns) if column is None else column for column in columns]
        found, is_guess = [(edges[column], column) for column in columns], is_guess and chosen == (None, None)
    if None in columns:
        end = ("source", "target")[columns.index(None)]
        held = f"columns {', '.join(named)}, and none goes" if named else "no columns, and none goes"
        raise DatasetError(f"{what} have {held} by a usual name of a {end}; {remedy.format(end)}"
                           f"{'' if len(named) > 1 else '; an index becomes columns by reset_index()'}")
    if columns[0] == columns[1]:
        raise DatasetError(f"{what} would lead from column {columns[0]!r} to itself; expected two columns")
    return found, is_guess


def direction(source: str, target: str) -> str:
    """A warning that names do not tell the direction of edges."""
    return (f"edges lead from column {source} to column {target}, as no name tells more; source={target},"
            f"target={source} (of csv:, or in Python) turns them")


def order_of_two(names: Sequence[str]) -> tuple[list[int], bool]:
    """Places of the source and of the target among two columns of edges by their names, and whether that is a guess.

    A word tells, as in `TargetID,SourceID` and `end,start`. Else the first column is the source.
    """
    words = [{word.lower() for word in re.findall("[A-Z]*[a-z]+|[A-Z]+", str(name))} for name in names]
    first, second = (bool(found & SOURCE_WORDS) - bool(found & TARGET_WORDS) for found in words)
    return [0, 1] if first >= second else [1, 0], first == second


def _labels(nodes: Table, choice: Any) -> tuple[Any, list[str]]:
    if isinstance(choice, list | tuple) and is_name(choice):
        picked = [pick(nodes, column, (), "nodes") for column in choice]
        return np.column_stack([as_numbers(values, f"the labels in column {column!r}") for values, column in picked]), [
            column for _, column in picked]
    values, column = pick(nodes, choice, LABEL_NAMES, "nodes")
    return values, [] if column is None else [column]


def _splits(nodes: Table, choice: Any) -> tuple[Any, list[str]]:
    is_number = isinstance(choice, int) and not isinstance(choice, bool) and mask_columns(nodes, True)
    if is_number or (choice is None and first_of(SPLIT_NAMES, nodes) is None):
        masks = named_splits(nodes, of_rows=True)
        return masks, [] if masks is None else list(chain(*mask_columns(nodes, True).values()))
    if choice is not None and choice is not False and not is_name(choice):
        return choice, []
    values, column = pick(nodes, choice, SPLIT_NAMES, "nodes")
    return values, [] if column is None else [column]


def _numbers(nodes: Table, columns: Sequence[str], name: str, others_hold: str = "") -> list[np.ndarray]:
    """The columns' numbers. An error names all columns that hold none, so that a user changes them in one go, and what
    `others_hold`.
    """
    found, refused = [], {}
    for column in columns:
        values, called = pick(nodes, column, (), "nodes")
        try:
            found.append(as_features(values, f"{name}: the values of column {called!r}"))
        except DatasetError as reason:
            refused[called] = str(reason)
    if refused:
        first, *others = refused
        also = f"; columns {', '.join(map(repr, others))} hold no numbers either" if others else ""
        raise DatasetError(f"{refused[first]}{also}; name the columns of features (features=...) to leave out the "
                           "others, or make columns of 0 and 1 from words, as pandas.get_dummies does"
                           f"{'; ' * bool(others_hold)}{others_hold}")
    return found


def _features(nodes: Table, choice: Any, used: set, name: str, others_hold: str) -> tuple[Any, list[str]]:
    if choice is False:
        return None, []
    if choice is not None and not is_name(choice):
        return as_features(choice), []
    columns = [column for column in nodes if column not in used] if choice is None else (
        [choice] if isinstance(choice, str) else list(choice))
    blocks = _numbers(nodes, columns, name, others_hold)
    if not blocks:
        return None, columns
    matrix = np.column_stack(blocks)
    is_exact = matrix.dtype == np.float32 or np.abs(matrix).max(initial=0) < EXACT
    return matrix.astype(np.float32) if is_exact else matrix, columns
