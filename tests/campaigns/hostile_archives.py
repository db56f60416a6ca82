"""Hostile `npz:` sources, and what each means if it means anything: the oracle that results are held against.

The oracle is NumPy on the archive's own arrays; nothing of hpcgnn is called.
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NODES, CLASSES = 24, 3
MASKS = ("train_mask", "val_mask", "test_mask")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Truth:
    """What a source holds: arcs as sorted pairs (source, target) without loops, labels (-1 unknown or indicators)."""

    arcs: np.ndarray
    labels: np.ndarray
    masks: tuple[np.ndarray, ...] | None
    features: np.ndarray | None


@dataclass(frozen=True)
class Hostile:
    """A source.

    Attributes
    ----------
    name : str
    write : callable(folder) -> list of str      makes the files; the arguments of preprocess, source first
    truth : Truth or None        what a result must equal; None: there may be no result
    """

    name: str
    write: Callable[[Path], list[str]]
    truth: Truth | None = None


def base_arrays(seed: int = 0) -> Arrays:
    """A small graph that is accepted."""
    rng = np.random.default_rng(seed)
    target = np.sort(rng.integers(0, NODES, 4 * NODES))
    order = rng.permutation(NODES)
    masks = [np.isin(np.arange(NODES), part) for part in np.split(order, [12, 18])]
    return {
        "indptr": np.concatenate([[0], np.cumsum(np.bincount(target, minlength=NODES))]).astype(np.int64),
        "indices": rng.integers(0, NODES, len(target)).astype(np.int32),
        "features": rng.normal(size=(NODES, 5)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, NODES).astype(np.int64),
        **dict(zip(MASKS, masks, strict=True)),
    }


def truth_of(arrays: Arrays) -> Truth | None:
    """What the arrays mean; None where they contradict themselves or mean nothing."""
    try:
        return Truth(_arcs(arrays), _labels(arrays), _masks(arrays), _features(arrays))
    except (KeyError, ValueError, OverflowError, TypeError, IndexError):
        return None


def _whole(values: np.ndarray) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError("no vector of integers")
    return np.array([int(value) for value in values.tolist()], dtype=object)


def _arcs(arrays: Arrays) -> np.ndarray:
    indptr, indices = _whole(arrays["indptr"]), _whole(arrays["indices"])
    degree = np.diff(indptr)
    if len(indptr) < 2 or indptr[0] != 0 or indptr[-1] != len(indices) or (degree < 0).any():
        raise ValueError("indptr")
    if len(indices) and not (min(indices) >= 0 and max(indices) < len(degree)):
        raise ValueError("indices")
    target = np.repeat(np.arange(len(degree)), degree.astype(np.int64))
    return np.array(sorted({(int(a), int(b)) for a, b in zip(indices, target, strict=True) if a != b})).reshape(-1, 2)


def _labels(arrays: Arrays) -> np.ndarray:
    labels, num_nodes = arrays["labels"], len(arrays["indptr"]) - 1
    if labels.dtype.kind not in "iufb" or labels.shape[0] != num_nodes or labels.ndim > 2:
        raise ValueError("labels")
    if labels.ndim == 2:
        if labels.shape[1] == 0 or not np.isin(labels, (0, 1)).all():
            raise ValueError("indicators")
        return labels.astype(np.uint8)
    known = [None if value != value else value for value in labels.tolist()]
    if any(value is not None and (value != int(value) or not -1 <= value < 10**6) for value in known):
        raise ValueError("class ids")
    ids = np.array([-1 if value is None else int(value) for value in known])
    if "num_classes" in arrays and not ids.max() < int(arrays["num_classes"].reshape(-1)[0]) <= 10**9:
        raise ValueError("num_classes")
    return ids


def _masks(arrays: Arrays) -> tuple[np.ndarray, ...] | None:
    if not any(name in arrays for name in MASKS):
        return None
    masks = [arrays[name] for name in MASKS]
    for mask in masks:
        if (
            mask.shape != (len(arrays["indptr"]) - 1,)
            or mask.dtype.kind not in "biuf"
            or not np.isin(mask, (0, 1)).all()
        ):
            raise ValueError("masks")
    masks = tuple(mask.astype(bool) for mask in masks)
    if (sum(mask.astype(int) for mask in masks) > 1).any() or not masks[0].any():
        raise ValueError("splits")
    return masks


def _features(arrays: Arrays) -> np.ndarray | None:
    if "features" not in arrays:
        return None
    features = arrays["features"]
    if features.ndim != 2 or features.dtype.kind not in "iufb" or len(features) != len(arrays["indptr"]) - 1:
        raise ValueError("features")
    with np.errstate(over="ignore"):
        features = features.astype(np.float32)
    if not np.isfinite(features).all() or features.shape[1] == 0:
        raise ValueError("features")
    return features


def archive(name: str, arrays: Arrays, flags: tuple = (), is_compressed: bool = False) -> Hostile:
    """A source of these arrays."""

    def write(folder: Path) -> list[str]:
        path = folder / "graph.npz"
        (np.savez_compressed if is_compressed else np.savez)(path, **arrays)
        return [f"npz:{path}", *flags]

    return Hostile(name, write, truth_of(arrays))


def changed(name: str, **changes) -> Hostile:
    """The base with other arrays; None leaves one out."""
    arrays = {**base_arrays(), **changes}
    return archive(name, {key: value for key, value in arrays.items() if value is not None})


def made_by_hand() -> Iterator[Hostile]:
    """Sources that somebody has thought of."""
    base = base_arrays()
    labels, indices, indptr, features = (base[key] for key in ("labels", "indices", "indptr", "features"))
    train = base["train_mask"]
    yield archive("base", base)
    for value in (2**64 - 1, 2**63, 2**63 - 1, 2**32, 10**9):
        yield changed(f"one label {value}", labels=_with(labels.astype(np.uint64), value))
    for value in (-2, -(2**63), 2**31, 10**12):
        yield changed(f"one label {value} signed", labels=_with(labels, value))
    for value in (np.nan, np.inf, 0.5, 1e19, -1.0, 1e300):
        yield changed(f"one label {value} float", labels=_with(labels.astype(float), value))
    yield changed("all labels unknown", labels=np.full(NODES, -1))
    yield changed("labels of strings", labels=labels.astype(str))
    yield changed("labels of objects", labels=labels.astype(object))
    yield changed("complex labels", labels=labels.astype(complex))
    yield changed("dates as labels", labels=labels.astype("datetime64[s]"))
    for shape in ((NODES, 0), (NODES, 1), (1, NODES), (NODES, 1, 1), (), (0,), (NODES - 1,), (2 * NODES,)):
        yield changed(f"labels of shape {shape}", labels=np.zeros(shape, np.int64))
    for name, mask in {
        "'False'": train.astype(str),
        "NaN": np.where(train, np.nan, 0.0),
        "object": train.astype(object),
        "of 2": 2 * train.astype(int),
        "of -1": -train.astype(int),
        "of 0.5": train / 2,
        "int": train.astype(int),
        "float": train.astype(float),
        "uint8 255": 255 * train.astype(np.uint8),
        "ids": np.flatnonzero(train),
        "bytes": train.astype("S5"),
        "empty": np.zeros(NODES, bool),
        "all": np.ones(NODES, bool),
        "short": train[:-1],
        "column": train[:, None],
        "complex": train.astype(complex),
        "inf": np.where(train, np.inf, 0.0),
        "dates": train.astype("datetime64[s]"),
    }.items():
        yield changed(f"train mask {name}", train_mask=mask)
    yield changed("only one mask", val_mask=None, test_mask=None)
    yield changed("no masks", train_mask=None, val_mask=None, test_mask=None)
    for value in (0, 1, 2, 4, -1, 10**9, 10**12, 2**62):
        yield changed(f"num_classes {value}", num_classes=np.array(value))
    yield changed("num_classes uint64", num_classes=np.array(2**64 - 1, np.uint64))
    yield changed("num_classes of two", num_classes=np.array([3, 3]))
    yield changed("num_classes float", num_classes=np.array(3.0))
    for kind in ("u1", "u4", "u8", "i1", "i2", ">i8", "f8", "O", "U", "?"):
        yield changed(f"indptr {kind}", indptr=indptr.astype(kind))
        yield changed(f"indices {kind}", indices=indices.astype(kind))
    for value in (-1, NODES, 2**31 - 1, -(2**31)):
        yield changed(f"an index {value}", indices=_with(indices, value))
    for value in (2**63, 2**64 - 1):
        yield changed(f"an index {value}", indices=_with(indices.astype(np.uint64), value))
        yield changed(f"indptr with {value}", indptr=_with(indptr.astype(np.uint64), value))
    yield changed("indptr from 1", indptr=indptr + 1)
    yield changed("indptr falls", indptr=indptr[::-1])
    yield changed("indptr empty", indptr=indptr[:0])
    yield changed("indptr of one", indptr=indptr[:1])
    yield changed("no edges", indptr=np.zeros(NODES + 1, np.int64), indices=indices[:0])
    yield changed("loops only", indptr=np.arange(NODES + 1), indices=np.arange(NODES))
    yield changed("one edge many times", indptr=np.array([0] * NODES + [50]), indices=np.zeros(50, np.int32))
    yield from _features_by_hand(features)
    one = {
        "indptr": np.array([0, 0]),
        "indices": np.zeros(0, np.int32),
        "features": np.ones((1, 2), np.float32),
        "labels": np.array([0]),
        "train_mask": np.array([True]),
        "val_mask": np.array([False]),
        "test_mask": np.array([False]),
    }
    yield archive("one node", one)
    yield archive("no node", {key: value[:0] if key != "indptr" else np.array([0]) for key, value in one.items()})
    yield archive("nothing", {"other": np.zeros(3)})
    yield from _broken_files(base)


def _features_by_hand(features: np.ndarray) -> Iterator[Hostile]:
    for value in (np.nan, np.inf, -np.inf, 3e38, 1e30, 1e-45):
        yield changed(f"a feature {value}", features=_with(features, value))
    yield changed("a feature 1e300", features=_with(features.astype(float), 1e300))
    yield changed("a feature 2**63", features=_with(features.astype(np.uint64), 2**63))
    for kind in ("f2", "f8", ">f4", "i1", "u8", "?", "c8", "O", "U5", "datetime64[s]"):
        yield changed(f"features {kind}", features=np.abs(features).astype(kind))
    for shape in ((NODES, 0), (NODES,), (NODES, 2, 2), (0, 5), (NODES + 1, 5), (5, NODES), ()):
        yield changed(f"features of shape {shape}", features=np.ones(shape, np.float32))
    yield changed("features in Fortran order", features=np.asfortranarray(features))
    yield changed("no features", features=None)
    sparse = {
        "feat_indptr": np.arange(NODES + 1),
        "feat_indices": np.zeros(NODES, np.int64),
        "num_features": np.array(4),
        "features": None,
    }
    # The oracle knows no sparse features: these have no truth, and each contradicts itself.
    for name, change in {
        "negative column": {"feat_indices": np.full(NODES, -1)},
        "column 4": {"feat_indices": np.full(NODES, 4)},
        "no columns": {"num_features": np.array(0)},
        "10**12 columns": {"num_features": np.array(10**12)},
        "torn": {"feat_indptr": np.arange(NODES)},
        "-1 columns": {"num_features": np.array(-1)},
        "nan": {"feat_data": np.full(NODES, np.nan)},
        "text": {"feat_data": np.full(NODES, "x")},
        "uint64": {"feat_indptr": np.full(NODES + 1, 2**64 - 1, np.uint64)},
    }.items():
        hostile = changed(f"sparse features, {name}", **{**sparse, **change})
        yield Hostile(hostile.name, hostile.write)


def _broken_files(base: Arrays) -> Iterator[Hostile]:
    whole = io.BytesIO()
    np.savez(whole, **base)
    content = whole.getvalue()

    def file(name: str, data: bytes) -> Hostile:
        return Hostile(name, lambda folder: _written(folder / "graph.npz", data))

    yield file("empty file", b"")
    yield file("half a file", content[: len(content) // 2])
    yield file("no archive", b"labels, features\n" * 100)
    yield file("a .npy file", _npy(base["labels"]))
    yield Hostile(
        "twice the same key",
        lambda folder: _zipped(
            folder, [*((name, _npy(array)) for name, array in base.items()), ("labels", _npy(base["labels"] * 0 + 2))]
        ),
    )
    yield Hostile(
        "pickled array",
        lambda folder: _zipped(
            folder,
            [
                *((name, _npy(array)) for name, array in base.items() if name != "labels"),
                ("labels", _npy(np.array([{"a": 1}] * NODES, object))),
            ],
        ),
    )
    yield Hostile("no arrays inside", lambda folder: _zipped(folder, [(name, b"text") for name in base]))
    header = (
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 9), }".ljust(117)
        + b"\n"
    )
    for name in ("features", "labels", "indptr"):
        yield Hostile(
            f"{name} of 36 TiB announced",
            lambda folder, name=name: _zipped(
                folder, [*((key, _npy(array)) for key, array in base.items() if key != name), (name, header)]
            ),
        )


def _with(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.reshape(-1)[7 % max(1, array.size)] = value
    return array


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def _written(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return [f"npz:{path}"]


def _zipped(folder: Path, members: list[tuple[str, bytes]]) -> list[str]:
    with zipfile.ZipFile(folder / "graph.npz", "w") as file:
        for name, content in members:
            file.writestr(f"{name}.npy", content)
    return [f"npz:{folder / 'graph.npz'}"]


VALUES = (
    -1,
    0,
    1,
    2,
    NODES,
    127,
    255,
    2**31 - 1,
    2**31,
    2**63 - 1,
    2**63,
    2**64 - 1,
    0.5,
    1e19,
    np.nan,
    np.inf,
    -np.inf,
)
KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", ">i4", ">f8")


def generated(rng: random.Random) -> Hostile:
    """The base with some arrays of other types, shapes and values, drawn."""
    arrays = base_arrays(rng.randrange(100))
    words = []
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(arrays))
        array = arrays[name]
        with np.errstate(all="ignore"):
            if rng.randrange(2):
                kind = rng.choice(KINDS)
                array = array.astype(kind)
                words.append(f"{name} as {kind}")
            if rng.randrange(3) and array.size:
                value = rng.choice(VALUES)
                array = array.copy()
                place = rng.randrange(array.size)
                array.reshape(-1)[place] = np.array(value).astype(array.dtype)
                words.append(f"{name}[{place}] = {array.reshape(-1)[place]}")
            if rng.randrange(6) == 0:
                array = array[: rng.randrange(len(array))]
                words.append(f"{len(array)} of {name}")
        arrays[name] = array
    return archive("; ".join(words) or "base", arrays, is_compressed=bool(rng.randrange(2)))
