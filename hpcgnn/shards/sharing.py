"""Gives all ranks the dataset that rank 0 has read: its arrays go through files that each rank maps.

So ranks of one node have them in memory once. The files go when the shards are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.data.arrays import RowFile, in_pieces
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.features import FeatureRows
from hpcgnn.errors import ShardError
from hpcgnn.shards.features import row_slices
from hpcgnn.shards.folder import Crew, by_leader
from hpcgnn.shards.records import packed_texts, unpacked_texts
from hpcgnn.shards.sealed import reason_of

FOLDER = "shared"
CSR_PARTS = ("data", "indices", "indptr")
TEXT_PARTS = ("bytes", "offset")


@contextmanager
def shared_graph(crew: Crew, folder: Path, dataset: GraphDataset | None, *arrays: np.ndarray | None
                 ) -> Iterator[tuple[GraphDataset | np.ndarray | None, ...]]:
    """Collective: give every rank the dataset and the arrays of rank 0, until the block ends.

    `folder` must be visible to all ranks. On other ranks `dataset` and `arrays` are None; an array may be None on rank
    0, too. Raises ShardError on all ranks if the disk is full.
    """
    if crew.size == 1:
        yield (dataset, *arrays)
        return
    place = folder / FOLDER
    held = by_leader(crew, lambda: _put_all(place, dataset, arrays))
    if crew.rank:
        dataset, *arrays = crew.together(lambda: _take_all(place, *held))
    else:
        crew.together(lambda: None)
    yield (dataset, *arrays)
    by_leader(crew, lambda: shutil.rmtree(place, ignore_errors=True))


def _put_all(place: Path, dataset: GraphDataset, arrays: tuple[np.ndarray | None, ...]) -> tuple[GraphDataset, list]:
    try:
        place.mkdir()
        named = {item.name: _put(place, item.name, getattr(dataset, item.name)) for item in fields(dataset)}
        return replace(dataset, **named), [_put(place, f"array-{k}", array) for k, array in enumerate(arrays)]
    except OSError as reason:
        raise ShardError(f"{place.parent} can't take the graph for the other ranks: {reason_of(reason)}; check the "
                         "space on its disk, or start one process") from reason


class Put(str):
    """The name of a file that holds an array."""


class PutTexts(Put):
    """The name of two files that hold texts."""


class PutCsr(Put):
    """The name of three files that hold a CSR matrix."""


def _put(place: Path, name: str, value: object) -> object:
    if isinstance(value, FeatureRows):
        return replace(value, source=_put(place, name, value.source))
    if scipy.sparse.issparse(value):
        for part in CSR_PARTS:
            np.save(place / f"{name}-{part}.npy", getattr(value, part), allow_pickle=False)
        return PutCsr(name), value.shape
    if isinstance(value, RowFile):
        mapped = np.lib.format.open_memmap(place / f"{name}.npy", "w+", value.dtype, value.shape)
        for rows in row_slices(*value.shape):
            mapped[rows] = value[rows]
            mapped.flush()
        return Put(name)
    if isinstance(value, np.ndarray) and value.dtype == object:
        for part, array in zip(TEXT_PARTS, packed_texts(value), strict=True):
            np.save(place / f"{name}-{part}.npy", array, allow_pickle=False)
        return PutTexts(name)
    if isinstance(value, np.ndarray):
        np.save(place / f"{name}.npy", value, allow_pickle=False)
        return Put(name)
    return value


def _take_all(place: Path, dataset: GraphDataset, arrays: list) -> list:
    named = {item.name: _take(place, getattr(dataset, item.name)) for item in fields(dataset)}
    return [replace(dataset, **named), *(_take(place, array) for array in arrays)]


def _take(place: Path, value: object) -> object:
    if isinstance(value, FeatureRows):
        return replace(value, source=in_pieces(_take(place, value.source)))
    if isinstance(value, tuple) and value and isinstance(value[0], PutCsr):
        parts = [np.load(place / f"{value[0]}-{part}.npy", mmap_mode="r") for part in CSR_PARTS]
        return scipy.sparse.csr_matrix(tuple(parts), shape=value[1], copy=False)
    if isinstance(value, PutTexts):
        return unpacked_texts(*(np.load(place / f"{value}-{part}.npy") for part in TEXT_PARTS))
    if isinstance(value, Put):
        array = np.load(place / f"{value}.npy", mmap_mode="r")
        return array if array.size else np.array(array)
    return value
