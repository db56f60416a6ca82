"""`edges:FILE[,labels=FILE][,features=FILE][,splits=FILE]`: an edge list as text, and files with values per node.

Nodes have the ids in the files; or, if row k belongs to node k, they are counted from 0. Matrix Market and KONECT files
count from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcgnn.data.arcs import Ends
from hpcgnn.data.arrays import Sliced, columns, keep_rows
from hpcgnn.data.assemble import refuse_given_labels
from hpcgnn.data.columns import Cells, Ids, is_number, texts_of
from hpcgnn.data.dataset import NO_WEIGHTS, GraphDataset, Origins
from hpcgnn.data.given import GivenGraph, finish_dataset, masks_from_words
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.node_files import NodeFile, first_column, read_node_file, rows_of
from hpcgnn.data.options import NOTHING, SourceOptions, convert_setting, split_path
from hpcgnn.data.tables import Choices, direction, in_order, order_of_two
from hpcgnn.data.text_stream import MATRIX_MARKET, name_of
from hpcgnn.data.text_table import (
    INTEGER,
    MAX_SHOWN,
    NUMBER,
    CellError,
    TextTable,
    checked_ids,
    is_whole_number,
    numbers_of,
    read_columns,
    whole_numbers_of,
)
from hpcgnn.errors import DatasetError

SETTINGS = ("labels", "features", "splits", "ids", "header", "weight", "relation", "ignore")
WEIGHT_NAMES = ("weight", "edge_weight", "w", "value")
FIRST_TIME, YEARS = 5e8, (1900, 2100)     # in seconds since 1970; weights are smaller
FEW_ROWS, SHARE, MOST_LOOKED_AT = 10, 4, 1_000_000
KONECT = re.compile(r"% *(sym|asym|bip) +(unweighted|positive|posweighted|signed|multisigned|weighted|multiweighted|"
                    r"dynamic|multiposweighted)\b")
# Of a pair such as `(0, 1)`, and of a node with its neighbors, as in `0: 1`.
PRINTED = (r"^[(\[{][^)\]}]*$", r"^[^(\[{]*[)\]}]$"), (":$", "[^:]$")
KONECT_COUNTS = re.compile(r"% *\d+ +(\d+) +(\d+)")


def load_edges(rest: str, options: SourceOptions) -> GraphDataset:
    """Load "FILE[,labels=FILE][,features=FILE][,splits=FILE][,ids=true|false][,header=true|false][,weight=none]
    [,relation=COLUMN][,ignore=LABEL;LABEL]".

    The dataset is named after the edge file. Nodes come from the features with ids, else from the labels with ids. If
    no file has ids, row k belongs to node k. If there are no rows either, the nodes are the ends of edges.
    """
    file, settings = split_path(rest, SETTINGS, "an edges: source")
    flags = {key: convert_setting(key, settings[key], bool, "an edges: source") if key in settings else None
             for key in ("ids", "header")}
    path = Path(file)
    name = name_of(path)
    if "labels" in settings:
        refuse_given_labels(f"edges:{rest}", options)
    wants_features = options.feature_kind != "structural"
    labels, features, splits = (
        read_node_file(Path(settings[key]), dtype, options, flags["ids"], flags["header"]) if key in settings else None
        for key, dtype in (("labels", np.float64), ("features" if wants_features else "", np.float32),
                           ("splits", np.float64)))
    ids = _node_ids(labels, features, splits)
    if settings.get("weight", NOTHING) != NOTHING:
        raise DatasetError(f"an edges: source has weight={settings['weight']!r}; expected weight=none, since a third "
                           "column holds weights without being named")
    edges = read_edge_file(path, options, flags["header"], ids is None, "weight" not in settings,
                           settings.get("relation"))
    if ids is None and (labels or features) and isinstance(edges.source, pa.Array):
        text = next(text for ends in (edges.source, edges.target) for text in ends.to_pylist()
                    if not is_whole_number(text))
        raise DatasetError(f"{path} has {text!r} for a node, and no file gives the nodes' ids, so that "
                           "edges count them from 0; expected whole numbers only, or put the id first in the "
                           "other files")
    files = [found for found in (labels, features, splits) if found is not None]
    of_ids = features if features is not None and features.ids is not None else labels
    origins = Origins(ids="" if ids is None else f"column 0 of {of_ids.path.name}",
                      weights=NO_WEIGHTS if "weight" in settings else "" if edges.weight is None else (
                          f"the {'third' if edges.relation is None else 'last'} column of {path.name}"),
                      relations="" if edges.relation is None else f"column {settings['relation']} of {path.name}",
                      features="" if features is None else features.path.name,
                      labels="" if labels is None else labels.path.name,
                      splits="" if splits is None else splits.path.name,
                      feature_names=() if features is None else features.columns,
                      skipped=tuple(text for found in (*files, edges) for text in found.skipped),
                      direction=edges.direction,
                      dubious=(*(text for found in (*files, edges) for text in found.dubious), *(
                          f"{found.path.name} begins with 0, as pandas names a column without a name, and has a row "
                          "more than the edges have nodes; remove that line if it is a header" for found in files
                          if ids is None and found.begins_at_0 and len(found.values) == edges.highest + 2), *(
                          f"the first line of {found.path.name}, {found.ids[0]},{found.values[0]}, names no end of an "
                          "edge and has a value of its own; if it names the columns, call them id,label"
                          for found in files
                          if flags["header"] is None and _may_begin_with_names(found, edges))))
    given = GivenGraph(name, edges.source, edges.target, edges.weight, ids, num_nodes=edges.num_nodes,
                       row_name=None if edges.num_nodes is None else np.arange(1, edges.num_nodes + 1),
                       ignore=Choices.of(settings).ignored(())[1], relation=edges.relation,
                       **_values(labels, features, splits, ids, name), is_symmetric=edges.is_symmetric,
                       remarks=(*(text for found in (*files, edges) for text in found.remarks), *(
                           f"rows of {found.path.name} are in the order of {of_ids.path.name}" for found in files
                           if ids is not None and found.ids is None)),
                       labels_hint="labels=FILE", origins=origins)
    return finish_dataset(given, options)


@dataclass(frozen=True)
class EdgeFile:
    """The content of a file of edges.

    source, target : (num_edges,) int64, possibly read in slices, or both texts
    weight : (num_edges,) float64, or None
    num_nodes : int or None          if the file states it: its ids 1 to num_nodes are then rows already
    is_symmetric : bool              each edge is listed once and holds both ways
    relation : (num_edges,) int64 or texts, or None
    highest : int                    largest number of a node, or -1
    direction : str                  a warning that the header does not tell the direction of edges, or empty
    """

    source: Ends | Ids
    target: Ends | Ids
    weight: np.ndarray | None = None
    num_nodes: int | None = None
    is_symmetric: bool = False
    relation: np.ndarray | pa.Array | None = None
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    dubious: tuple[str, ...] = ()
    highest: int = -1
    direction: str = ""


def read_links(path: Path, options: SourceOptions) -> tuple[Ids, ...]:
    """The columns of a file of held-out links, which `links_of` takes: two columns of ids, or three."""
    table = TextTable(path, None, options.progress)
    if table.num_columns - table.num_unnamed == 3 and _known_form(table) is None:
        found = read_columns(table, [None] * table.num_unnamed + [INTEGER] * 3)
        order = in_order(table.header[table.num_unnamed:]) if table.header else range(3)
        return tuple(checked_ids(found[place], path) for place in order)
    links = read_edge_file(path, replace(options, scratch=None), are_rows=False, has_weights=False)
    source, target = (np.asarray(ends) if isinstance(ends, Sliced) else ends for ends in (links.source, links.target))
    return source, target


def read_edge_file(path: Path, options: SourceOptions, has_header: bool | None = None,
                   are_rows: bool = True, has_weights: bool = True, relation: str | None = None) -> EdgeFile:
    """Read two columns of ids, and a third of weights if there is one.

    Parameters
    ----------
    has_header : bool or None        None finds out
    are_rows : bool                  no other file has ids, so a file that counts nodes from 1 states their number
    has_weights : bool               take a third column as weights
    relation : str or None           the column of relations besides these, by its place from 0 or its name
    """
    if path.suffix in (".graph", ".metis"):
        raise DatasetError(f"{path} is a graph of METIS by its name, with the neighbors of one node per line; write an "
                           "edge per line, or rename it to .txt if it has one")
    table = TextTable(path, has_header, options.progress)
    known = _known_form(table)
    if "".join(table.first[2:3]).startswith("{"):
        raise DatasetError(f"{path} has {' '.join(table.first[2:])!r} after the nodes, as networkx.write_edgelist "
                           "writes; use write_weighted_edgelist, or write_edgelist with data=False")
    if relation not in (None, NOTHING):
        return _read_relations(table, known, relation, has_weights)
    first = table.num_unnamed
    num_columns = table.num_columns - first
    header = None if table.header is None else table.header[first:]
    has_times = known is not None and num_columns == 4
    if num_columns not in (2, 3) and not has_times:
        found = f"has {num_columns} columns" if num_columns else (
            f"holds comments only, such as {table.comments[0]!r}" if table.comments else "holds nothing")
        raise DatasetError(f"{path} {found}; expected two, the source and target node of an edge, and "
                           "a third if edges have weights")
    has_weights = has_weights and num_columns > 2
    if has_weights and header and header[2].lower() not in WEIGHT_NAMES and is_number("".join(table.first[2:3])):
        raise DatasetError(f"{path} calls its third column {header[2]!r}, and a third column holds weights; call it "
                           "weight if it does, leave it out by weight=none, or name the columns of nodes: "
                           "csv:FILE,source=COLUMN,target=COLUMN")
    is_counted = known is not None and are_rows      # from 1 to their number
    num_nodes = known.num_nodes if is_counted else None
    kinds = [INTEGER] * (first + 2) + [NUMBER if has_weights else None] * (num_columns > 2) + [None] * has_times
    try:
        # Graphs with weights are cleaned in memory.
        source, target, weight, highest = _read_numbers(table, kinds, None if has_weights else options.scratch,
                                                        num_nodes, is_counted)
        num_nodes = highest if is_counted and num_nodes is None else num_nodes
    except CellError:
        source, target, weight = _read_texts(table, kinds)
        num_nodes, highest = None, -1
    if has_header is None and table.header is None and known is None:
        _refuse_counts(source, target, weight, path)
    skipped = table.skipped
    if first:
        skipped += (f"the first column of {path.name}, which has no name and counts the rows",)
    if num_columns > 2 and not has_weights:
        skipped += (f"the third column of {path.name}, as asked",)
    if has_times:
        skipped += (f"the fourth column of {path.name}, which holds times",)
    remarks = table.remarks if table.header is not None or isinstance(source, pa.Array) else table.remarks[1:]
    if isinstance(source, pa.Array):
        remarks = (f"{remarks[0]}; header=true or header=false says otherwise", *remarks[1:])
    remarks += () if weight is None else (f"the third column of {path.name} holds weights",)
    if header and in_order(header[:2]) == [1, 0]:
        source, target = target, source
        remarks += (f"edges lead from column {header[1]!r} of {path.name} to column {header[0]!r}",)
    if known is not None:
        if known.num_entries not in (None, len(source)):
            raise DatasetError(f"{path} says that it has {known.num_entries} entries and has {len(source)}; it is "
                               "truncated, copy it again")
        remarks += (f"{path.name} is a file of {known.name}; its nodes are counted from 1, and a line leads from its "
                    "first node to its second",)
    dubious = () if weight is None or not len(weight) else _doubts_about_third(
        source, target, weight, header, path.name)
    if known is None and not options.symmetrize and any("undirected" in text.lower() for text in table.comments):
        dubious += (f"edges are undirected by a comment in {path.name}; --symmetrize (symmetrize=True) adds reverses",)
    if has_header and header and all(map(is_whole_number, header)):
        dubious += (f"the first line of {path.name}, {','.join(header)}, was taken as its header, as asked; without "
                    "header=true it is an edge",)
    is_guessed = header is None and has_header is None and known is None
    if is_guessed and isinstance(source, pa.Array) and len(source) > 2 and all(
            _num_of(source, word) + _num_of(target, word) == 1 for word in table.first[first:first + 2]):
        dubious += (f"only the first line of {path.name} has the nodes {table.first[first]} and "
                    f"{table.first[first + 1]}; header=true if it names the columns, header=false if it is an edge",)
    if header is None and table.first == ("0", "1", "2"):
        dubious += (f"the first row of {path.name} is 0,1,2, as pandas writes for columns without names, and was read "
                    "as an edge; remove it if it is a header",)
    return EdgeFile(source, target, weight, num_nodes, known is not None and known.is_symmetric, None, remarks, skipped,
                    dubious, highest, direction(*header[:2]) if header and order_of_two(header[:2])[1] else "")


def _doubts_about_third(source: Ends | Ids, target: Ends | Ids, weight: np.ndarray, header: tuple[str, ...] | None,
                        name: str) -> tuple[str, ...]:
    # Whether the third column may hold no weights.
    source, target, weight = source[:MOST_LOOKED_AT], target[:MOST_LOOKED_AT], weight[:MOST_LOOKED_AT]
    low, high, are_whole = weight.min(), weight.max(), bool((weight % 1 == 0).all())
    if low >= FIRST_TIME:
        return (f"the third column of {name} holds numbers from {low:.0f} on, which may be times; weight=none leaves "
                "them out",)
    if header or len(weight) < 3:
        return ()
    is_long, step = len(weight) >= FEW_ROWS, np.diff(weight)
    if (step == 1).all():
        return (f"the third column of {name} counts the rows; weight=none leaves it out if it holds no weights",)
    if is_long and (((step >= 0).all() and len(np.unique(weight)) > len(weight) / 2) or (
            are_whole and YEARS[0] <= low < high <= YEARS[1])):
        return (f"the third column of {name} holds {low:g} to {high:g}, {'rising' if (step >= 0).all() else 'as years'}"
                ", which may be times; weight=none leaves them out",)
    if not is_long or not are_whole or isinstance(source, pa.Array):
        return ()
    source, target, values = np.asarray(source), np.unique(target), np.unique(weight)
    if (np.diff(source) == 1).all():
        return (f"the first column of {name} counts the rows; if it numbers edges, leave it out",)
    return (f"the second column of {name} has {len(target):,} values, and the third holds nodes of the first; "
            "relation=1 takes them for head, relation and tail",) * bool(
        len(values) > FEW_ROWS and SHARE * len(target) <= len(values) and np.isin(values, source).mean() > 1 / 2)


def _may_begin_with_names(file: NodeFile, edges: EdgeFile) -> bool:
    if file.columns or not (isinstance(file.ids, pa.Array) and isinstance(file.values, Cells)) or len(file.ids) < 3:
        return False
    return not any(_num_of(np.asarray(ends) if isinstance(ends, Sliced) else ends, file.ids[0].as_py())
                   for ends in (edges.source, edges.target)) and _num_of(file.values.texts, file.values[0]) == 1


def _num_of(ids: Ids | pa.ChunkedArray, word: str) -> int:
    return int(pc.sum(pc.equal(ids if isinstance(ids, pa.ChunkedArray) else texts_of(ids), word)).as_py() or 0)


def _refuse_counts(source: Ends | Ids, target: Ends | Ids, weight: np.ndarray | None, path: Path) -> None:
    # A first line such as `5 7`, or `5 5 7` as in Matrix Market files, states the nodes and edges of 7 more lines.
    if isinstance(source, pa.Array) or len(source) < 3:
        return
    num_nodes, second = int(source[:1][0]), int(target[:1][0])
    stated = second if weight is None else weight[0] if second == num_nodes else -1
    if stated == len(source) - 1 and all(ends[1:].max() <= num_nodes for ends in map(np.asarray, (source, target))):
        raise DatasetError(f"{path} seems to state {num_nodes} nodes and {stated:.0f} edges in its first line; "
                           "remove that line, or append ,header=false if it is an edge")


def _read_relations(table: TextTable, known: KnownForm | None, relation: str, has_weights: bool) -> EdgeFile:
    path, first = table.path, table.num_unnamed
    if known is not None:
        raise DatasetError(f"{path} is a file of {known.name}, which has no column of relations; leave out relation=")
    names = table.header or ()
    place = names.index(relation) if relation in names else int(relation) if relation.isdecimal() else -1
    others = [column for column in range(first, table.num_columns) if column != place]
    if names and in_order([names[column] for column in others[:2]]) == [1, 0]:
        others[:2] = others[1::-1]
    if not first <= place < table.num_columns or len(others) not in (2, 3):
        found = f"the columns {', '.join(names)}" if names else f"{table.num_columns} columns and no header"
        raise DatasetError(f"{path} has {found}, and relation={relation} was given; expected the place of a column, "
                           "from 0, or its name, beside a source, a target and, if edges have them, weights")
    kinds: list[str | None] = [INTEGER] * table.num_columns
    has_weights = has_weights and len(others) == 3
    if len(others) == 3:
        kinds[others[2]] = NUMBER if has_weights else None
    wanted = [column for column in range(table.num_columns) if kinds[column] is not None]
    found = dict(zip(wanted, read_columns(table, kinds), strict=True))
    _check_index([found[column] for column in range(first)], path)
    source, target = _as_one_kind(*(found[column] for column in others[:2]), path)
    weight = _as_weights(found[others[2]], path, "last") if has_weights else None
    called = repr(names[place]) if names else str(place)
    way = "the first of the other columns to the second" if others[0] < others[1] else "the second of the other " \
        "columns to the first, as their names say"
    remarks = (*table.remarks, f"relations of edges are column {called} of {path.name}; edges lead from {way}")
    return EdgeFile(source, target, weight, relation=found[place], remarks=remarks, skipped=table.skipped)


@dataclass(frozen=True)
class KnownForm:
    """Facts that the comments of a public collection's file state."""

    name: str
    is_symmetric: bool
    num_nodes: int | None = None
    num_entries: int | None = None


def _known_form(table: TextTable) -> KnownForm | None:
    start = table.comments[0].lower() if table.comments else ""
    if table.size is not None and start.encode().startswith(MATRIX_MARKET):
        return _matrix_market(table, start.split()[1:])
    if found := KONECT.match(start):
        if found[1] == "bip" or found[2] == "dynamic":
            kind = "bipartite" if found[1] == "bip" else "dynamic"
            raise DatasetError(f"{table.path} is a {kind} network of KONECT; expected edges between nodes of one kind, "
                               "each with an id of its own")
        counts = [KONECT_COUNTS.match(comment) for comment in table.comments[1:2]]
        return KnownForm("KONECT", found[1] == "sym", int(counts[0][1]) if counts and counts[0] else None)
    return None


def _matrix_market(table: TextTable, words: list[str]) -> KnownForm:
    if len(words) < 4 or words[:2] != ["matrix", "coordinate"] or words[2] not in ("pattern", "real", "integer") or (
            words[3] not in ("general", "symmetric")):
        raise DatasetError(f"{table.path} is a Matrix Market file of kind {' '.join(words)!r}; expected matrix "
                           "coordinate pattern, real or integer, general or symmetric")
    if len(table.size) != 3 or table.size[0] != table.size[1] or min(table.size) < 0:
        raise DatasetError(f"{table.path} holds a matrix of size {' '.join(map(str, table.size))}; expected as many "
                           "rows as columns, and the number of entries")
    return KnownForm("Matrix Market", words[3] == "symmetric", table.size[0], table.size[2])


def _read_numbers(table: TextTable, kinds: list[str | None], scratch: Path | None, num_nodes: int | None,
                  is_counted: bool) -> tuple[Ends, Ends, np.ndarray | None, int]:
    # Read whole numbers into a file of the scratch folder, and weights into memory. If nodes are counted, numbers from
    # 1 become rows. Also returns the largest number.
    weights: list[np.ndarray] = []
    largest = [0]
    first = table.num_unnamed

    def pairs() -> Iterator[np.ndarray]:
        yield np.empty((0, 2), np.int64)
        last = [-1] * first
        wanted = [place for place, kind in enumerate(kinds) if kind is not None]
        for texts in table.blocks(wanted):
            block = [numbers_of(column) if kinds[place] == NUMBER else whole_numbers_of(column)
                     for place, column in zip(wanted, texts, strict=True)]
            if any(column is None for column in block):
                raise CellError(-1, f"{table.file} holds texts")
            _check_index([np.append(number, column) for number, column in zip(last, block, strict=False)], table.path)
            last = [column[-1] for column in block[:first] if len(column)]
            if NUMBER in kinds:
                weights.append(block[-1].copy())
            rows = np.column_stack(block[first:first + 2])
            largest.append(int(rows.max(initial=0)))
            if is_counted:
                is_odd = (rows < 1) | (rows > (largest[-1] if num_nodes is None else num_nodes))
                if is_odd.any():
                    stated = "; expected numbers from 1 on" if num_nodes is None else (
                        f" and says that it has {num_nodes} nodes; expected numbers from 1 to {num_nodes}")
                    raise DatasetError(f"{table.path} has an edge to node {rows[is_odd][0]}{stated}")
                rows -= 1
            yield rows

    ends = columns(keep_rows(pairs(), scratch, table.path.name))
    weight = (np.concatenate(weights) if weights else np.empty(0)) if NUMBER in kinds else None
    return *ends, weight, max(largest)


def _read_texts(table: TextTable, kinds: list[str | None]) -> tuple[Ids, Ids, np.ndarray | None]:
    found, first = read_columns(table, kinds), table.num_unnamed
    _check_index(found[:first], table.path)
    if (sign := _sign_between(found[first + 1])) is not None:
        raise DatasetError(f"{table.path} has {sign!r} in its second column, in every row; expected the target node: "
                           f"write the two nodes of an edge without {sign!r} between them")
    source, target = _as_one_kind(*found[first:first + 2], table.path)
    is_pair = isinstance(source, pa.Array) and any(
        all(pc.all(pc.match_substring_regex(ends, form), min_count=1).as_py() for ends, form in zip(
            (source, target), forms, strict=True)) for forms in PRINTED)
    if is_pair or (isinstance(target, pa.Array) and pc.any(pc.equal(target, "{}")).as_py()):
        raise DatasetError(f"{table.path} has rows such as {source[-1].as_py()[:MAX_SHOWN]!r}, "
                           f"{target[-1].as_py()[:MAX_SHOWN]!r}, as programs print pairs or lists of neighbors; write "
                           "the two nodes of an edge per line, without brackets")
    return source, target, _as_weights(found[first + 2], table.path, "third") if NUMBER in kinds else None


def _sign_between(column: Ids) -> str | None:
    # `->` of rows such as `0 -> 1`; no id, since all rows have the same, without a letter or a digit.
    texts = column.unique() if isinstance(column, pa.Array) else []
    return texts[0].as_py() if len(texts) == 1 and not re.search(r"\w", texts[0].as_py() or "a") else None


def _as_one_kind(source: Ids, target: Ids, path: Path) -> tuple[Ids, Ids]:
    source, target = (checked_ids(ends, path) for ends in (source, target))
    if isinstance(source, pa.Array) or isinstance(target, pa.Array):
        source, target = texts_of(source), texts_of(target)
    return source, target


def _as_weights(weight: np.ndarray | pa.Array, path: Path, column: str) -> np.ndarray:
    if isinstance(weight, pa.Array):
        odd = next(text for text in weight.to_pylist() if not is_number(text))
        raise DatasetError(f"{path} has {odd!r} in its {column} column; expected weights, which are numbers, or "
                           "relation=1 in the source if its columns are head, relation and tail")
    return weight


def _check_index(index: list[Any], path: Path) -> None:
    if not all(isinstance(column, np.ndarray) and (np.diff(column) > 0).all() for column in index):
        raise DatasetError(f"{path} has a first column without a name, which does not count the rows; name it, or "
                           "remove it")


def _node_ids(labels: NodeFile | None, features: NodeFile | None, splits: NodeFile | None) -> Ids | None:
    if features is not None and features.ids is not None:
        if labels is not None and labels.ids is None:
            raise DatasetError(f"{features.path} has ids and {labels.path} has none, so their rows can't be matched; "
                               "put the id first in both, or append ,ids=true")
        return features.ids
    if labels is None or labels.ids is None:
        return None
    if features is not None and isinstance(labels.ids, np.ndarray) and np.array_equal(
            np.sort(first_column(features.values)), np.sort(labels.ids)):
        raise DatasetError(f"{features.path} begins each row with an id of {labels.path}; append ,ids=true, so that "
                           "its rows are found by them")
    return labels.ids


def _values(labels: NodeFile | None, features: NodeFile | None, splits: NodeFile | None, ids: Ids | None,
            name: str) -> dict:
    rows = None if ids is None else NodeRows(ids, name)
    values = {}
    for key, file in (("labels", labels), ("features", features), ("splits", splits)):
        if file is None:
            values[key] = None
        elif file.ids is None or (rows is None and key != "splits"):
            values[key] = file.values
        elif rows is None:
            rows_here = NodeRows(np.arange(len(labels.values) if labels else len(file.values)), name)
            values[key] = rows_of(file, rows_here, False)
        else:
            values[key] = rows_of(file, rows, key == "features")
    if values["splits"] is not None:
        values["splits"] = masks_from_words(values["splits"], len(values["splits"]), str(splits.path))
    return values
