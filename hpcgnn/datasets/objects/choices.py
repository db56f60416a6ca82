"""What a user may say of an object beside the object itself, and how arrays of any library become NumPy's.

No kind of object is known here, and no library but NumPy and SciPy is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.datasets.row_files import RowFile
from hpcgnn.errors import DatasetError

ROWS = ("sources", "destinations")


@dataclass(frozen=True)
class Choices:
    """Say where in an object things are, or give them as arrays.

    Attributes
    ----------
    name : str or None       of the dataset
    ignore : None, False, or one or several labels or columns
                             what is left out: labels become unknown, columns are no features; False takes each label
                             but NaN for a class, also -1
    features, labels, splits, edge_weight, node_ids : array, or name of a column or attribute, or list of such names;
                             None takes what goes by a usual name; False leaves it out. Splits may be
                             the number of one of several, the columns of masks
    nodes : table or None    a row a node, beside a table of edges
    source, target : str, int or None     columns of a table of edges, by name or by position
    rows : {"sources", "destinations"}    what the rows of a matrix are: A[u, v] is the arc u -> v, or v -> u
    """

    name: str | None = None
    features: Any = None
    labels: Any = None
    splits: Any = None
    edge_weight: Any = None
    node_ids: Any = None
    nodes: Any = None
    source: str | int | None = None
    target: str | int | None = None
    rows: str = "sources"
    ignore: Any = None

    def __post_init__(self) -> None:
        if self.rows not in ROWS:
            raise DatasetError(f"rows is {self.rows!r}; expected sources (A[u, v] is the arc u -> v) or destinations")


    @property
    def split_column(self) -> int | None:
        """Which of several splits that masks hold; None where nobody chose one."""
        return self.splits if isinstance(self.splits, int) and not isinstance(self.splits, bool) else None

    def ignored(self, held: Iterable[str]) -> tuple[set[str], tuple | None]:
        """Return the held columns that are left out, and the labels; None where each label but NaN is a class."""
        if self.ignore is None:
            return set(), ()
        if self.ignore is False or self.ignore == "none":
            return set(), None
        listed = self.ignore if isinstance(self.ignore, list | tuple | set) else [self.ignore]
        columns = {item for item in listed if isinstance(item, str) and item in set(held)}
        return columns, tuple(item for item in listed if item not in columns)


def is_name(choice: Any) -> bool:
    """Tell whether a choice names columns or attributes, one or a list of them, and is no array."""
    return isinstance(choice, str) or (isinstance(choice, list | tuple) and len(choice) > 0
                                       and all(isinstance(item, str) for item in choice))


def array_of(value: Any, what: str = "an array") -> np.ndarray:
    """Return an array of any library as NumPy's: torch and other tensors, pandas and Arrow columns, lists.

    Raises
    ------
    DatasetError             what has no such form
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        elif hasattr(value, "to_numpy"):
            value = value.to_numpy()
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as reason:
        raise DatasetError(f"{what} can't be read as an array: {str(reason).splitlines()[0]}") from None
    return _stacked(array, what) if array.dtype == object and array.ndim == 1 else array


def features_of(value: Any) -> np.ndarray | scipy.sparse.csr_matrix | RowFile:
    """Return features as a matrix, (num_nodes, num_features): dense, SciPy's CSR where they are sparse, or in a file.

    Raises
    ------
    DatasetError      neither a vector nor a matrix
    """
    if isinstance(value, RowFile):
        return value
    if scipy.sparse.issparse(value):
        return scipy.sparse.csr_matrix(value)
    if getattr(value, "is_sparse", False) is True:
        value = value.coalesce()
        place, values = value.indices().cpu().numpy(), value.values().cpu().numpy()
        return scipy.sparse.csr_matrix((values, tuple(place)), shape=tuple(value.shape))
    array = array_of(value, "features")
    if array.ndim not in (1, 2):
        raise DatasetError(f"features are a {type(value).__name__} of shape {array.shape}; expected a matrix, a row a "
                           "node, dense or SciPy's")
    return array[:, None] if array.ndim == 1 else array


def named_splits(found: dict[str, Any]) -> dict[str, np.ndarray] | None:
    """Return the masks among named values, train_mask, val_mask (valid_mask) and test_mask, by split; None for none."""
    masks = {key: array_of(found[f"{key}_mask"]) for key in ("train", "val", "valid", "test")
             if found.get(f"{key}_mask") is not None}
    return masks if "train" in masks else None


def split_choice(splits: Any) -> Any:
    """Return splits that were given as arrays of any library, as NumPy's."""
    if isinstance(splits, dict):
        return {key: array_of(value, f"the split {key}") for key, value in splits.items()}
    if isinstance(splits, list | tuple) and len(splits) == 3 and not isinstance(splits[0], str):
        return tuple(array_of(part, "a split") for part in splits)
    return array_of(splits, "splits")


def first_of(names: Iterable[str], held: Iterable[str]) -> str | None:
    """Return the name that is held, whatever its case, of the first of usual names that is; None for none."""
    by_lower = {str(name).lower(): name for name in reversed(list(held))}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _stacked(array: np.ndarray, what: str) -> np.ndarray:
    """Return a column of vectors as a matrix; other objects stay as they are."""
    if not len(array) or not isinstance(array[0], list | tuple | np.ndarray) or np.ndim(array[0]) != 1:
        return array
    lengths = {len(row) if isinstance(row, list | tuple | np.ndarray) else -1 for row in array}
    if len(lengths) > 1:
        raise DatasetError(f"{what} holds vectors of several lengths; expected as many numbers a row")
    return np.stack([np.asarray(row) for row in array])
