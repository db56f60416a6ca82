"""What a user may say of an object beside the object itself. No kind of object is known here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.datasets.columns import as_mask
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


def named_splits(found: dict[str, Any]) -> dict[str, np.ndarray] | None:
    """Return the masks by split among columns called train_mask, val_mask (valid_mask) and test_mask; None for none."""
    masks = {key: as_mask(found[f"{key}_mask"], f"values of {key}_mask") for key in ("train", "val", "valid", "test")
             if found.get(f"{key}_mask") is not None}
    return masks if "train" in masks else None


def first_of(names: Iterable[str], held: Iterable[str]) -> str | None:
    """Return the name that is held, whatever its case, of the first of usual names that is; None for none."""
    by_lower = {str(name).lower(): name for name in reversed(list(held))}
    return next((by_lower[name] for name in names if name in by_lower), None)
