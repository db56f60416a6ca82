"""Files of labels, features and splits with one row per node: by the nodes' ids, or in the order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpcgnn.data.arrays import RowFile, in_pieces, load_array
from hpcgnn.data.columns import Cells, Ids
from hpcgnn.data.ids import NodeRows
from hpcgnn.data.options import SourceOptions, silent
from hpcgnn.data.tables import ID_NAMES
from hpcgnn.data.text_table import (
    INTEGER,
    NUMBER,
    CellError,
    TextTable,
    checked_ids,
    is_like_number,
    read_columns,
    read_matrix,
)
from hpcgnn.errors import DatasetError

VALUE_NAMES = ("label", "labels", "class", "y", "target", "split", "role", "set")
BLOCK_ROWS = 1 << 16
FEATURES = np.float32    # type of numbers in files of features only


@dataclass(frozen=True)
class NodeFile:
    """The content of one file of values per node.

    ids : (num_rows,) int64 or texts, or None if row k belongs to node k
    values : (num_rows, num_columns) number, or (num_rows,) cells that hold texts
    skipped : tuple of str           lines and columns that were left out
    columns : tuple of str           names of the columns of values, if a header has them
    dubious : tuple of str           warnings about guesses that may be wrong
    begins_at_0 : bool               the only value of the first row is 0, as pandas names a column without a name
    """

    path: Path
    ids: Ids | None
    values: np.ndarray | RowFile | Cells
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    dubious: tuple[str, ...] = ()
    begins_at_0: bool = False


def read_node_file(path: Path, dtype: type, options: SourceOptions, has_ids: bool | None = None,
                   has_header: bool | None = None) -> NodeFile:
    """Read labels, features or splits from text or .npy.

    The first of several columns holds ids if its header says so (id, node, name, ...), or if it holds texts. An unnamed
    first column that counts the rows is left out.

    Parameters
    ----------
    dtype : type              type of numbers: np.float64 or np.float32
    has_ids, has_header : bool or None      None: found from the content
    """
    if path.suffix == ".npy":
        matrix = _matrix(load_array(path), path)
        return NodeFile(path, None, in_pieces(matrix) if dtype is FEATURES else matrix)
    table = TextTable(path, has_header, options.progress)
    scratch = options.scratch if dtype is FEATURES else None
    is_exact = options.normalize_features == "standard"      # times, for example, are rounded once standardized
    if not table.num_columns and table.comments:
        raise DatasetError(f"{path} holds comments only, such as {table.comments[0]!r}; expected one row per node, or "
                           "a line of column names before values that begin with # or %")
    if table.num_columns < 2:
        has_ids = False
    elif has_ids is None and _shows_ids(table):
        has_ids = True
    values = None
    if not has_ids:
        try:
            values = _read_values(table, 0, dtype, scratch, is_exact)
        except CellError as error:
            if error.column != 0 or has_ids is False or ("," in error.text and is_like_number(error.text)):
                raise
            has_ids = True      # a text among the numbers of the first column
    ids = None
    if has_ids:
        ids = checked_ids(read_columns(table, [INTEGER] + [None] * (table.num_columns - 1))[0], path)
        values = _read_values(table, 1, dtype, scratch, is_exact)
    columns, skipped = (table.header or ())[bool(has_ids):], table.skipped
    if isinstance(values, np.ndarray | RowFile):
        if has_ids is None and table.num_columns > 1 and _counts_rows(values):
            if not table.num_unnamed:
                raise DatasetError(f"{path} counts its rows in the first column, 0, 1, 2 and so on; append ,ids=true "
                                   "if these are the nodes' ids, or ,ids=false if they are values like the others")
            values, columns = _read_values(table, 1, dtype, scratch, is_exact), columns[1:]
            skipped += (f"the first column of {path.name}, which has no name and counts the rows",)
        elif has_ids is None and table.num_unnamed:
            raise DatasetError(f"{path} has a first column without a name, which does not count the rows; append "
                               ",ids=true if it holds the nodes' ids, or ,ids=false if it is a value like the others")
        is_pair = dtype is not FEATURES and values.shape[1] == 2
        if has_ids is None and ((is_pair and _are_distinct(values)) or (
                table.header is None and _permutes_rows(values))):
            raise DatasetError(f"{path} begins each row with another whole number, as ids are; append ,ids=true "
                               "if these are the nodes' ids, or ,ids=false if they are values like the others")
    remarks = table.remarks
    if ids is not None:
        remarks = (f"{table.remarks[0]}; column {(table.header or ['0'])[0]} holds the nodes' ids", *table.remarks[1:])
    dubious = ()
    counts = table.header is None and table.first == tuple(map(str, range(len(table.first))))
    if counts and len(table.first) > 1:
        dubious = (f"the first row of {path.name} is {','.join(table.first)[:12]}, as pandas writes for columns "
                   "without names, and was read as values; remove it if it is a header",)
    return NodeFile(path, ids, values, remarks, skipped, columns, dubious, counts and len(table.first) == 1)


def read_ids(path: Path) -> Ids:
    """Read one id per line, int64 or texts, in their order. DatasetError for more columns, or an id given twice."""
    table = TextTable(path, None, silent)
    if table.num_columns != 1:
        raise DatasetError(f"{path} has {table.num_columns} columns; expected one id per line")
    return NodeRows(checked_ids(read_columns(table, [INTEGER])[0], path), str(path)).ids


def names_ids(path: Path) -> bool:
    """Whether the header of a text file says that its first column holds ids."""
    table = None if path.suffix == ".npy" else TextTable(path)
    return table is not None and table.header is not None and _shows_ids(table)


def _shows_ids(table: TextTable) -> bool:
    # The first column holds ids if the header names it so, if the header names the only other column as a value of
    # nodes (label, split, ...), or if the first row has a text there; without a header, anywhere.
    is_text = [not is_like_number(cell) for cell in table.first]
    if table.header is None:
        return any(is_text)
    names = [name.lower() for name in table.header]
    if names[0] not in ID_NAMES and (late := set(names[1:]) & set(ID_NAMES)):
        raise DatasetError(f"{table.path} calls a column {late.pop()!r}, as ids are called, and begins with another; "
                           "put the ids first, or append ,ids=false if they are values like the others")
    return names[0] in ID_NAMES or (len(names) == 2 and names[1] in VALUE_NAMES and not table.num_unnamed) or (
        any(is_text[:1]))


def _read_values(table: TextTable, first: int, dtype: type, scratch: Path | None, is_exact: bool
                 ) -> np.ndarray | RowFile | Cells:
    if table.num_columns - first != 1 or dtype is FEATURES:
        return _matrix(read_matrix(table, np.float64 if is_exact else dtype, scratch, first), table.path)
    column = read_columns(table, [None] * first + [NUMBER])[0] if table.num_columns else np.empty(0)
    return _matrix(column, table.path) if isinstance(column, np.ndarray) else Cells(column)


def _counts_rows(matrix: np.ndarray | RowFile) -> bool:
    if matrix.shape[1] < 2 or len(matrix) < 3:
        return False
    start = matrix[:1][0, 0]
    return start in (0, 1) and all(
        np.array_equal(matrix[first:first + BLOCK_ROWS][:, 0],
                       start + np.arange(first, min(first + BLOCK_ROWS, len(matrix))))
        for first in range(0, len(matrix), BLOCK_ROWS))


def first_column(matrix: np.ndarray | RowFile) -> np.ndarray:
    return np.concatenate([matrix[first:first + BLOCK_ROWS][:, 0] for first in range(0, len(matrix), BLOCK_ROWS)])


def _permutes_rows(matrix: np.ndarray | RowFile) -> bool:
    # Whether the first column holds each number from 0, or from 1, once, in another order.
    if matrix.shape[1] < 2 or not _are_distinct(matrix[:BLOCK_ROWS]):
        return False
    numbers = first_column(matrix)
    return numbers.min() in (0, 1) and np.array_equal(np.sort(numbers), numbers.min() + np.arange(len(numbers)))


def _are_distinct(matrix: np.ndarray | RowFile) -> bool:
    numbers = np.asarray(matrix[:, 0])
    return len(numbers) > 2 and bool((np.floor(numbers) == numbers).all()) and len(np.unique(numbers)) == len(numbers)


def rows_of(file: NodeFile, rows: NodeRows, is_complete: bool) -> np.ndarray | Cells:
    """A file's values in the order of the nodes; missing for nodes that it does not name."""
    place = rows.find(file.ids, f"a row of {file.path.name} that refers")
    NodeRows(file.ids, str(file.path))           # raises an error if the file names an id twice
    row = np.full(len(rows), -1)
    row[place] = np.arange(len(place))
    if is_complete and (row < 0).any():
        lost = int(np.argmax(row < 0))
        raise DatasetError(f"{file.path} has no row for node {rows.id_of(lost)!r}; expected one for each node")
    if isinstance(file.values, Cells):
        return Cells(file.values.texts.take(pa.array(row, mask=row < 0)))
    values = file.values[np.maximum(row, 0)] if len(file.values) else np.empty((len(rows), *file.values.shape[1:]))
    if (row < 0).any():
        values = values.astype(np.result_type(values.dtype, np.float32))
        values[row < 0] = np.nan
    return values


def _matrix(matrix: Any, path: Path) -> np.ndarray | RowFile:
    matrix = matrix[:, None] if matrix.ndim == 1 and matrix.dtype.kind != "U" else matrix
    if matrix.shape[:1] == (0,):
        raise DatasetError(f"{path} holds no rows; expected a number or a row of numbers per node")
    if matrix.size == 0 or matrix.dtype.kind not in "iufbU" or matrix.ndim not in (1, 2):
        raise DatasetError(f"{path} holds {matrix.dtype} of shape {matrix.shape}; expected a number or a row of "
                           "numbers per node")
    return matrix
