"""SourceOptions: how a source graph is read and cleaned, and the progress protocol of long reads.

No file format and no terminal is known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpcgnn.errors import DatasetError

NON_FINITE = ("error", "zero")
FEATURES = ("auto", "given", "structural")
NORMALIZATIONS = ("auto", "none", "row", "standard")
TASKS = ("auto", "classes", "multi-label", "regression")


class ProgressTask(Protocol):
    """One long step under way."""

    def advance(self, amount: float) -> None:
        """Report that `amount` more of the total is done."""


class SilentTask:
    """A step that nobody watches."""

    def advance(self, amount: float) -> None:
        """Report nothing."""


def silent(description: str, total: float | None) -> ProgressTask:
    """Start a step that is not shown; a command passes its own function to show one."""
    return SilentTask()


Progress = Callable[[str, "float | None"], ProgressTask]


@dataclass(frozen=True)
class SourceOptions:
    """Say how to read a source.

    Attributes
    ----------
    seed : int                  of the random split where the source has none, and of a synthetic graph that names none
    symmetrize : bool           add the reverse of every arc; otherwise an arc u -> v carries messages from u to v only
    root : Path or None         folder that holds OGB datasets, "dataset" if None
    non_finite : {"error", "zero"}                   what to do with NaN and infinite features
    features : {"auto", "given", "structural"}       take the source's features, or make them from the graph alone;
                                                     auto makes them where the source has none
    normalize_features : {"auto", "none", "row", "standard"}    rows to unit sum, or columns standardized on training
                                                     nodes; auto is what data/registry.toml says of a public dataset,
                                                     and none for all others
    is_public : bool            the source is a public dataset by its name, not a file or object of the user's own
    split_fractions : (train, val)                   of the labeled nodes, the rest is test, where the source has none
    made_classes : int or None  classes of labels made from in-degrees, for a source without labels; None makes none
    task : {"auto", "classes", "multi-label", "regression"}     what labels are; auto takes numbers with a fraction
                                                     for targets of a regression
    progress : callable(description, total) -> ProgressTask
    scratch : Path or None      folder for features that lie nowhere in pieces, such as those of a text table, and for
                                edges that are sorted, in files without a name; None keeps them in memory

    Raises
    ------
    DatasetError                a value outside those named above
    """

    seed: int = 0
    symmetrize: bool = False
    root: Path | None = None
    non_finite: str = "error"
    features: str = "given"
    normalize_features: str = "none"
    is_public: bool = False
    split_fractions: tuple[float, float] = (0.6, 0.2)
    made_classes: int | None = None
    task: str = "auto"
    progress: Callable[[str, float | None], ProgressTask] = silent
    scratch: Path | None = None

    def __post_init__(self) -> None:
        for name, choices in (("non_finite", NON_FINITE), ("features", FEATURES),
                              ("normalize_features", NORMALIZATIONS), ("task", TASKS)):
            if getattr(self, name) not in choices:
                raise DatasetError(f"{name.replace('_', '-')} is {getattr(self, name)!r}; "
                                   f"expected one of {', '.join(choices)}")
        train, val = self.split_fractions
        if not (0 < train <= 1 and 0 <= val <= 1 - train + 1e-12):
            raise DatasetError(f"split fractions are {train} for training and {val} for validation; "
                               "expected a positive and a non-negative number that sum to at most 1")
        if self.made_classes is not None and self.made_classes < 2:
            raise DatasetError(f"make-labels is {self.made_classes}; expected at least 2 classes")
        if self.seed < 0:
            raise DatasetError(f"seed is {self.seed}; expected a non-negative integer")
