"""The gate: columns of any library become ids, numbers, masks or labels here, and nowhere else.

Objects in Python and files come through the same functions. A column is taken apart once, into numbers or texts and a
mark for unknown values; then the role decides what it may be.

| the column holds | ids | numbers (features, weights) | masks | labels |
| --- | --- | --- | --- | --- |
| integers | int64; decimal texts if one is beyond int64 | as they are | 0 and 1 | as they are |
| True and False | refused | as they are | as they are | as they are |
| floating-point numbers | int64 if all are whole and exact | as they are | 0.0 and 1.0 | as they are |
| decimals | as integers, exactly | float64 | 0 and 1 | float64 |
| texts, bytes that are UTF-8 | texts | "True" and "False" | "True" and "False", "0" and "1" | words |
| texts and integers in one column of objects | texts | refused | refused | refused |
| categories, dictionaries | as their values | as their values | as their values | as their values |
| unknown: masked, null, None, NaN, NA | refused | NaN | refused | NaN, or no word |
| vectors of one length | refused | a matrix | refused | a matrix |
| times, complex numbers, records, other objects | refused | refused | refused | refused |

"Refused" is one sentence that names the column. Columns may be NumPy arrays (also masked, of objects, of a foreign byte
order), torch tensors, pandas, Arrow or Polars columns, CuPy arrays, lists, or `Cells` of a text file, which become
numbers where their role wants them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse

from hpcgnn.data.arrays import RowFile
from hpcgnn.errors import DatasetError

Ids: TypeAlias = np.ndarray | pa.LargeStringArray
MISSING_TEXTS = ("", "nan", "NaN", "NA", "None", "null")     # cells of text files, and texts that name no class
# Texts that often stand for "unknown", in small letters.
SUSPECTS = (*map(str.lower, MISSING_TEXTS), "unknown", "unlabeled", "unlabelled", "missing", "n/a", "#n/a", "n.a.",
            "<na>", "?", "-", "--", ".", "\\n", "undefined", "nat", "nil")
INT64 = np.iinfo(np.int64)
TRUTHS = {"True": True, "False": False, "true": True, "false": False, "TRUE": True, "FALSE": False}
COMMAS = re.compile(r"[-+]?\d+([.,' ]\d+)+")     # 1,5 and 1,234.5


@dataclass(frozen=True)
class Cells:
    """A column of a text file, (n,) pyarrow strings, before its role says whether its cells are numbers."""

    texts: pa.Array | pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: int) -> str:
        return self.texts[place].as_py()


@dataclass(frozen=True)
class Words:
    """Texts that repeat, each distinct text kept once: (n,) or (n, k) int32 codes into `word`, -1 if unknown."""

    code: np.ndarray
    word: tuple[str, ...]


@dataclass(frozen=True)
class _Column:
    """A column as `numbers` of `shape`, or as `texts`, one per value in row order.

    Integers beyond 64 bits are objects. With `is_mixed`, some of the texts were numbers in the column.
    """

    shape: tuple[int, ...]
    numbers: np.ndarray | None = None
    texts: pa.LargeStringArray | pa.DictionaryArray | None = None
    unknown: np.ndarray | None = None
    is_mixed: bool = False


def as_ids(values: Any, what: str) -> Ids:
    """Ids of nodes, (num_ids,) int64 or pyarrow texts; if one integer is beyond int64, all become decimal texts.

    `values` is a column of any library; `what` names it in the plural, to start a sentence: "g: the ends of edges".
    """
    if (type(values) is np.ndarray and values.dtype == np.int64 and values.dtype.isnative and values.ndim == 1) or (
            isinstance(values, pa.LargeStringArray) and not values.null_count and _first_empty(values) is None):
        return values
    column = _cell_ids(values, what) if isinstance(values, Cells) else _taken(values, what)
    if len(column.shape) != 1:
        raise DatasetError(f"{what} have shape {column.shape}; expected one id each")
    place = int(np.argmax(column.unknown)) if column.unknown is not None else None
    if column.texts is not None:
        texts = _decoded(column.texts)
        place = _first_empty(texts) if place is None else place
    if place is not None and not (column.texts is None and column.numbers.dtype.kind == "f"):
        raise DatasetError(f"{what} lack an id at place {place}; expected one each")
    return texts if column.texts is not None else _number_ids(column.numbers, column.unknown, values, what)


def as_numbers(values: Any, what: str) -> np.ndarray:
    """Numbers, such as features, weights or targets, (n, ...) bool, integer or float in their own type; NaN if unknown.

    `values` is a column or matrix of any library, `what` its name in the plural, to start a sentence. Byte order is
    this machine's; bfloat16 becomes float32.
    """
    column = _cell_values(values, what) if isinstance(values, Cells) else _taken(values, what)
    if column.texts is None:
        return _with_nan(column)
    words = None if column.unknown is not None or column.is_mixed else _words(column)
    if words is not None and 0 < len(words.word) <= 2 and set(words.word) <= set(TRUTHS):
        return np.array([TRUTHS[word] for word in words.word], bool)[words.code]
    known = pc.unique(_decoded(column.texts).drop_null()).to_pylist()
    odd = next((text for text in known if not is_number(text)), None)
    shown, way = _shown(column.texts) if odd is None else repr(odd[:40]), ": convert them first, as by .astype(float)"
    if odd is not None:
        way = ", with a point before decimals and nothing between thousands" if COMMAS.fullmatch(odd) else ""
    raise DatasetError(f"{what} hold texts such as {shown}; expected numbers{way}, or leave them out")


def as_labels(values: Any, what: str) -> np.ndarray | Words:
    """Labels: numbers, NaN if unknown, or the names of classes as Words.

    `values` is a column or matrix of any library, (num_nodes,) or (num_nodes, num_columns).
    """
    column = _cell_values(values, what) if isinstance(values, Cells) else _taken(values, what)
    if column.is_mixed:
        raise DatasetError(f"{what} are of several types, int and str among them; expected numbers or texts")
    return _with_nan(column) if column.texts is None else _words(column)


def as_words(values: Any, what: str) -> Words:
    """Return one word per node, such as the name of a split. Raises DatasetError for values that are not texts."""
    column = _taken(values, what)
    if column.texts is None and column.unknown is not None and column.unknown.all():
        return Words(np.full(column.shape, -1, np.int32), ())
    if column.texts is None or column.is_mixed:
        kinds = {"b": "True and False", "f": "floating-point numbers"}
        kind = "texts and integers" if column.is_mixed else kinds.get(column.numbers.dtype.kind, "integers")
        raise DatasetError(f"{what} are {kind}; expected texts")
    return _words(column)


def is_mask(values: Any, num_nodes: int, what: str) -> bool:
    """Whether a column marks nodes, rather than listing their ids.

    True and False are marks. So are 0 and 1, of any type of number, if there is one for each of more than two nodes: as
    ids they would name a node twice.
    """
    column = _taken(values, what)
    if column.texts is not None:
        return not column.is_mixed and len(column.texts) > 0 and set(_words(column).word) <= set(TRUTHS)
    if column.numbers.dtype == bool:
        return column.numbers.size > 0
    if not column.shape or column.shape[0] != num_nodes or not np.isin(column.numbers, (0, 1)).all():
        return False
    if len(column.shape) == 1 and len(np.unique(column.numbers)) == num_nodes:
        raise DatasetError(f"{what} are {column.numbers.tolist()}, which may be a mask or ids of a graph of "
                           f"{num_nodes} nodes; pass a mask of bool")
    return True


def as_mask(values: Any, what: str) -> np.ndarray:
    """Return marks of nodes, (num_nodes,) bool, or of several splits (num_nodes, num_splits), from bool or 0 and 1."""
    column = _taken(values, what)
    if column.unknown is not None:
        raise DatasetError(f"{what} lack a value at place {int(np.argmax(column.unknown))}; expected a mask of bool, "
                           "or of 0 and 1")
    if column.texts is not None:
        words, marks = _words(column), {**TRUTHS, "0": False, "1": True, "0.0": False, "1.0": True}
        is_lacking = np.isin(words.code, [-1, *(code for code, word in enumerate(words.word) if not word.strip())])
        odd = next((word for word in words.word if word not in marks), "")
        if is_lacking.any() or odd:
            held = f"lack a value at place {int(np.argmax(is_lacking))}" if is_lacking.any() else (
                f"hold texts such as {odd[:40]!r}")
            raise DatasetError(f"{what} {held}; expected a mask of bool, or of 0 and 1")
        return np.array([marks[word] for word in words.word], bool)[words.code]
    if column.numbers.dtype == bool:
        return column.numbers
    is_odd = ~np.isin(column.numbers, (0, 1))
    if is_odd.any():
        raise DatasetError(f"{what} hold {column.numbers[is_odd][0]}; expected a mask of bool, or of 0 and 1")
    return column.numbers.astype(bool)


def as_ends(values: Any, what: str) -> tuple[Any, Any]:
    """Return the columns of sources and of targets in an array of edges, (2, num_edges) or (num_edges, 2)."""
    column = _taken(values, what)
    shape = column.shape
    if len(shape) != 2 or 2 not in shape or shape == (2, 2):
        hint = "; pass a matrix as scipy.sparse.csr_matrix(A)" if len(shape) == 2 and shape[0] == shape[1] > 2 else (
            "; of two edges an array does not say which of the first two it is, so pass the pair" * (shape == (2, 2)))
        raise DatasetError(f"{what} have shape {shape}; expected (2, number of edges), (number of edges, 2), or a pair "
                           f"(sources, targets){hint}")
    if column.unknown is not None:
        raise DatasetError(f"{what} lack an id in edge {int(np.argwhere(column.unknown)[0][shape.index(2) - 1])}; "
                           "expected two each")
    grid = column.numbers
    if column.texts is not None:
        grid = _decoded(column.texts).to_numpy(zero_copy_only=False).reshape(shape)
    return (grid[0], grid[1]) if shape[0] == 2 else (grid[:, 0], grid[:, 1])


def as_features(values: Any, what: str = "features") -> np.ndarray | scipy.sparse.csr_matrix | RowFile:
    """Return features as a matrix, (num_nodes, num_features): dense, SciPy's CSR if they are sparse, or in a file.
    """
    if isinstance(values, RowFile):
        return values
    matrix = as_sparse(values)
    if matrix is not None:
        return scipy.sparse.csr_matrix(matrix)
    array = values if type(values) is np.memmap and values.dtype.kind in "biuf" else as_numbers(values, what)
    if array.ndim not in (1, 2):
        raise DatasetError(f"{what} are a {type(values).__name__} of shape {array.shape}; expected a matrix, one row "
                           "per node, dense or SciPy's")
    return array[:, None] if array.ndim == 1 else array


def as_sparse(values: Any) -> scipy.sparse.coo_matrix | scipy.sparse.csr_matrix | None:
    """Return a sparse matrix of SciPy, torch (any layout) or torch_sparse as SciPy's; None for other objects."""
    if scipy.sparse.issparse(values):
        return values
    if hasattr(values, "sparse_sizes") and hasattr(values, "coo"):            # torch_sparse.SparseTensor
        row, column, value = values.coo()
        row, column = as_numbers(row, "rows"), as_numbers(column, "columns")
        value = np.ones(len(row), np.float32) if value is None else as_numbers(value, "values")
        return scipy.sparse.coo_matrix((value, (row, column)), shape=tuple(values.sparse_sizes()))
    if "sparse" not in str(getattr(values, "layout", "")) or not hasattr(values, "detach"):
        return None
    if values.layout is not values.to_sparse_coo().layout:
        values = values.to_sparse_coo()
    values = values.detach().cpu()      # not coalesced, which would add in the values' own type, such as int8
    place, value = as_numbers(values._indices(), "places"), as_numbers(values._values(), "values")
    if len(place) != 2 or value.ndim != 1:
        raise DatasetError(f"a sparse tensor of shape {tuple(values.shape)} is no matrix of numbers; expected two "
                           "dimensions")
    return scipy.sparse.coo_matrix((value, tuple(place)), shape=tuple(values.shape))


def texts_of(ids: Ids) -> pa.LargeStringArray:
    """Return ids as texts, integers in decimal."""
    return ids if isinstance(ids, pa.Array) else pa.array(ids).cast(pa.large_string())


# Taking a column apart.


def _taken(values: Any, what: str) -> _Column:
    values = values.texts if isinstance(values, Cells) else values
    if isinstance(values, np.ma.MaskedArray):
        return _masked(_of_numpy(values.data, what), np.ma.getmaskarray(values))
    if isinstance(values, np.ndarray):
        return _of_numpy(values, what)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _of_arrow(values, what)
    if isinstance(values, list | tuple):
        return _of_list(values, what)
    if scipy.sparse.issparse(values):
        return _of_numpy(values.toarray(), what)
    if hasattr(values, "detach"):
        return _of_tensor(values, what)
    if hasattr(values, "iloc") and hasattr(values, "columns"):                # pandas.DataFrame
        return _beside([_taken(values.iloc[:, place], what) for place in range(values.shape[1])], len(values), what)
    if isinstance(values, pa.Table):
        return _beside([_taken(column, what) for column in values.columns], len(values), what)
    try:
        if hasattr(values, "to_arrow"):                                       # Polars
            return _taken(values.to_arrow(), what)
        if hasattr(values, "to_numpy") and hasattr(values, "array"):          # pandas.Series and Index
            values = values.to_numpy() if isinstance(values.dtype, np.dtype) else values.array
            if isinstance(values, np.ndarray):
                return _of_numpy(values, what)
        if hasattr(values, "__arrow_array__"):                                # other types of pandas
            return _of_arrow(pa.array(values, from_pandas=True), what)
        if hasattr(values, "__cuda_array_interface__") and hasattr(values, "get"):
            values = values.get()                                             # CuPy
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError, pa.ArrowException) as reason:
        raise DatasetError(f"{what} can't be read as an array: {str(reason).splitlines()[0]}") from None
    if array.dtype == object and array.ndim == 0:
        raise DatasetError(f"{what} are a {type(values).__name__}; expected an array or a list")
    return _of_numpy(array, what)


def _of_numpy(array: np.ndarray, what: str) -> _Column:
    if array.ndim == 0:
        raise DatasetError(f"{what} are a single value, {array.item()!r}; expected an array or a list")
    kind = array.dtype.kind
    if kind in "biu" or (kind == "f" and array.dtype.itemsize <= 8):
        return _Column(array.shape, array.astype(array.dtype.newbyteorder("="), copy=False))
    if kind == "f":
        return _Column(array.shape, array.astype(np.float64))
    if kind == "V" and array.dtype.name.startswith(("bfloat16", "float8")):
        return _Column(array.shape, array.astype(np.float32))
    if kind in "UST":
        return _of_objects(array.astype(object), what)
    if kind == "O":
        return _of_objects(array, what)
    named = {"M": "times", "m": "spans of time", "c": "complex numbers", "V": "records"}.get(kind, "no numbers")
    raise DatasetError(f"{what} are {named} ({array.dtype}); expected integers, floating-point numbers or texts: "
                       "convert them first")


def _of_tensor(values: Any, what: str) -> _Column:
    try:
        values = values.detach().cpu()
        if "sparse" in str(getattr(values, "layout", "")):
            values = values.to_dense()
        if getattr(values, "is_quantized", False) is True:
            values = values.dequantize()
        if any(word in str(values.dtype) for word in ("bfloat16", "float8")):
            values = values.float()
        return _of_numpy(np.asarray(values.resolve_neg().numpy() if hasattr(values, "resolve_neg") else values.numpy()),
                         what)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise DatasetError(f"{what} can't be read as an array: {str(reason).splitlines()[0]}") from None


def _of_list(values: list | tuple, what: str) -> _Column:
    # Python numbers keep their type: NumPy would turn 2^63 and -1 into floats, and 1 and "a" into texts.
    if not len(values):
        return _Column((0,), np.empty(0, np.float64), unknown=None)
    types = set(map(type, values))
    if types <= {int, float, bool} and len(types) == 1:
        with_type = {int: np.int64, float: np.float64, bool: bool}[next(iter(types))]
        try:
            return _Column((len(values),), np.array(values, with_type))
        except OverflowError:
            pass
    objects = np.empty(len(values), object)
    objects[:] = values
    return _of_objects(objects, what)


def _of_objects(array: np.ndarray, what: str) -> _Column:
    items = [_unboxed(item, what) for item in array.ravel().tolist()]
    unknown = np.array([item is None for item in items], bool).reshape(array.shape)
    known = [item for item in items if item is not None]
    has_unknown = unknown if unknown.any() else None
    types = set(map(type, known))
    if types & {list, tuple, np.ndarray, _Column}:
        return _stacked(items, what)
    if types <= {str} and known:
        return _Column(array.shape, texts=_arrow_texts(items, what), unknown=has_unknown)
    if types == {str, int}:
        texts = _arrow_texts([item if item is None else str(item) for item in items], what)
        return _Column(array.shape, texts=texts, unknown=has_unknown, is_mixed=True)
    if not types <= {int, float, bool, Decimal}:
        named = " and ".join(sorted(kind.__name__ for kind in types)[:3])
        raise DatasetError(f"{what} are of {named}, a mix of types or none that is known; expected all texts, as by "
                           ".astype(str), or all numbers")
    return _Column(array.shape, _number_array(items, types).reshape(array.shape), unknown=has_unknown)


def _number_array(items: list, types: set[type]) -> np.ndarray:
    # Numbers of Python as one array, unknown ones as 0 or NaN; integers stay integers.
    if types == {bool}:
        return np.array([bool(item) for item in items])
    if types <= {int, bool, Decimal} and types and all(item is None or item == int(item) for item in items):
        whole = [0 if item is None else int(item) for item in items]
        try:
            return np.array(whole, np.int64)
        except OverflowError:
            return np.array(whole, object)
    if int in types and all(item is None or (math.isfinite(item) and item == int(item)) for item in items) and any(
            type(item) is int and abs(item) >= 1 << 53 for item in items):
        exact = np.empty(len(items), object)      # whole numbers; float64 would round some of them
        exact[:] = [0 if item is None else int(item) for item in items]
        return exact
    return np.array([math.nan if item is None else item for item in items], np.float64)


def _unboxed(item: Any, what: str) -> Any:
    kind = type(item)
    if kind is str or kind is int or item is None or kind is bool:
        return item
    if kind is float:
        return None if item != item else item
    if isinstance(item, np.generic):
        return _unboxed(item.item(), what) if item.dtype.kind in "biufUSO" else item
    if isinstance(item, bytes):
        try:
            return item.decode("utf-8")
        except UnicodeDecodeError:
            raise DatasetError(f"{what} hold bytes that are no UTF-8, such as {item[:40]!r}; decode them first"
                               ) from None
    if isinstance(item, Decimal):
        return None if item.is_nan() else item
    if kind.__name__ in ("NAType", "NaTType", "MaskedConstant"):
        return None
    if isinstance(item, str | int | float):
        return _unboxed({True: str, False: int if isinstance(item, int) else float}[isinstance(item, str)](item), what)
    if isinstance(item, np.ndarray) or hasattr(item, "detach"):
        return _unboxed(item.item(), what) if item.ndim == 0 else _taken(item, what)
    return _taken(item, what) if isinstance(item, list | tuple | pa.Array) or hasattr(item, "iloc") else item


def _arrow_texts(items: list, what: str) -> pa.LargeStringArray:
    try:
        return pa.array(items, pa.large_string())
    except UnicodeEncodeError as reason:
        raise DatasetError(f"{what} hold {reason.object[:40]!r}, which is no text that UTF-8 can hold; replace its "
                           "surrogates") from None


def _stacked(rows: list, what: str) -> _Column:
    shapes = {row.shape if isinstance(row, _Column) else None for row in rows}
    if len(shapes) > 1:
        raise DatasetError(f"{what} hold vectors of several lengths; expected equally many values per row")
    inner = next(iter(shapes))
    if any(row.texts is not None for row in rows):
        if not all(row.texts is not None for row in rows):
            raise DatasetError(f"{what} are a mix of types; expected all texts or all numbers")
        texts = pa.concat_arrays([_decoded(row.texts) for row in rows])
        column = _Column((len(rows), *inner), texts=texts, is_mixed=any(row.is_mixed for row in rows))
    else:
        column = _Column((len(rows), *inner), _joined([row.numbers for row in rows], np.stack))
    if all(row.unknown is None for row in rows):
        return column
    return _masked(column, np.stack([np.zeros(inner, bool) if row.unknown is None else row.unknown for row in rows]))


def _joined(arrays: list[np.ndarray], join: Callable) -> np.ndarray:
    # Joins arrays; signed with unsigned integers, which NumPy would turn into floats, stay exact.
    if {array.dtype.kind for array in arrays} == {"i", "u"}:
        arrays = [array.astype(object) for array in arrays]
    return join(arrays)


def _beside(columns: list[_Column], num_rows: int, what: str) -> _Column:
    if any(column.texts is not None for column in columns):
        if not all(column.texts is not None for column in columns):
            raise DatasetError(f"{what} are columns of numbers and of texts; expected one kind")
        grid = np.stack([_decoded(column.texts).to_numpy(zero_copy_only=False) for column in columns], axis=1)
        return _of_objects(grid, what)
    if not columns:
        return _Column((num_rows, 0), np.empty((num_rows, 0), np.float32))
    joined = _Column((num_rows, len(columns)),
                     _joined([column.numbers for column in columns], lambda arrays: np.stack(arrays, axis=1)))
    masks = [np.zeros(num_rows, bool) if column.unknown is None else column.unknown for column in columns]
    return _masked(joined, np.stack(masks, axis=1))


def _of_arrow(array: pa.Array | pa.ChunkedArray, what: str) -> _Column:
    kind, known = array.type, pa.types
    try:
        if known.is_dictionary(kind):
            return _of_dictionary(array, what)
        if known.is_string(kind) or known.is_large_string(kind) or known.is_binary(kind) or (
                known.is_large_binary(kind) or str(kind) in ("string_view", "binary_view")):
            return _texts(_one(array.cast(pa.large_string())))
        array = _one(array)
        if isinstance(array, pa.ExtensionArray):
            if not str(kind).startswith(("extension<arrow.fixed_shape_tensor", "extension<arrow.bool8")):
                raise DatasetError(f"{what} are of Arrow's type {kind}; expected numbers or texts: convert them first")
            return _of_numpy(array.to_numpy_ndarray(), what) if hasattr(array, "to_numpy_ndarray") else _masked(
                _Column((len(array),), array.storage.fill_null(0).to_numpy().astype(bool)), _nulls(array))
        if known.is_run_end_encoded(kind):
            return _of_arrow(pc.run_end_decode(array), what)
        if known.is_null(kind):
            return _Column((len(array),), np.full(len(array), np.nan), unknown=np.ones(len(array), bool))
        if known.is_floating(kind):
            return _masked(_Column((len(array),), array.to_numpy(zero_copy_only=False)), _nulls(array))
        if known.is_integer(kind) or known.is_boolean(kind):
            filled = array.fill_null(False if known.is_boolean(kind) else 0) if array.null_count else array
            return _masked(_Column((len(array),), filled.to_numpy(zero_copy_only=False)), _nulls(array))
        if known.is_decimal(kind):
            return _of_list(array.to_pylist(), what)
        if known.is_list(kind) or known.is_large_list(kind) or known.is_fixed_size_list(kind):
            return _of_lists(array, what)
    except pa.ArrowException as reason:
        raise DatasetError(f"{what} of Arrow's type {kind} can't be read: {str(reason).splitlines()[0]}") from None
    raise DatasetError(f"{what} are of Arrow's type {kind}; expected numbers or texts: convert them first")


def _of_dictionary(array: pa.Array | pa.ChunkedArray, what: str) -> _Column:
    if isinstance(array, pa.ChunkedArray):
        array = _one(array.unify_dictionaries())
    values = array.dictionary
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return _of_arrow(array.dictionary_decode(), what)
    return _texts(pa.DictionaryArray.from_arrays(array.indices, values.cast(pa.large_string())))


def _of_lists(array: pa.Array, what: str) -> _Column:
    lengths = pc.unique(pc.list_value_length(array)).to_pylist()
    if None in lengths:
        raise DatasetError(f"{what} lack a vector at place {int(np.argmax(_nulls(array)))}; expected one in each row")
    if len(lengths) > 1:
        raise DatasetError(f"{what} hold vectors of several lengths; expected equally many values per row")
    flat = _of_arrow(array.flatten(), what)
    shape = (len(array), lengths[0] if lengths else 0, *flat.shape[1:])
    return _Column(shape, None if flat.numbers is None else flat.numbers.reshape(shape), flat.texts,
                   None if flat.unknown is None else flat.unknown.reshape(shape), flat.is_mixed)


def _texts(texts: pa.LargeStringArray | pa.DictionaryArray) -> _Column:
    has_null = texts.null_count or (isinstance(texts, pa.DictionaryArray) and texts.dictionary.null_count)
    unknown = _nulls(_decoded(texts)) if has_null else None
    if unknown is not None and unknown.all() and len(texts):
        return _Column((len(texts),), np.full(len(texts), np.nan), unknown=unknown)
    return _Column((len(texts),), texts=texts, unknown=unknown)


def _one(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)


def _nulls(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)


def _masked(column: _Column, unknown: np.ndarray) -> _Column:
    unknown = np.broadcast_to(unknown, column.shape)
    if column.unknown is not None:
        unknown = unknown | column.unknown
    if not unknown.any():
        return column
    texts = column.texts
    if texts is not None:
        texts = pc.if_else(pa.array(unknown.reshape(-1)), pa.scalar(None, pa.large_string()), _decoded(texts))
    return _Column(column.shape, column.numbers, texts, unknown, column.is_mixed)


# Cells of text files.


def _cell_ids(cells: Cells, what: str) -> _Column:
    # Whole numbers as Python writes them are integers, so 007 stays a text; one other cell makes all cells texts.
    texts = pc.utf8_trim_whitespace(_one(cells.texts.cast(pa.large_string())))
    with suppress(pa.ArrowException):
        numbers = texts.cast(pa.int64())
        if not texts.null_count and numbers.cast(pa.large_string()).equals(texts):
            return _Column((len(texts),), numbers.to_numpy())
    return _Column((len(texts),), texts=texts, unknown=_nulls(texts) if texts.null_count else None)


def _cell_values(cells: Cells, what: str) -> _Column:
    # Cells are int64 if all are whole numbers, float64 if all are numbers or missing, bool if all are True or False,
    # else texts.
    texts = pc.utf8_trim_whitespace(_one(cells.texts.cast(pa.large_string())))
    missing = pc.or_(pc.is_in(texts, value_set=pa.array(MISSING_TEXTS, pa.large_string())), pc.is_null(texts))
    unknown = missing.to_numpy(zero_copy_only=False)
    known = pc.if_else(missing, pa.scalar(None, pa.large_string()), texts)
    with suppress(pa.ArrowException):
        return _masked(_of_arrow(known.cast(pa.int64()), what), unknown)
    with suppress(pa.ArrowException):
        return _masked(_of_arrow(known.cast(pa.float64()), what), unknown)
    if not unknown.any() and len(texts) and set(pc.unique(known).to_pylist()) <= {"True", "False"}:
        return _Column((len(texts),), pc.equal(known, "True").to_numpy(zero_copy_only=False))
    return _Column((len(texts),), texts=known, unknown=unknown if unknown.any() else None)


# From a column to its role.


def _number_ids(numbers: np.ndarray, unknown: np.ndarray | None, given: Any, what: str) -> Ids:
    if not len(numbers):
        return np.empty(0, np.int64)
    kind = numbers.dtype.kind
    if kind == "b":
        raise DatasetError(f"{what} are True and False; expected texts or integers")
    if kind == "f":
        if unknown is not None or not (np.isfinite(numbers).all() and (np.floor(numbers) == numbers).all()):
            raise DatasetError(f"{what} hold numbers that are missing or have a fraction; expected texts or integers")
        is_narrow = any(word in str(getattr(given, "dtype", "")) for word in ("bfloat16", "float8"))
        largest, exact = np.abs(numbers).max(), 256 if is_narrow else 2 << np.finfo(numbers.dtype).nmant
        if largest >= exact:
            raise DatasetError(f"{what} are floating-point numbers as large as {largest:.0f}, which have lost digits "
                               "already; read that column as integers or texts, so that ids stay as they are")
        return numbers.astype(np.int64)
    if kind == "O" or (kind == "u" and numbers.max() > INT64.max):
        return pa.array([str(number) for number in numbers.tolist()], pa.large_string())
    return numbers.astype(np.int64)


def _with_nan(column: _Column) -> np.ndarray:
    numbers = column.numbers
    if numbers.dtype == object:
        numbers = numbers.astype(np.float64)
    if column.unknown is None:
        return numbers
    numbers = numbers.copy() if numbers.dtype.kind == "f" else numbers.astype(np.float64)
    numbers[column.unknown] = np.nan
    return numbers


def _words(column: _Column) -> Words:
    texts = column.texts
    encoded = texts if isinstance(texts, pa.DictionaryArray) else texts.dictionary_encode()
    code = encoded.indices.fill_null(-1).to_numpy().astype(np.int32)
    word = encoded.dictionary.to_pylist()
    # Only words that occur, each once: categories may be unused, and one may be null.
    place_of: dict[str, int] = {}
    place = np.full(len(word) + 1, -1, np.int32)
    for number in np.unique(code[code >= 0]).tolist():
        if word[number] is not None:
            place[number] = place_of.setdefault(word[number], len(place_of))
    return Words(place[code].reshape(column.shape), tuple(place_of))


def _decoded(texts: pa.LargeStringArray | pa.DictionaryArray) -> pa.LargeStringArray:
    return texts.dictionary_decode() if isinstance(texts, pa.DictionaryArray) else texts


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_empty(texts: pa.LargeStringArray) -> int | None:
    place = pc.index(pc.binary_length(texts), 0).as_py() if len(texts) else -1
    return None if place < 0 else place


def _shown(texts: pa.Array) -> str:
    return repr(next((text for text in (item.as_py() for item in texts) if text is not None), "")[:40])
