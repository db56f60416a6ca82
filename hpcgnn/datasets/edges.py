"""`edges:FILE[,labels=FILE][,features=FILE][,splits=FILE]`: an edge list as text, and files of values a node.

Nodes have the ids that the files give them, or are counted from 0 where row k belongs to node k.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcgnn.datasets.arcs import Ends
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.given import GivenGraph, finish_dataset
from hpcgnn.datasets.given_splits import masks_from_words
from hpcgnn.datasets.ids import NodeRows
from hpcgnn.datasets.made import refuse_given_labels
from hpcgnn.datasets.node_files import NodeFile, read_node_file, rows_of
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.row_files import columns
from hpcgnn.datasets.spec import convert_setting, split_settings
from hpcgnn.datasets.tables import read_table
from hpcgnn.datasets.text_columns import MAX_SHOWN, column_values, first_rows, has_number, read_text_columns
from hpcgnn.errors import DatasetError

SETTINGS = ("labels", "features", "splits", "ids", "header")
WEIGHT_NAMES = ("weight", "edge_weight", "w", "value")
LARGEST_EXACT = 1 << 53     # ids beside decimal weights are read as float64


def load_edges(rest: str, options: SourceOptions) -> GraphDataset:
    """Load "FILE[,labels=FILE][,features=FILE][,splits=FILE][,ids=true|false][,header=true|false]".

    The dataset is named after the edge file. The nodes are those of the features with ids, else of the labels with ids;
    where no file has ids, their number is that of label rows, or the largest id plus one where labels are made.

    Raises
    ------
    DatasetError      a file that is missing or malformed, no labels given, an edge to a node that has no row
    """
    file, _, settings_text = rest.partition(",")
    settings = split_settings(settings_text, SETTINGS, "an edges: source")
    flags = {key: convert_setting(key, settings[key], bool, "an edges: source") if key in settings else None
             for key in ("ids", "header")}
    path = Path(file)
    name = path.name.split(".")[0]
    if "labels" in settings:
        refuse_given_labels(f"edges:{rest}", options)
    elif options.made_classes is None:
        raise DatasetError(f"edges:{file} names no labels, which training needs; append ,labels=FILE, one row a node, "
                           "or pass --make-labels K for K classes made from in-degrees")
    wants_features = options.features != "structural"
    labels, features, splits = (
        read_node_file(Path(settings[key]), dtype, options, flags["ids"], flags["header"]) if key in settings else None
        for key, dtype in (("labels", np.float64), ("features" if wants_features else "", np.float32),
                           ("splits", np.float64)))
    ids = _node_ids(labels, features, splits)
    source, target, weight, remarks = read_edge_file(path, options, None if ids is None else ids.dtype.kind == "U",
                                                     flags["header"])
    given = GivenGraph(name, source, target, weight, ids, **_values(labels, features, splits, ids, name),
                       remarks=_remarks(labels, features, splits) + remarks, labels_hint="labels=FILE")
    return finish_dataset(given, options)


def read_edge_file(path: Path, options: SourceOptions, has_texts: bool | None = None,
                   has_header: bool | None = None) -> tuple[Ends, Ends, np.ndarray | None, tuple[str, ...]]:
    """Read two columns of ids, and a third of weights where there is one.

    Parameters
    ----------
    has_texts : bool or None         ids are texts, also those that look like numbers; None finds out
    has_header : bool or None        None finds out

    Returns
    -------
    source, target : (num_edges,) int64 or str
    weight : (num_edges,) float64, or None
    remarks : tuple of str

    Raises
    ------
    DatasetError                     a file that is missing or malformed, or with columns of another meaning
    """
    first, second = (*first_rows(path, 2), [], [])[:2]
    num_columns = len(first)
    if num_columns not in (2, 3):
        raise DatasetError(f"{path} has {num_columns} columns; expected two, the source and target node of an arc, and "
                           "a third if edges have weights")
    is_header = has_header or (has_header is None and not has_number(first))
    if is_header and num_columns == 3 and first[2].strip().lower() not in WEIGHT_NAMES and has_number(second):
        raise DatasetError(f"{path} calls its third column {first[2]!r}, and a third column holds weights; call it "
                           "weight if it does, or name the columns of nodes: csv:FILE,source=COLUMN,target=COLUMN")
    if has_texts is None:
        has_texts = not has_number((second if is_header and second else first)[:2])
    if has_texts or has_header is not None:
        return _from_texts(path, has_texts, has_header)
    return _from_numbers(path, options, num_columns, first if is_header else None)


def _from_numbers(path: Path, options: SourceOptions, num_columns: int,
                  header: list[str] | None) -> tuple[Ends, Ends, np.ndarray | None, tuple[str, ...]]:
    remarks = ()
    if header is not None:
        remarks = (f"the first line of {path.name} is its header: {','.join(header)[:MAX_SHOWN]}",)
    if num_columns == 2:
        table = read_table(path, np.int64, options.progress, options.scratch)
        return *columns(table if len(table) else np.empty((0, 2), np.int64)), None, remarks
    table = read_table(path, np.float64, options.progress)
    if len(table) == 0:
        table = np.empty((0, num_columns), np.int64)
    ends = table[:, :2]
    if not ((np.abs(ends) < LARGEST_EXACT).all() and (np.floor(ends) == ends).all()):
        raise DatasetError(f"{path} has node ids that are no whole numbers below 2^53, beside weights; expected ids in "
                           "its first two columns")
    ends = ends.astype(np.int64)
    return ends[:, 0], ends[:, 1], table[:, 2], (*remarks, f"the third column of {path.name} holds weights")


def _from_texts(path: Path, has_texts: bool, has_header: bool | None
                ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[str, ...]]:
    table = read_text_columns(path, has_header)
    ends = [np.array([cell.strip() for cell in column], dtype=str) for column in table.columns[:2]]
    if not has_texts:
        try:
            ends = [column.astype(np.int64) for column in ends]
        except (ValueError, OverflowError):
            raise DatasetError(f"{path} has node ids that are no whole numbers; expected whole numbers only") from None
    remarks = (table.remark + "; header=true or header=false says otherwise",)
    if len(table.columns) == 2:
        return *ends, None, remarks
    weight = column_values(table.columns[2])
    if weight.dtype.kind == "U":
        raise DatasetError(f"{path} has {weight[0].item()!r} in its third column; expected weights, which are numbers")
    return *ends, weight.astype(np.float64), (*remarks, f"the third column of {path.name} holds weights")


def _node_ids(labels: NodeFile | None, features: NodeFile | None, splits: NodeFile | None) -> np.ndarray | None:
    """Return the ids of all nodes, or None where nodes are numbered by rows."""
    if features is not None and features.ids is not None:
        if labels is not None and labels.ids is None:
            raise DatasetError(f"{features.path} has ids and {labels.path} has none, so their rows can't be matched; "
                               "put the id first in both, or append ,ids=true")
        return features.ids
    if labels is not None and labels.ids is not None:
        return labels.ids
    return None


def _values(labels: NodeFile | None, features: NodeFile | None, splits: NodeFile | None, ids: np.ndarray | None,
            name: str) -> dict:
    """Return labels, features and splits in the order of the nodes, as GivenGraph has them."""
    rows = None if ids is None else NodeRows(ids, name)
    values = {}
    for key, file, missing in (("labels", labels, np.nan), ("features", features, np.nan), ("splits", splits, "")):
        if file is None:
            values[key] = None
        elif file.ids is None or (rows is None and key != "splits"):
            values[key] = file.values
        elif rows is None:
            rows_here = NodeRows(np.arange(len(labels.values) if labels else len(file.values)), name)
            values[key] = rows_of(file, rows_here, False, missing)
        else:
            values[key] = rows_of(file, rows, key == "features", None if file.values.dtype.kind == "U" else missing)
    if values["splits"] is not None:
        values["splits"] = masks_from_words(values["splits"], len(values["splits"]), str(splits.path))
    return values


def _remarks(*files: NodeFile | None) -> tuple[str, ...]:
    return tuple(remark for file in files if file is not None for remark in file.remarks)
