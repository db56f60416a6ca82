"""Files of labels, features and splits, a row a node: under the nodes' ids, or in the order of rows.

What the rows belong to, and the form of labels and splits, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.datasets.arrays import load_array
from hpcgnn.datasets.ids import NodeRows
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.row_files import RowFile, in_pieces
from hpcgnn.datasets.tables import read_table
from hpcgnn.datasets.text_columns import (
    MAX_SHOWN,
    column_ids,
    column_values,
    first_rows,
    has_number,
    read_text_columns,
)
from hpcgnn.errors import DatasetError

ID_NAMES = ("id", "node", "node_id", "nodeid", "name", "key", "vertex", "vertex_id", "index")
VALUE_NAMES = ("label", "labels", "class", "y", "target", "split", "role", "set")
SAMPLED_CELLS = 1000
FEATURES = np.float32    # the type of numbers in a file of features, and of no other


@dataclass(frozen=True)
class NodeFile:
    """Hold one file of values of nodes.

    Attributes
    ----------
    path : Path
    ids : (num_rows,) int64 or str, or None where row k belongs to node k
    values : (num_rows, num_columns) number, or (num_rows,) text
    remarks : tuple of str
    """

    path: Path
    ids: np.ndarray | None
    values: np.ndarray
    remarks: tuple[str, ...] = ()


def read_node_file(path: Path, dtype: type, options: SourceOptions, has_ids: bool | None = None,
                   has_header: bool | None = None) -> NodeFile:
    """Read labels, features or splits from text or .npy.

    The first of several columns is the node's id if a header calls it so (id, node, name, ...), or if it holds texts;
    has_ids says what it is where that can't tell.

    Parameters
    ----------
    dtype : type              of numbers: np.float64 or np.float32
    has_ids, has_header : bool or None      None finds out

    Raises
    ------
    DatasetError              a file that is missing or malformed, texts among several columns of values
    """
    if path.suffix == ".npy":
        return NodeFile(path, None, _kept(_matrix(load_array(path), path), dtype))
    first, second = (*first_rows(path, 2), [], [])[:2]
    is_header = has_header or (has_header is None and not has_number(first))
    if len(first) < 2:
        has_ids = False
    elif has_ids is None and (_names_id(first) if is_header else _mixes(first)):
        has_ids = True
    if not has_ids and has_header is None and _is_numeric(second if is_header and second else first):
        remarks = (f"the first line of {path.name} is its header: {','.join(first)[:MAX_SHOWN]}",) if is_header else ()
        table = read_table(path, dtype, options.progress, options.scratch if dtype is FEATURES else None)
        matrix = _matrix(table, path)
        if has_ids is None and _counts_rows(matrix):
            raise DatasetError(f"{path} counts its rows in the first column, 0, 1, 2 and so on; append ,ids=true if "
                               "these are the nodes' ids, or ,ids=false if they are values like the others")
        return NodeFile(path, None, matrix, remarks)
    options.progress(f"reading {path.name}", None)
    table = read_text_columns(path, has_header)
    columns = table.columns
    if has_ids is None and len(columns) > 1 and column_values(columns[0][:SAMPLED_CELLS]).dtype.kind == "U":
        has_ids = True
    ids = column_ids(columns.pop(0)) if has_ids else None
    remarks = (table.remark + ("" if ids is None else f"; column {(table.header or ['0'])[0]} holds the nodes' ids"),)
    return NodeFile(path, ids, _values(columns, table.header, path, dtype), remarks)


def _names_id(header: list[str]) -> bool:
    """Tell whether a header calls its first column an id, or its only other one something of nodes."""
    names = [cell.strip().lower() for cell in header]
    return names[0] in ID_NAMES or (len(names) == 2 and names[1] in VALUE_NAMES)


def _counts_rows(matrix: np.ndarray) -> bool:
    step = max(1, len(matrix) // SAMPLED_CELLS)     # a file is looked at in pieces
    return matrix.shape[1] > 1 and len(matrix) > 2 and all(
        np.array_equal(matrix[first:first + step][:, 0], np.arange(first, min(first + step, len(matrix))))
        for first in range(0, len(matrix), step))


def _mixes(cells: list[str]) -> bool:
    """Tell whether a row of data holds numbers and texts: then its first cell is an id."""
    return any(cell.strip() and not has_number([cell]) for cell in cells)


def _is_numeric(cells: list[str]) -> bool:
    return bool(cells) and all(has_number([cell]) for cell in cells)


def rows_of(file: NodeFile, rows: NodeRows, is_complete: bool, missing: object) -> np.ndarray:
    """Return a file's values in the order of the nodes; nodes that it does not name get `missing`.

    Raises
    ------
    DatasetError              an id that no node has, one twice, or a node without a row where all must have one
    """
    place = rows.find(file.ids, f"a row of {file.path.name} that leads")
    NodeRows(file.ids, str(file.path))           # refuses an id that the file names twice
    if is_complete and len(place) < len(rows):
        lost = int(np.argmin(np.isin(np.arange(len(rows)), place)))
        raise DatasetError(f"{file.path} has no row for node {rows.id_of(lost)!r}; expected one for each node")
    shape = (len(rows), *file.values.shape[1:])
    kind = object if file.values.dtype.kind == "U" else file.values.dtype
    if file.values.dtype.kind in "iu" and len(place) < len(rows):
        kind = np.float64
    values = np.full(shape, missing, dtype=kind)
    values[place] = file.values
    return values


def _values(columns: list[list[str]], header: tuple[str, ...] | None, path: Path, dtype: type) -> np.ndarray:
    if len(columns) == 1:
        values = column_values(columns[0])
        return values if values.dtype.kind == "U" else _matrix(values.astype(dtype), path)
    converted = [column_values(column) for column in columns]
    for number, values in enumerate(converted):
        if values.dtype.kind == "U":
            name = header[len(header) - len(columns) + number] if header else str(number)
            raise DatasetError(f"{path} has the column {name!r}, which holds texts such as {values[0].item()!r}; "
                               "expected numbers, or drop the column")
    return _matrix(np.column_stack(converted).astype(dtype) if converted else np.empty((0, 0), dtype), path)


def _kept(matrix: np.ndarray, dtype: type) -> np.ndarray | RowFile:
    """Return features as what reads them in pieces; labels and splits are small."""
    return in_pieces(matrix) if dtype is FEATURES else matrix


def _matrix(matrix: np.ndarray | RowFile, path: Path) -> np.ndarray | RowFile:
    matrix = matrix[:, None] if matrix.ndim == 1 and matrix.dtype.kind != "U" else matrix
    if matrix.size == 0 or matrix.dtype.kind not in "iufbU" or matrix.ndim > 2:
        raise DatasetError(f"{path} holds {matrix.dtype} of shape {matrix.shape}; expected a number or a row of "
                           "numbers a node")
    return matrix
