"""Mutations of what a sealed HDF5 file holds, under a seal that is right again: what a faulty writer could leave.

A mutation is plain data, so that one that once broke hpcgnn is kept in a corpus. Nothing is read by hpcgnn here.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.shards.sealed import SEAL_BYTES, parse_seal, seal_file

INTEGERS = (-1, 0, 1, 2, -(10**6), 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
REALS = (float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 3e38, 0.0, -0.0, 1e-45, 65520.0)
TYPES = ("i1", "i4", "i8", "u1", "u4", "u8", "f2", "f4", "f8", "c8", "?", "S3", ">i4", ">f4")
NAMES = ("", "/", "../../x", "a/b", "x" * 300, "x" * 60000, "line\nbreak", "tab\t", "..", ".", "nul", "ä", "-rf", "a b",
         "\x1b[2J", "con:x", "~", "$HOME", "*")
SHAPES = ("longer", "shorter", "empty", "scalar", "column", "row", "flat", "transposed", "cubed", "huge")
ORDERS = ("reversed", "sorted", "shuffled", "constant")
KINDS_OF_ARRAYS = ("value", "value", "value", "value", "fill", "type", "shape", "order", "missing", "group", "text",
                   "dangling")
KINDS_OF_ATTRIBUTES = ("value", "value", "type", "missing", "array", "json", "json")


@dataclass(frozen=True)
class Mutation:
    """One change: of the dataset, or with `attribute` of that attribute of the object, called `name` in a file."""

    file: str
    name: str
    attribute: str | None
    kind: str
    argument: Any = None
    place: float = 0.0       # of the entry that changes, as a share of all

    def words(self) -> str:
        what = f"{self.name}@{self.attribute}" if self.attribute else self.name
        argument = repr(self.argument)
        return f"{self.file} {what}: {self.kind} {argument if len(argument) < 60 else argument[:60] + '…'}"


def inventory(path: Path) -> list[tuple[str, str | None]]:
    """All datasets and attributes of a file, as (name, None) and (name, attribute)."""
    found: list[tuple[str, str | None]] = []
    with h5py.File(path, "r") as file:
        found += [("/", attribute) for attribute in file.attrs]

        def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                found.append((name, None))
            found.extend((name, attribute) for attribute in item.attrs)

        file.visititems(visit)
    return sorted(found, key=str)


def draw(file: str, things: list[tuple[str, str | None]], rng: random.Random) -> Mutation:
    """A mutation of one of the things in a file."""
    name, attribute = rng.choice(things)
    place = rng.choice((0.0, 1.0, rng.random()))
    kind = rng.choice(KINDS_OF_ATTRIBUTES if attribute else KINDS_OF_ARRAYS)
    argument: Any = None
    if kind in ("value", "fill", "array"):
        argument = rng.choice((rng.choice(INTEGERS), rng.choice(REALS), rng.choice(NAMES)) if attribute
                              else (rng.choice(INTEGERS), rng.choice(REALS)))
    elif kind == "type":
        argument = rng.choice(TYPES)
    elif kind == "shape":
        argument = rng.choice(SHAPES)
    elif kind == "order":
        argument = rng.choice((*ORDERS, rng.randrange(1000)))
    elif kind == "json":
        leaf = rng.choice(("delete", None, -1, 2**63, "x", "../x", [], {}, True, 1.5, 1e308, "torn"))
        argument = [rng.random(), leaf]
    elif kind == "text":
        argument = rng.choice(NAMES)
    return Mutation(file, name, attribute, kind, argument, place)


def apply(mutation: Mutation, whole: Path, target: Path) -> None:
    """Write the mutated copy of `whole` to `target` and seal it."""
    shutil.copyfile(whole, target)
    if mutation.kind == "none":
        return
    with open(target, "rb") as file:
        seal = parse_seal(file.read(SEAL_BYTES))
    with h5py.File(target, "r+") as file:
        if mutation.attribute is not None:
            _change_attribute(file[mutation.name].attrs, mutation)
        else:
            _change_array(file, mutation)
    with open(target, "r+b") as file:
        seal_file(file, seal.kind, seal.version)


def _change_array(file: h5py.File, mutation: Mutation) -> None:
    array, kind, argument = file[mutation.name][()], mutation.kind, mutation.argument
    del file[mutation.name]
    if kind == "missing":
        return
    if kind == "group":
        file.create_group(mutation.name)
    elif kind == "dangling":
        file[mutation.name] = h5py.SoftLink("/nowhere")
    elif kind == "text":
        file[mutation.name] = argument.replace("\0", "")
    elif kind == "shape" and argument == "huge":
        shape = (2**36, *np.shape(array)[1:])
        file.create_dataset(mutation.name, shape, np.asarray(array).dtype, chunks=(1024, *np.shape(array)[1:])
                            if 0 not in np.shape(array)[1:] else None)
    else:
        file[mutation.name] = changed(np.asarray(array), mutation)


def changed(array: np.ndarray, mutation: Mutation) -> np.ndarray:
    """An array after a mutation of its values, order, type or shape."""
    kind, argument = mutation.kind, mutation.argument
    if kind == "type":
        with np.errstate(all="ignore"):
            return array.astype(argument)
    if kind in ("value", "fill"):
        return _with_value(array.copy(), argument, slice(None) if kind == "fill" else mutation.place)
    if kind == "order":
        rows = np.atleast_1d(array)
        if argument == "reversed":
            return rows[::-1]
        if argument == "sorted":
            return np.sort(rows, axis=0)
        if argument == "constant":
            return np.repeat(rows[:1], len(rows), axis=0)
        rng = np.random.default_rng(argument if isinstance(argument, int) else 0)
        return rng.permutation(rows) if argument == "shuffled" else _two_swapped(rows, rng)
    return _with_shape(array, argument)


def _two_swapped(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rows = rows.copy()
    if len(rows) > 1:
        a, b = rng.choice(len(rows), 2, replace=False)
        rows[[a, b]] = rows[[b, a]]
    return rows


def _with_value(array: np.ndarray, value: float, place: float | slice) -> np.ndarray:
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        value = limits.max if value != value else int(min(max(value, limits.min), limits.max))
    if array.size:
        entries = array.reshape(-1)
        with np.errstate(all="ignore"):
            entries[place if isinstance(place, slice) else round(place * (array.size - 1))] = value
        return entries.reshape(array.shape)
    return array


def _with_shape(array: np.ndarray, shape: str) -> np.ndarray:
    rows = np.atleast_1d(array)
    shapes = {"longer": lambda: np.concatenate([rows, rows[-1:]]), "shorter": lambda: rows[:-1],
              "empty": lambda: rows[:0], "scalar": lambda: rows.reshape(-1)[0] if rows.size else rows.dtype.type(0),
              "column": lambda: array[..., None], "row": lambda: array[None], "flat": lambda: array.reshape(-1),
              "transposed": lambda: np.ascontiguousarray(array.T), "cubed": lambda: array[None, None, None]}
    return np.asarray(shapes[shape]())


def _change_attribute(attributes: h5py.AttributeManager, mutation: Mutation) -> None:
    name, kind, argument = mutation.attribute, mutation.kind, mutation.argument
    value = attributes[name]
    del attributes[name]
    if kind == "missing":
        return
    if kind == "json" and isinstance(value, str):
        argument = _changed_text(value, argument)
    elif kind == "json":
        argument = json.dumps(argument[1])
    elif kind == "type":
        argument = _as_type(value, argument)
    elif kind == "array":
        argument = [argument] * 3
    attributes[name] = argument.replace("\0", "") if isinstance(argument, str) else _stored(argument)


def _stored(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return np.array(min(max(value, -(2**63)), 2**63 - 1), np.int64)
    return value


def _as_type(value: Any, kind: str) -> Any:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(value).astype(kind)
    except (TypeError, ValueError):
        return np.zeros((), kind)


def _changed_text(text: str, change: list) -> str:
    """JSON with another leaf; text that is none, or is to be torn, in part."""
    share, leaf = change
    try:
        content = json.loads(text)
    except ValueError:
        return text[:int(share * len(text))]
    if leaf == "torn" or not isinstance(content, (dict, list)):
        return text[:int(share * len(text))]
    places = list(_places(content))
    if not places:
        return json.dumps(leaf)
    holder, key = places[int(share * len(places)) % len(places)]
    if leaf == "delete":
        del holder[key]
    else:
        holder[key] = leaf
    return json.dumps(content)


def _places(content: Any):
    """(container, key) of everything inside some JSON."""
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], (dict, list)):
            yield from _places(content[key])
