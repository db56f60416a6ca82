"""The folder that shards are written to: one writer at a time, and new shards replace old ones at once.

New files are written in a hidden folder inside. Renaming it to `.arrived` is the one step that replaces the old shards:
readers look there first. Afterwards files are moved out and old ones removed; if this is interrupted, the next writer
completes it.

A `Crew` is the ranks that make shards together. The arrays of the graph that rank 0 has read go to the others through
files that each rank maps, so that the ranks of one node hold them in memory once. `Stages` keep what an interrupted
run has finished (owners, orders of rows) in another hidden folder, for the next run on the same graph.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pickle
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import h5py
import numpy as np

import hpcgnn
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import Progress, silent
from hpcgnn.errors import HpcgnnError, ShardError
from hpcgnn.shards.features import hash_graph, row_slices
from hpcgnn.shards.schema import ARRIVED, DIGEST_BYTES, GRAPH_FILE, INCOMING_PATTERN, PART_PATTERN, part_file
from hpcgnn.shards.sealed import open_sealed, reason_of, sync_folder, write_sealed

if TYPE_CHECKING:
    from hpcgnn.data.arrays import RowFile

Result = TypeVar("Result")


class Crew:
    """Ranks that work together: here a single process; in hpcgnn.library.preprocess the ranks of a communicator."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    def together(self, step: Callable[[], Result]) -> Result:
        """Collective: run a step that each rank does alone; an error of any rank is raised on all."""
        return step()

    def share(self, value: Any) -> Any:
        """Collective: the value that rank 0 passes."""
        return value

    def gather(self, value: Any) -> list:
        """Collective: the values that all ranks pass, by rank."""
        return [value]


ALONE = Crew()


def by_leader(crew: Crew, step: Callable[[], Result]) -> Result:
    """Collective: run a step on rank 0 and return its result on all."""
    return crew.share(crew.together(step if crew.rank == 0 else lambda: None))


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
    place = folder / "shared"
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
        from hpcgnn.data.arrays import RowFile

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
        from hpcgnn.data.arrays import in_pieces

        name, is_in_file = pid
        array = np.load(self._place / name, mmap_mode="r")
        return in_pieces(array) if is_in_file else array if array.size else np.array(array)


def check_folder(folder: Path, overwrite: bool) -> None:
    """Check that shards may be written to a folder, which need not exist; nothing is changed.

    Raises ShardError if the folder holds shards and overwrite is off, can't be made or written, or another preprocess
    writes to it.
    """
    folder = Path(folder)
    nearest = nearest_folder(folder)
    if not nearest.is_dir():
        raise ShardError(f"{folder} can't be written: {nearest} is not a folder; choose another --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ShardError(f"{folder} can't be written: no permission to write in {nearest}; choose another --out")
    held = shards_in(folder)
    if held and not overwrite:
        raise ShardError(f"{folder} already holds shards, {held[0].name} among {len(held)} files; "
                         "pass --overwrite to replace them, or choose another --out")
    if nearest == folder:
        try:
            with _locked(folder):
                pass
        except OSError as reason:
            raise ShardError(f"{folder} can't be read: {reason_of(reason)}; choose another --out") from reason


def nearest_folder(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


@contextmanager
def incoming(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder inside `folder` to write new shards in; when the block ends well they replace the old ones.

    If the block fails or the process is killed in it, the old shards stay. Raises ShardError as `check_folder`, or if a
    file can't be moved or removed.
    """
    staging = folder / INCOMING_PATTERN.replace("*", f"{socket.gethostname()}-{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise ShardError(f"{folder} can't be made: {reason_of(reason)}; choose another --out") from reason
    with _locked(folder):
        if shards_in(folder) and not overwrite:
            raise ShardError(f"{folder} has got shards since this command started; pass --overwrite to replace them, "
                             "or choose another --out")
        try:
            _tidy(folder)
            staging.mkdir()
            yield staging
            _replace_shards(folder, staging)
        except OSError as reason:
            raise ShardError(f"shards of {folder} can't be replaced: {reason_of(reason)}; what the folder holds is "
                             "whole, start again or choose another --out") from reason
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def shards_in(folder: Path) -> list[Path]:
    """Shard files of a folder, graph.h5 first, including arrived ones that were not moved out."""
    places = [place for place in (folder / ARRIVED, folder) if os.path.exists(place)]
    graphs = [place / GRAPH_FILE for place in places if (place / GRAPH_FILE).exists()]
    return graphs + [path for place in places for path in sorted(place.glob(PART_PATTERN))]


def find_shard(path: Path) -> Path:
    """Where a shard file lies: at `path`, or among arrived shards that were not moved out."""
    arrived = path.parent / ARRIVED / path.name
    return arrived if os.path.exists(arrived) else path


def _replace_shards(folder: Path, staging: Path) -> None:
    sync_folder(staging)
    os.rename(staging, folder / ARRIVED)
    sync_folder(folder)
    _tidy(folder)


def _tidy(folder: Path) -> None:
    # Move arrived shards out; remove the shards they replace, and files of killed runs. graph.h5 moves last: as long as
    # parts lie in `.arrived`, the file there names their run.
    arrived = folder / ARRIVED
    if (arrived / GRAPH_FILE).exists():
        parts = sorted(path.name for path in arrived.glob(PART_PATTERN))
        if parts and parts[0] == part_file(arrived, 0).name:
            # Nothing was moved yet, so a part without a namesake among the arrived ones belongs to the old run.
            for path in folder.glob(PART_PATTERN):
                if path.name not in parts:
                    path.unlink()
        for name in (*parts, GRAPH_FILE):
            os.replace(arrived / name, folder / name)
        sync_folder(folder)
    for left in (*folder.glob(INCOMING_PATTERN), arrived):
        if left.is_dir():
            shutil.rmtree(left)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # The system releases the lock when this process ends, however it ends.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            raise ShardError(f"another hpcgnn preprocess writes to {folder} now; wait for it, or choose another "
                             "--out") from reason
        except OSError as reason:
            # File systems without locks report various errors: EBADF for a folder on NFS, 524 on Cray's DVS.
            print(f"{folder} is on a file system without locks ({reason_of(reason)}); start no second preprocess on it",
                  file=sys.stderr)
        yield
    finally:
        os.close(descriptor)


FOLDER, KIND, VERSION = ".unfinished", "stage", 1
LEAST_EDGES = 1 << 20     # the stages of a smaller graph take no longer than their files
PARTITIONERS = ("kaminpar", "pymetis")

Made = tuple[np.ndarray, str]


@dataclass(frozen=True)
class Stages:
    """Results of finished stages of a run of preprocess; a `folder` of None keeps nothing.

    `key` is a digest of the graph, the options and the versions that decide every stage.
    """

    folder: Path | None
    key: str
    progress: Progress

    def result(self, name: str, make: Callable[[], Made]) -> Made:
        """The result that an interrupted run kept under this name and key; else the result of `make`, which is kept.

        Raises ShardError if the disk is full.
        """
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.h5"
        found = self._kept(path, name) if path.exists() else None
        if found is not None:
            return found
        values, note = make()

        def fill(file: h5py.File) -> None:
            file.attrs["key"], file.attrs["note"] = self.key, note
            file["values"] = values

        write_sealed(path, KIND, VERSION, fill)
        return values, note

    def _kept(self, path: Path, name: str) -> Made | None:
        try:
            with open_sealed(path, KIND, VERSION) as file:
                if file.attrs["key"] == self.key:
                    self.progress(f"taking {name} from an interrupted run", None)
                    return file["values"][()], file.attrs["note"]
        except ShardError:
            self.progress(f"{name} of an interrupted run is damaged, so it is made anew", None)
            return None
        self.progress(f"{name} of an interrupted run is of another graph or other options, so it is made anew", None)
        return None


NO_STAGES = Stages(None, "", silent)


@contextmanager
def kept_stages(crew: Crew, out_dir: Path, dataset: GraphDataset | None, options: dict[str, object],
                progress: Progress) -> Iterator[Stages]:
    """Collective: the stages of a run, which stay if it is killed and go when it ends in order.

    `dataset` is None on ranks other than 0. `options` holds everything that decides the stages, apart from the graph
    and versions.
    """
    key = by_leader(crew, lambda: _key_of(dataset, options))
    folder = None if key is None else out_dir / FOLDER
    was_there = out_dir.exists()
    if folder is not None:
        by_leader(crew, lambda: _make(folder))
    try:
        yield Stages(folder, key or "", progress)
    except HpcgnnError:
        if crew.rank == 0:
            _remove(folder)
            if not was_there:
                with suppress(OSError):      # the folder holds something, or was not made
                    out_dir.rmdir()
        raise
    if crew.rank == 0:
        _remove(folder)


def _key_of(dataset: GraphDataset, options: dict[str, object]) -> str | None:
    if dataset.num_edges < LEAST_EDGES:
        return None
    decisive = (hpcgnn.__version__, *map(_version_of, PARTITIONERS), hash_graph(dataset), dataset.num_nodes,
                sorted(options.items()))
    return hashlib.blake2b(repr(decisive).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise ShardError(f"{folder.parent} can't be made: {reason_of(reason)}; choose another --out") from reason


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
