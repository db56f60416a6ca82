"""Sealed files written anew after a change of their content, as a faulty program might write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py

from hpcgnn.shards.sealed import SEAL_BYTES, parse_seal, write_sealed


def reseal(path: Path, change: Callable[[h5py.File], object]) -> None:
    """Replace a sealed file by a copy that `change(file)` was applied to, with a seal that fits."""
    seal = parse_seal(path.read_bytes()[:SEAL_BYTES])
    with h5py.File(path) as source:
        def fill(file: h5py.File) -> None:
            for name, value in source.attrs.items():
                file.attrs[name] = value
            for name in source:
                source.copy(name, file)
            change(file)

        write_sealed(path.with_name("resealed"), seal.kind, seal.version, fill)
    path.with_name("resealed").replace(path)


def put(name: str, value: object) -> Callable[[h5py.File], None]:
    """A change that replaces a dataset; `value` may be a function of what was there."""
    def change(file: h5py.File) -> None:
        held = file[name][()]
        del file[name]
        file[name] = value(held) if callable(value) else value

    return change


def attribute(name: str, value: object) -> Callable[[h5py.File], None]:
    """A change that replaces an attribute, likewise."""
    def change(file: h5py.File) -> None:
        file.attrs[name] = value(file.attrs[name]) if callable(value) else value

    return change
