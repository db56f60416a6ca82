"""The folder that shards are written to: may it be used, and what of an earlier run must go. No content here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcgnn.errors import ShardError
from hpcgnn.shards.schema import GRAPH_FILE, INCOMING_PATTERN, PART_PATTERN
from hpcgnn.shards.seal import sync_folder
from hpcgnn.shards.sealed import reason_of


def check_folder(folder: Path, overwrite: bool) -> None:
    """Check that shards may be written to a folder, which need not exist yet; nothing is made or changed.

    Raises
    ------
    ShardError                it holds shards and overwrite is off, or it can't be made or written
    """
    folder = Path(folder)
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ShardError(f"{folder} can't be written: {nearest} is not a folder; choose another --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ShardError(f"{folder} can't be written: no permission to write in {nearest}; choose another --out")
    held = shards_in(folder)
    if held and not overwrite:
        raise ShardError(f"{folder} already holds shards, {held[0].name} among {len(held)} files; "
                         "pass --overwrite to replace them, or choose another --out")


@contextmanager
def incoming(folder: Path) -> Iterator[Path]:
    """A folder inside `folder` to write new shards in; when the block ends well they take the place of the old ones.

    If the block fails, or the process is killed in it, the old shards stay as they were.

    Raises
    ------
    ShardError                the folder can't be made, or a file can't be moved or removed
    """
    staging = folder / INCOMING_PATTERN.replace("*", str(os.getpid()))
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise ShardError(f"{folder} can't be made: {reason_of(reason)}; choose another --out") from reason
    try:
        yield staging
        _replace_shards(folder, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def shards_in(folder: Path) -> list[Path]:
    """Files of an earlier run, whole or not, graph.h5 first."""
    graph = [path for path in (folder / GRAPH_FILE,) if path.exists()]
    return graph + sorted(folder.glob(PART_PATTERN))


def _replace_shards(folder: Path, staging: Path) -> None:
    """graph.h5 goes first and comes last, so that no reader takes a mixture for a whole."""
    try:
        for path in shards_in(folder):
            path.unlink()
        for path in reversed(shards_in(staging)):
            os.replace(path, folder / path.name)
        for left in folder.glob(INCOMING_PATTERN):
            shutil.rmtree(left)
        sync_folder(folder)
    except OSError as reason:
        raise ShardError(f"shards of {folder} can't be replaced: {reason_of(reason)}; choose another --out") from reason
