"""Gives all ranks the dataset that rank 0 has read: its arrays go through files that each rank maps.

So the ranks of one node hold them in memory once. The files are removed when the shards are written.
"""

from __future__ import annotations

import io
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.data.arrays import RowFile, in_pieces
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import ShardError
from hpcgnn.shards.features import row_slices
from hpcgnn.shards.folder import Crew, by_leader
from hpcgnn.shards.sealed import reason_of

FOLDER = "shared"


@contextmanager
def shared_graph(crew: Crew, folder: Path, dataset: GraphDataset | None, *arrays: np.ndarray | None
                 ) -> Iterator[tuple]:
    """Collective: give every rank the dataset and the arrays of rank 0, until the block ends.

    `folder` must be visible to all ranks. On other ranks `dataset` and `arrays` are None; an array may be None on rank
    0, too. Raises ShardError on all ranks if the disk is full.
    """
    held = (dataset, *arrays)
    if crew.size == 1:
        yield held
        return
    place = folder / FOLDER
    content = by_leader(crew, lambda: _put(place, held))
    yield crew.together(lambda: _Taking(place, content).load() if crew.rank else held)
    by_leader(crew, lambda: shutil.rmtree(place, ignore_errors=True))


def _put(place: Path, held: tuple) -> bytes:
    content = io.BytesIO()
    try:
        place.mkdir()
        _Putting(place, content).dump(held)
    except OSError as reason:
        raise ShardError(f"{place.parent} can't take the graph for the other ranks: {reason_of(reason)}; check the "
                         "space on its disk, or start one process") from reason
    return content.getvalue()


class _Putting(pickle.Pickler):
    """Writes arrays of numbers to separate files, and everything else to one stream."""

    def __init__(self, place: Path, content: io.BytesIO) -> None:
        super().__init__(content, pickle.HIGHEST_PROTOCOL)
        self._place, self._num_files = place, 0

    def persistent_id(self, value: Any) -> tuple[str, bool] | None:
        is_in_file = isinstance(value, RowFile)
        if not is_in_file and not (isinstance(value, np.ndarray) and value.dtype != object):
            return None
        name = f"{self._num_files}.npy"
        self._num_files += 1
        if is_in_file:
            mapped = np.lib.format.open_memmap(self._place / name, "w+", value.dtype, value.shape)
            for rows in row_slices(*value.shape):
                mapped[rows] = value[rows]
                mapped.flush()
        else:
            np.save(self._place / name, value, allow_pickle=False)
        return name, is_in_file


class _Taking(pickle.Unpickler):
    """Reads what `_Putting` wrote; arrays are mapped."""

    def __init__(self, place: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._place = place

    def persistent_load(self, pid: tuple[str, bool]) -> np.ndarray | RowFile:
        name, is_in_file = pid
        array = np.load(self._place / name, mmap_mode="r")
        return in_pieces(array) if is_in_file else array if array.size else np.array(array)
