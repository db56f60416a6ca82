"""Stages: what a run of preprocess that was interrupted had finished, for the next one on the same graph to take.

They lie in a hidden folder beside the shards, and are no part of them. What a stage computes is not known here.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import h5py
import numpy as np

import hpcgnn
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import Progress, silent
from hpcgnn.errors import HpcgnnError, ShardError
from hpcgnn.shards.crew import Crew, by_leader
from hpcgnn.shards.fingerprint import DIGEST_BYTES
from hpcgnn.shards.hashing import hash_graph
from hpcgnn.shards.sealed import open_sealed, reason_of, write_sealed

FOLDER, KIND, VERSION = ".unfinished", "stage", 1
LEAST_EDGES = 1 << 20     # the stages of a smaller graph take no longer than their files
PARTITIONERS = ("kaminpar", "pymetis")

Made = tuple[np.ndarray, str]


@dataclass(frozen=True)
class Stages:
    """Results of finished stages.

    Attributes
    ----------
    folder : Path or None     None keeps nothing
    key : str                 of the graph, the options and the versions that decide every stage
    progress : callable(description, total) -> ProgressTask
    """

    folder: Path | None
    key: str
    progress: Progress

    def result(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what an interrupted run has kept under this name and key, else what `make` returns, and keep it.

        Raises
        ------
        ShardError                the disk has no room
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
    """Collective: give the stages of a run, which stay if it is killed, and go when it ends in order.

    Parameters
    ----------
    dataset : GraphDataset on rank 0, None on others
    options : dict            all that decides what stages return, beside the graph and versions
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
                with suppress(OSError):      # it holds something, or was not made
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
