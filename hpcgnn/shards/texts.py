"""Texts of any length in an HDF5 file: one array of UTF-8 bytes and one of where each text starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.errors import ShardError
from hpcgnn.shards.layout import check_layout
from hpcgnn.shards.sealed import AGAIN


def store_texts(file: h5py.Group, name: str, texts: Sequence[str] | np.ndarray) -> None:
    """Write a group `name` with `bytes`, uint8, and `offset`, int64 (num_texts + 1)."""
    file[f"{name}/bytes"], file[f"{name}/offset"] = packed_texts(texts)


def load_texts(file: h5py.Group, path: Path, name: str, num_texts: int) -> np.ndarray:
    """Read what store_texts wrote.

    Returns
    -------
    texts : (num_texts,) objects that are str, so that one long text costs no more than itself

    Raises
    ------
    ShardError                arrays of another type or size, offsets that do not rise, or bytes that are no UTF-8
    """
    check_layout(file, path, {f"{name}/offset": (np.int64, (num_texts + 1,))})
    offset = file[f"{name}/offset"][()]
    if offset[0] != 0 or (offset[1:] < offset[:-1]).any():
        raise ShardError(f"{path} has {name}/offset that does not rise from 0; {AGAIN}")
    check_layout(file, path, {f"{name}/bytes": (np.uint8, (int(offset[-1]),))})
    try:
        return unpacked_texts(file[f"{name}/bytes"][()], offset)
    except UnicodeDecodeError:
        raise ShardError(f"{path} has {name} that is no UTF-8; {AGAIN}") from None


def packed_texts(texts: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the UTF-8 bytes of all texts, uint8, and where each starts, int64 (num_texts + 1)."""
    encoded = [str(text).encode("utf-8") for text in texts]
    offset = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offset[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offset


def unpacked_texts(content: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return what packed_texts packed, (num_texts,) objects that are str. Raises UnicodeDecodeError for other bytes."""
    memory = content.tobytes()
    texts = [memory[first:last].decode("utf-8")
             for first, last in zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True)]
    return np.array(texts, dtype=object)
