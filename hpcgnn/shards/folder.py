"""The folder that shards are written to: may it be used, and what of an earlier run must go. No content here."""

from __future__ import annotations

import os
from pathlib import Path

from hpcgnn.errors import ShardError
from hpcgnn.shards.schema import GRAPH_FILE, PART_PATTERN, TEMPORARY_PATTERN
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


def make_folder(folder: Path) -> None:
    """Make the folder and those above it.

    Raises
    ------
    ShardError                it can't be made
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise ShardError(f"{folder} can't be made: {reason_of(reason)}; choose another --out") from reason


def shards_in(folder: Path) -> list[Path]:
    """Files of an earlier run, whole or not, graph.h5 first."""
    graph = [path for path in (folder / GRAPH_FILE,) if path.exists()]
    return graph + sorted(folder.glob(PART_PATTERN))


def remove_shards(folder: Path) -> None:
    """Remove the files of an earlier run, graph.h5 first so that no reader takes what is left for whole.

    Raises
    ------
    ShardError                a file can't be removed
    """
    try:
        for path in shards_in(folder) + sorted(folder.glob(TEMPORARY_PATTERN)):
            path.unlink()
    except OSError as reason:
        raise ShardError(f"{path} can't be removed: {reason_of(reason)}; choose another --out") from reason
