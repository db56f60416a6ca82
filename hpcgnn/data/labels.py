"""Decides what labels mean (classes, several labels per node, or a regression) and brings them into a GraphDataset's
form.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hpcgnn.data.arcs import ARCS_A_CHUNK
from hpcgnn.data.columns import MISSING_TEXTS, SUSPECTS, Words, as_labels
from hpcgnn.data.dataset import NOWHERE, UNKNOWN_INDICATOR, Origins
from hpcgnn.errors import DatasetError

UNKNOWN = -1
LARGEST_LABEL = 1 << 53     # larger floating-point numbers are no exact integers


def class_ids(values: np.ndarray, name: str) -> np.ndarray:
    """Class ids as int64, UNKNOWN for NaN; `values` are (num_nodes,) or (num_nodes, 1), integer or floating point."""
    if values.dtype.kind not in "iufb":
        raise DatasetError(f"{name} has labels of type {values.dtype}; expected numbers")
    if values.ndim != 1 and (values.ndim != 2 or values.shape[1] != 1):
        raise DatasetError(f"{name} has labels of shape {values.shape}; expected one class number per node")
    values = values.reshape(-1)
    # A cast would turn 2^64 - 1 into -1, which means unknown.
    is_large = values > np.float64(LARGEST_LABEL)
    if is_large.any():
        node = int(np.argmax(is_large))
        raise DatasetError(f"{name} has label {values[node]} at node {node}; expected a class number, or -1 or NaN "
                           "where it is unknown")
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    is_known = ~np.isnan(values)
    is_whole = np.isfinite(values) & (np.floor(values) == values)
    if (is_known & ~is_whole).any():
        node = int(np.argmax(is_known & ~is_whole))
        raise DatasetError(f"{name} has label {values[node]} at node {node}; expected a whole class number")
    ids = np.full(len(values), UNKNOWN, dtype=np.int64)
    ids[is_known] = values[is_known].astype(np.int64)
    return ids


def indicator_rows(values: np.ndarray, name: str) -> np.ndarray:
    """Multi-label indicators, (num_nodes, num_classes) uint8. Raises DatasetError for values other than 0 and 1."""
    if values.dtype.kind not in "iufb":
        raise DatasetError(f"{name} has labels of type {values.dtype}; expected 0 and 1")
    if values.ndim != 2 or values.shape[1] == 0:
        raise DatasetError(f"{name} has labels of shape {values.shape}; expected one column per class, at least one")
    is_bad = (values != 0) & (values != 1)
    if is_bad.any():
        node, column = np.argwhere(is_bad)[0]
        raise DatasetError(f"{name} has the multi-label value {values[node, column]} at node {node}; expected 0 or 1")
    return values.astype(np.uint8)


def made_labels(indptr: np.ndarray, indices: np.ndarray, num_classes: int, name: str) -> np.ndarray:
    """Classes of equal size by in-degree, (num_nodes,) int64, for graphs without labels.

    Nodes of equal in-degree are ranked by the mean in-degree of their in-neighbors, then by id. So the graph alone can
    teach the task.
    """
    degree = np.diff(indptr)
    if num_classes > len(degree):
        raise DatasetError(f"{name} has {len(degree)} nodes, too few for {num_classes} made classes; "
                           "lower --make-labels")
    order = np.lexsort((_sums_of_neighbors(indptr, indices, degree) / np.maximum(degree, 1), degree))
    labels = np.empty(len(degree), np.int64)
    labels[order] = np.arange(len(degree)) * num_classes // len(degree)
    return labels


def _sums_of_neighbors(indptr: np.ndarray, indices: np.ndarray, value: np.ndarray) -> np.ndarray:
    # Sum a whole number of each node over the in-neighbors, (num_nodes,) int64, some edges at a time.
    sums, first = np.empty(len(value), np.int64), 0
    while first < len(value):
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + ARCS_A_CHUNK, side="right")) - 1)
        start = int(indptr[first])
        before = np.append(0, np.cumsum(value[indices[start:indptr[last]]]))
        sums[first:last] = np.diff(before[indptr[first:last + 1] - start])
        first = last
    return sums


# Customary numbers for unknown: 255 in images, -100 in torch's losses, the largest number of a type.
FILLS = (-100, -999, -9999, 255, 65535, (1 << 31) - 1, (1 << 32) - 1)
SHOWN_CLASSES = 8
LISTS = ("list<", "large_list<")      # types of Arrow, also in pandas
SETS = set | frozenset | list | tuple
PRINTED = re.compile(r"[\[{(].*[\]})]", re.DOTALL)      # a list of Python or JSON
COORDINATES = ("lat", "latitude", "lon", "lng", "long", "longitude", "geometry")
COUNTED_CLASSES = 1 << 22
FEW_NODES, SHARE_OF_NAMES, NODES_A_CLASS = 10, 0.5, 4     # limits beyond which labels are names rather than classes
FAR = 5.0      # a mean of targets this many deviations from 0 makes training long


@dataclass(frozen=True)
class Labels:
    """Labels in the form of a GraphDataset.

    values : (num_nodes,) int64, (num_nodes, num_classes) uint8, or (num_nodes, num_classes) float32
    class_names : tuple of str      empty if classes are numbers
    remarks : tuple of str          what was decided, for the cleaning report
    dubious : tuple of str          warnings about guesses that may be wrong, with the option that changes them
    unlabeled : (num_nodes,) bool   nodes with ignored or unknown labels, which leave given splits; or None
    """

    values: np.ndarray
    num_classes: int
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    dubious: tuple[str, ...] = ()
    unlabeled: np.ndarray | None = None


def read_labels(values: Any, task: str, name: str, num_classes: int | None = None,
                column_names: tuple[str, ...] = (), ignore: tuple | None = (), origins: Origins = NOWHERE) -> Labels:
    """Decide what labels mean and bring them into their form.

    Texts name classes, numbered in alphabetical order. Whole numbers are classes: 0 to C - 1 as they are; others, such
    as 1 to C or codes of five digits, are numbered in ascending order and become the names. -1 and NaN are unknown, and
    so is a customary number (255, -100, ...) if the other classes have no gap. Several columns of 0 and 1, or texts
    such as "art;music", are several labels per node. Any number with a fraction makes all labels targets of a
    regression.

    Parameters
    ----------
    values : (num_nodes,) column of any library, or (num_nodes, num_columns), of numbers or texts
    task : {"auto", "classes", "multi-label", "regression"}
    num_classes : int               if the source states it; label numbers are then kept
    column_names : tuple of str     names of several columns of 0 and 1
    ignore : tuple or None          labels that mean "unknown", numbers or texts; None: only NaN does
    """
    sets = _of_sets(values, ignore)
    if sets is not None and task in ("auto", "multi-label"):
        return _indicators(sets[0], name, num_classes, sets[1])
    values = as_labels(values, f"{name}: the labels")
    shape = values.code.shape if isinstance(values, Words) else values.shape
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        raise DatasetError(f"{name} has labels of shape {shape}; expected a number, a text or a row per node")
    if len(shape) == 2 and shape[0] == 1 < shape[1]:
        raise DatasetError(f"{name} has labels of shape {shape}, a row for one node; if these are labels of {shape[1]} "
                           "nodes, pass labels.reshape(-1)")
    if isinstance(values, Words):
        if len(shape) == 2 and shape[1] > 1:
            raise DatasetError(f"{name} has texts of shape {shape} for labels; expected one class per node, or columns "
                               "of 0 and 1")
        values = Words(values.code.reshape(-1), values.word)
    elif len(shape) == 2 and shape[1] == 1:
        values = values[:, 0]
    values, is_ignored = _ignored(values, ignore, name)
    found = _labels_of(values, task, name, num_classes, column_names, ignore is None, origins)
    if is_ignored is None:
        return found
    unlabeled = is_ignored if is_ignored.ndim == 1 else is_ignored.all(axis=1)
    count = int(np.count_nonzero(is_ignored))
    return replace(found, unlabeled=unlabeled if found.unlabeled is None else unlabeled | found.unlabeled,
                   remarks=(*found.remarks, f"{count:,} labels were ignored: {', '.join(map(str, ignore))}"))


def _of_sets(values: Any, ignore: tuple | None) -> tuple[np.ndarray, tuple[str, ...]] | None:
    # From sets or lists of classes per node, returns rows of 0 and 1 and the names of their columns; None for other
    # forms. A node without a set has a row of NaN.
    kind = str(getattr(values, "dtype", getattr(values, "type", "")))
    items = values.tolist() if kind == "object" else values
    if kind.startswith(LISTS):
        items = (values if hasattr(values, "to_pylist") else pa.array(values)).to_pylist()
    if isinstance(items, list | tuple):      # pandas holds lists of Parquet as arrays
        items = [item.tolist() if isinstance(item, np.ndarray) and item.ndim == 1 else item for item in items]
    if not isinstance(items, list | tuple) or not all(
            isinstance(item, SETS) or item is None or (isinstance(item, float) and math.isnan(item)) for item in items):
        return None
    known = [item for item in items if isinstance(item, SETS)]
    is_matrix = len({len(item) for item in known}) == 1 and not any(
        isinstance(item, set | frozenset) or isinstance(item[0], str) for item in known if len(item))
    if is_matrix:
        return None
    classes = {part for item in known for part in item if np.ndim(part) == 0}
    if not classes or not all(isinstance(part, str | int | np.integer) for part in classes):
        return None
    names = sorted(classes - set(ignore or ()), key=lambda part: (str(type(part)), part))
    rows = [[name in item for name in names] if isinstance(item, SETS) else [math.nan] * len(names) for item in items]
    return np.array(rows, np.float32), tuple(map(str, names))


def _labels_of(values: np.ndarray | Words, task: str, name: str, num_classes: int | None, column_names: tuple[str, ...],
               takes_all: bool, origins: Origins) -> Labels:
    dubious = ()
    if task == "auto":
        task, dubious = _find_task(values, name)
        if task == "regression" and origins.place:
            raise DatasetError(f"{name} would learn the numbers of {origins.labels or 'y'}, next to {origins.place}: "
                               f"these look like coordinates; name the labels by {_way(origins)}, or pass --task "
                               "regression (task=\"regression\") if they are what to learn")
    if task == "regression":
        targets = _targets(values, name)
        return Labels(targets, targets.shape[1], remarks=_far_from_zero(targets), dubious=dubious)
    if task == "multi-label":
        return _indicators(values, name, num_classes, column_names)
    if isinstance(values, np.ndarray) and values.ndim == 2 and _is_one_hot(values):
        return Labels(values.argmax(axis=1).astype(np.int64), values.shape[1], column_names)
    if isinstance(values, Words):
        found = _named_classes(values, name, num_classes, takes_all, origins)
        return replace(found, dubious=dubious + found.dubious)
    return _numbered_classes(values, name, num_classes, takes_all, origins)


def _ignored(values: np.ndarray | Words, ignore: tuple | None, name: str
             ) -> tuple[np.ndarray | Words, np.ndarray | None]:
    if not ignore:
        return values, None
    is_text = isinstance(values, Words)
    numbers = values.code if is_text else values
    code_of = {word: code for code, word in enumerate(values.word)} if is_text else {}
    is_ignored = np.zeros(numbers.shape, bool)
    for item in ignore:
        try:
            found = numbers == (code_of.get(str(item), len(code_of)) if is_text else float(item))
        except (TypeError, ValueError):
            found = np.zeros(numbers.shape, bool)
        if not found.any():
            raise DatasetError(f"{name} has neither a column nor a label {str(item)[:40]!r} to ignore; leave it out of "
                               "ignore=")
        is_ignored |= found
    if is_text:
        return Words(np.where(is_ignored, np.int32(-1), values.code), values.word), is_ignored
    return np.where(is_ignored, np.nan, values), is_ignored


def place_beside(column: str, held: Mapping[str, Any]) -> str:
    """Name of an attribute x or of a coordinate (latitude, ...), next to which labels called y may be a coordinate.

    Empty if there is none, or labels have another name. `held` maps names to the first node's value; an x that is a
    vector is no coordinate.
    """
    if column.lower() != "y":
        return ""
    found = {str(name).lower(): str(name) for name, value in held.items() if np.ndim(value) == 0}
    return next((found[name] for name in ("x", *COORDINATES) if name in found), "")


def _way(origins: Origins) -> str:
    shown = ", ".join(origins.others[:SHOWN_CLASSES])
    return origins.way + (f", one of {shown}" if shown else "")


def _find_task(values: np.ndarray | Words, name: str) -> tuple[str, tuple[str, ...]]:
    if isinstance(values, Words):
        known = [word for word in values.word if word not in MISSING_TEXTS]
        if known and all(PRINTED.fullmatch(word) for word in known):
            raise DatasetError(f"{name} has labels such as {known[0][:40]!r}, lists that were written as texts; write "
                               "a;b for several labels of a node, or pass --task classes (task=\"classes\") if each "
                               "text is a class")
        return "multi-label" if _joins_names(values) else "classes", _joined_by_commas(known)
    if values.dtype.kind == "f":
        has_fraction = np.isfinite(values) & (np.floor(values) != values)
        if has_fraction.any():
            place = np.argwhere(has_fraction)[0]
            return "regression", (f"labels are targets of a regression, as {values[tuple(place)]:g} of node {place[0]} "
                                  "is no class",)
    return ("multi-label" if values.ndim == 2 else "classes"), ()


def _joins_names(words: Words) -> bool:
    # Whether texts join names of several classes: with "art;music" and "music", a name recurs.
    parts = [part for text in words.word for part in set(_parts(text))]
    return len(parts) > len(words.word) - sum(word in MISSING_TEXTS for word in words.word) and (
        len(set(parts)) < len(parts))


def _joined_by_commas(words: list[str]) -> tuple[str, ...]:
    # `Action,Drama` beside `Drama`.
    joined = next((word for word in words for part in re.split("[,/]", word) if part != word and part.strip() in words),
                  None)
    return () if joined is None else (f"labels such as {joined[:40]!r} are classes of their own; write a;b if they are "
                                      "several labels of a node",)


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.replace("|", ";").split(";")) if part not in MISSING_TEXTS]


def _far_from_zero(targets: np.ndarray) -> tuple[str, ...]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)      # for columns without a known target
        mean, deviation = np.nanmean(targets, axis=0), np.nanstd(targets, axis=0)
    far = np.flatnonzero(np.abs(mean) > FAR * np.maximum(deviation, np.finfo(np.float32).tiny))
    if not far.size:
        return ()
    first = far[0]
    return (f"targets of column {first} have mean {mean[first]:.4g} and deviation {deviation[first]:.3g}, and "
            "predictions begin near 0: standardize them, or training takes long",)


def _targets(values: np.ndarray | Words, name: str) -> np.ndarray:
    if isinstance(values, Words):
        raise DatasetError(f"{name} has labels that are texts, {values.word[0]!r} first; a regression needs numbers")
    targets = values.reshape(len(values), -1)
    with np.errstate(over="ignore"):
        rounded = targets.astype(np.float32)
    if np.isinf(rounded).any():
        node, column = np.argwhere(np.isinf(rounded))[0]
        raise DatasetError(f"{name} has the target {targets[node, column]} at node {node}; expected numbers that "
                           "float32 can hold, or NaN where one is unknown")
    rounded[np.isnan(rounded)] = np.nan      # one pattern of bits, so that equal targets have equal fingerprints
    return rounded


def _indicators(values: np.ndarray | Words, name: str, num_classes: int | None,
                column_names: tuple[str, ...]) -> Labels:
    # Rows of 0, 1, and UNKNOWN_INDICATOR for NaN; a row of NaN only is a node without a label.
    remarks = ()
    if isinstance(values, Words):
        column_names = tuple(sorted({part for text in values.word for part in _parts(text)}))
        rows = np.full((len(values.word) + 1, len(column_names)), np.nan, np.float32)     # the last row: no word
        for row, text in zip(rows, values.word, strict=False):
            row[:] = np.nan if text in MISSING_TEXTS else [part in _parts(text) for part in column_names]
        values = rows[values.code]
        remarks = ("labels such as 'a;b' were taken as several labels per node; --task classes says otherwise",)
    values = values if values.ndim == 2 else values[:, None]
    is_unknown = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    rows = indicator_rows(np.where(is_unknown, 0, values), name)
    unlabeled = is_unknown.all(axis=1)
    num_empty = int(np.count_nonzero(~rows.any(axis=1) & ~is_unknown.any(axis=1)))
    num_partly = int(np.count_nonzero(is_unknown.any(axis=1) & ~unlabeled))
    rows[is_unknown] = UNKNOWN_INDICATOR
    dubious = (f"{num_empty:,} nodes have a row of zeros, which means none of the classes: they are trained on and "
               "scored; write NaN where a label is unknown",) if num_empty else ()
    remarks += (f"{num_partly:,} nodes have labels that are unknown, which the loss and scores leave out",
                ) if num_partly else ()
    if rows.shape[1] > 1 and not unlabeled.all() and _is_one_hot(rows[~unlabeled]):
        dubious += ("every node has one label of several: --task classes (task=\"classes\") reads one class per "
                    "node",)
    return Labels(rows, rows.shape[1] if num_classes is None else num_classes, column_names, remarks, dubious,
                  unlabeled if unlabeled.any() else None)


def _is_one_hot(rows: np.ndarray) -> bool:
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())


def _named_classes(values: Words, name: str, num_classes: int | None, takes_all: bool, origins: Origins) -> Labels:
    count_of = np.bincount(values.code[values.code >= 0], minlength=len(values.word))
    names = sorted(word for word, number in zip(values.word, count_of.tolist(), strict=True)
                   if number and word not in MISSING_TEXTS)
    class_of = {word: number for number, word in enumerate(names)}
    # The last code stands for nodes without a word.
    by_code = np.array([*(class_of.get(word, UNKNOWN) for word in values.word), UNKNOWN], np.int64)
    found = by_code[values.code]
    count = np.bincount(found[found >= 0], minlength=len(names))
    num_labeled = int(count.sum())
    if num_classes not in (None, len(names)):
        raise DatasetError(f"{name} names {len(names)} classes and says that there are {num_classes}")
    _refuse_names(names, num_labeled, "text", name, origins)
    shown = ", ".join(names[:SHOWN_CLASSES]) + (", ..." if len(names) > SHOWN_CLASSES else "")
    dubious = () if takes_all else tuple(
        f"{number:,} nodes are of a class called {text!r}; ignore={text} makes them nodes without a label"
        for text, number in zip(names, count.tolist(), strict=True) if text.strip().lower() in SUSPECTS)
    return Labels(found, max(1, len(names)), tuple(names),
                  (f"classes were numbered in the order of their names: {shown}",),
                  dubious + alike(names, "classes") + _many(len(names), num_labeled))


def alike(names: Iterable[str], what: str) -> tuple[str, ...]:
    """A warning about two names that differ only in case or in blanks."""
    first: dict[str, str] = {}
    for text in names:
        if (other := first.setdefault(" ".join(text.split()).casefold(), text)) != text:
            return (f"the {what} {other!r} and {text!r} differ in case or blanks only; write them alike if they are "
                    "one",)
    return ()


def _numbered_classes(values: np.ndarray, name: str, num_classes: int | None, takes_all: bool,
                      origins: Origins) -> Labels:
    ids = class_ids(values, name)
    is_known = ~np.isnan(values.reshape(-1)) if values.dtype.kind == "f" else np.ones(len(ids), bool)
    if not takes_all:
        is_known &= ids != UNKNOWN
    codes, count = _distinct(ids[is_known])
    fill = () if takes_all else tuple(code for code in codes.tolist() if code in FILLS and _stands_out(
        code, codes, num_classes))
    if fill:
        is_known &= ~np.isin(ids, fill)
        count, codes = count[~np.isin(codes, fill)], codes[~np.isin(codes, fill)]
        ids = np.where(is_known, ids, UNKNOWN)
    dubious = tuple(f"{int((class_ids(values, name) == code).sum()):,} nodes have the label {code}, which is no class "
                    "here but unknown; ignore=none makes it a class" for code in fill)
    unlabeled = np.isin(class_ids(values, name), fill) if fill else None
    if num_classes is not None or not len(codes):
        return Labels(ids, 1 if num_classes is None else num_classes, dubious=dubious, unlabeled=unlabeled)
    if codes[0] < 0 and not takes_all:
        raise DatasetError(f"{name} has the label {codes[0]} at node {int(np.argmax(ids == codes[0]))}; expected class "
                           f"numbers from 0, and -1 or NaN where one is unknown: pass ignore={codes[0]} if it stands "
                           "for unknown, or ignore=none if each number is a class")
    if codes.tolist() == [1] and (ids == UNKNOWN).any() and values.dtype.kind != "b":
        raise DatasetError(f"{name} has no labels but 1 and unknown ones (-1 or NaN), which leaves one class; pass "
                           "ignore=none if -1 is a class, too, or write 0 for it")
    _refuse_names(codes, int(count.sum()), "number", name, origins)
    num_negative = int(np.count_nonzero(values == UNKNOWN))
    if codes.tolist() == [0, 1] and not takes_all and 0 < num_negative <= 2 * count.max():
        dubious += (f"labels are -1, 0 and 1, and the {num_negative:,} nodes with -1 were taken as nodes without a "
                    "label; ignore=none makes it a class",)
    dubious += _many(len(codes), int(count.sum()))
    if codes[0] == 0 and codes[-1] == len(codes) - 1:
        return Labels(ids, len(codes), dubious=dubious, unlabeled=unlabeled)
    remarks, num_gaps = (), int(codes[-1] - codes[0]) + 1 - len(codes)
    if num_gaps:
        dubious += (f"labels are numbers from {codes[0]} to {codes[-1]}; {num_gaps:,} of these have no node, and the "
                    f"{len(codes):,} others are the classes, named by their numbers",)
    else:
        remarks = (f"labels begin at {codes[0]}; classes are named by their numbers",)
    numbered = np.full(len(ids), UNKNOWN, np.int64)
    numbered[is_known] = np.searchsorted(codes, ids[is_known])
    return Labels(numbered, len(codes), tuple(map(str, codes.tolist())), remarks, dubious, unlabeled)


def _distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(ids) and ids.min() >= 0 and ids.max() <= COUNTED_CLASSES:      # in one pass, without sorting
        count = np.bincount(ids)
        codes = np.flatnonzero(count)
        return codes, count[codes]
    return np.unique(ids, return_counts=True)


def _stands_out(code: int, codes: np.ndarray, num_classes: int | None) -> bool:
    if num_classes is not None:
        return not 0 <= code < num_classes
    rest = codes[~np.isin(codes, FILLS)]
    is_gapless = len(rest) > 0 and rest[0] in (0, 1) and rest[-1] - rest[0] == len(rest) - 1
    return is_gapless and not 0 <= code <= rest[-1] + 1


def _refuse_names(classes: np.ndarray | list[str], num_labeled: int, kind: str, name: str, origins: Origins) -> None:
    if num_labeled < FEW_NODES or len(classes) <= SHARE_OF_NAMES * num_labeled:
        return
    where = f" of {origins.labels}" if origins.labels else ""
    meant = ", or pass --task regression (task=\"regression\") if the numbers are to be learned" * (kind == "number")
    raise DatasetError(f"{name} has {len(classes):,} classes for {num_labeled:,} nodes by the labels{where}, such as "
                       f"{str(classes[0])[:40]!r}, which are names rather than classes; name the classes by "
                       f"{_way(origins)}{meant}")


def _many(num_classes: int, num_labeled: int) -> tuple[str, ...]:
    if num_classes == 1 and num_labeled > 1:
        return ("all nodes with a label are of one class, which leaves nothing to learn",)
    if num_labeled < FEW_NODES or num_classes * NODES_A_CLASS <= num_labeled:
        return ()
    return (f"there are {num_classes:,} classes for {num_labeled:,} labeled nodes, {num_labeled / num_classes:.1f} "
            "nodes each on average",)
