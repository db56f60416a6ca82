"""What a column or matrix of labels asks for: classes by number or name, several labels a node, or a regression.

Which file the labels come from is not known here.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from hpcgnn.datasets.labels import UNKNOWN, class_ids, indicator_rows, num_classes_of
from hpcgnn.errors import DatasetError

MISSING_TEXTS = ("", "nan", "NaN", "NA", "None", "null")
SHOWN_CLASSES = 8
FAR = 5.0      # deviations of targets from 0, from which a training begins far from its end


@dataclass(frozen=True)
class Labels:
    """Hold labels as a GraphDataset has them.

    Attributes
    ----------
    values : (num_nodes,) int64, (num_nodes, num_classes) uint8, or (num_nodes, num_classes) float32
    num_classes : int
    class_names : tuple of str      empty where classes are numbers
    remarks : tuple of str          what was decided, for the cleaning report
    """

    values: np.ndarray
    num_classes: int
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def read_labels(values: np.ndarray, task: str, name: str, num_classes: int | None = None,
                column_names: tuple[str, ...] = ()) -> Labels:
    """Decide what labels mean and bring them into their form.

    Texts are names of classes, which are numbered in alphabetical order. Numbers are class ids if they are whole, -1 or
    NaN where unknown; several columns of 0 and 1 are several labels a node. Any number with a fraction makes all of
    them targets of a regression, as `task` "regression" does.

    Parameters
    ----------
    values : (num_nodes,) or (num_nodes, num_columns) number or text
    task : {"auto", "classes", "multi-label", "regression"}
    name : str                      of the dataset or file, for messages
    num_classes : int               where the source states it
    column_names : tuple of str     of several columns of 0 and 1

    Raises
    ------
    DatasetError                    labels that `task`, or no task, can have
    """
    values = _plain(np.asarray(values), name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if task == "auto":
        task, remarks = _find_task(values)
    else:
        remarks = ()
    if task == "regression":
        targets = _targets(values, name)
        return Labels(targets, targets.shape[1], remarks=remarks + _far_from_zero(targets))
    if task == "multi-label":
        rows = indicator_rows(values if values.ndim == 2 else values[:, None], name)
        return Labels(rows, rows.shape[1] if num_classes is None else num_classes, column_names, remarks)
    if values.dtype.kind == "U":
        return _named_classes(values, name, num_classes)
    ids = class_ids(values, name)
    return Labels(ids, num_classes_of(ids) if num_classes is None else num_classes, remarks=remarks)


def _plain(values: np.ndarray, name: str) -> np.ndarray:
    """Turn objects into texts, "" where one is missing, or into numbers where all are; refuse what is neither."""
    if values.dtype.kind == "O":
        is_missing = np.array([value is None or value != value for value in values.reshape(-1)]).reshape(values.shape)
        known = values[~is_missing]
        if all(isinstance(value, str) for value in known):
            return np.where(is_missing, "", values).astype(str)
        try:
            return np.where(is_missing, np.nan, values).astype(np.float64)
        except (TypeError, ValueError):
            raise DatasetError(f"{name} has labels of several types, {_types(known)} among them; expected numbers or "
                               "texts") from None
    if values.dtype.kind == "S":
        return values.astype(str)
    if values.dtype.kind not in "iufbU":
        raise DatasetError(f"{name} has labels of type {values.dtype}; expected numbers or texts")
    if values.ndim not in (1, 2) or 0 in values.shape[1:]:
        raise DatasetError(f"{name} has labels of shape {values.shape}; expected a number, a text or a row of numbers "
                           "a node")
    return values


def _types(values: np.ndarray) -> str:
    return " and ".join(sorted({type(value).__name__ for value in values})[:3])


def _find_task(values: np.ndarray) -> tuple[str, tuple[str, ...]]:
    if values.dtype.kind == "f":
        has_fraction = np.isfinite(values) & (np.floor(values) != values)
        if has_fraction.any():
            place = np.argwhere(has_fraction)[0]
            return "regression", (f"labels are targets of a regression, as {values[tuple(place)]:g} of node {place[0]} "
                                  "is no class",)
    return ("classes" if values.ndim == 1 else "multi-label"), ()


def _far_from_zero(targets: np.ndarray) -> tuple[str, ...]:
    """Return what to know of targets whose mean is many deviations from 0, where a model's answers begin."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)      # of columns without a known target
        mean, deviation = np.nanmean(targets, axis=0), np.nanstd(targets, axis=0)
    far = np.flatnonzero(np.abs(mean) > FAR * np.maximum(deviation, np.finfo(np.float32).tiny))
    if not far.size:
        return ()
    first = far[0]
    return (f"targets of column {first} have mean {mean[first]:.4g} and deviation {deviation[first]:.3g}, and answers "
            "begin near 0: standardize them, or training takes long",)


def _targets(values: np.ndarray, name: str) -> np.ndarray:
    """Return targets as (num_nodes, num_targets) float32, NaN where unknown."""
    if values.dtype.kind == "U":
        raise DatasetError(f"{name} has labels that are texts, {values.flat[0].item()!r} first; a regression needs "
                           "numbers")
    targets = values.reshape(len(values), -1)
    with np.errstate(over="ignore"):
        rounded = targets.astype(np.float32)
    if np.isinf(rounded).any():
        node, column = np.argwhere(np.isinf(rounded))[0]
        raise DatasetError(f"{name} has the target {targets[node, column]} at node {node}; expected numbers that "
                           "float32 can hold, or NaN where one is unknown")
    rounded[np.isnan(rounded)] = np.nan      # one pattern of bits, so that equal targets have equal fingerprints
    return rounded


def _named_classes(values: np.ndarray, name: str, num_classes: int | None) -> Labels:
    if values.ndim != 1:
        raise DatasetError(f"{name} has texts of shape {values.shape} for labels; expected one class a node")
    is_missing = np.isin(values, MISSING_TEXTS)
    names, ids = np.unique(values[~is_missing], return_inverse=True)
    if num_classes not in (None, len(names)):
        raise DatasetError(f"{name} names {len(names)} classes and says that there are {num_classes}")
    found = np.full(len(values), UNKNOWN, np.int64)
    found[~is_missing] = ids
    shown = ", ".join(names[:SHOWN_CLASSES].tolist()) + (", ..." if len(names) > SHOWN_CLASSES else "")
    return Labels(found, max(1, len(names)), tuple(names.tolist()),
                  (f"classes were numbered in the order of their names: {shown}",))
