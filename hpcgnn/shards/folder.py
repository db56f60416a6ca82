"""The folder that shards are written to: one writer at a time, and new shards take the place of old ones at once.

New files are written in a hidden folder inside. Renaming that to `.arrived` is the one step that replaces the old
shards: readers look there first. What follows only tidies up, and the next writer ends it where it was interrupted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcgnn.errors import ShardError
from hpcgnn.shards.schema import ARRIVED, GRAPH_FILE, INCOMING_PATTERN, PART_PATTERN, part_file
from hpcgnn.shards.seal import sync_folder
from hpcgnn.shards.sealed import reason_of


def check_folder(folder: Path, overwrite: bool) -> None:
    """Check that shards may be written to a folder, which need not exist yet; nothing is made or changed.

    Raises
    ------
    ShardError                it holds shards and overwrite is off, it can't be made or written, or another preprocess
                              writes to it
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
    """Return the folder, or the nearest one above it that exists: on the disk that its files will be on."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


@contextmanager
def incoming(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder inside `folder` to write new shards in; when the block ends well they take the place of the old ones.

    If the block fails, or the process is killed in it, the old shards stay as they were; from the step on that replaces
    them, the new ones are there.

    Raises
    ------
    ShardError                as of check_folder; a file can't be moved or removed
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
    """Return shard files of a folder, of a whole run or of one that is tidied up later, graph.h5 first."""
    places = [place for place in (folder / ARRIVED, folder) if os.path.exists(place)]
    graphs = [place / GRAPH_FILE for place in places if (place / GRAPH_FILE).exists()]
    return graphs + [path for place in places for path in sorted(place.glob(PART_PATTERN))]


def find_shard(path: Path) -> Path:
    """Return where a shard file lies: at `path`, or among arrived shards that were not all moved out yet."""
    arrived = path.parent / ARRIVED / path.name
    return arrived if os.path.exists(arrived) else path


def _replace_shards(folder: Path, staging: Path) -> None:
    sync_folder(staging)
    os.rename(staging, folder / ARRIVED)
    sync_folder(folder)
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Move arrived shards out, remove what they replaced, and what killed runs left behind.

    graph.h5 goes last, so that `.arrived` names the run as long as a part of it may lie there.
    """
    arrived = folder / ARRIVED
    if (arrived / GRAPH_FILE).exists():
        parts = sorted(path.name for path in arrived.glob(PART_PATTERN))
        if parts and parts[0] == part_file(arrived, 0).name:
            # Nothing was moved yet, so what has no namesake among the arrived is of the old run.
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
    """Keep every other writer out; the system takes the lock away when this process ends, however it does.

    Raises
    ------
    ShardError                another process holds it
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            raise ShardError(f"another hpcgnn preprocess writes to {folder} now; wait for it, or choose another "
                             "--out") from reason
        except OSError as reason:
            # A file system without locks says so in words of its own: EBADF for a folder on NFS, 524 on Cray's DVS.
            print(f"{folder} is on a file system without locks ({reason_of(reason)}); start no second preprocess on it",
                  file=sys.stderr)
        yield
    finally:
        os.close(descriptor)
