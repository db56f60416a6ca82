"""The folder that shards are written to: may it be used, and what of an earlier run must go. No content here."""

from __future__ import annotations

import os
from pathlib import Path

from hpcgnn.errors import ShardError
from hpcgnn.shards.schema import GRAPH_FILE, PART_PATTERN, TEMPORARY_PATTERN
from hpcgnn.shards.sealed import reason_of


def prepare_folder(folder: Path, overwrite: bool) -> None:
    """Make the folder if it is not there, and check that it can be written; nothing in it is changed.

    Raises
    ------
    ShardError                it holds shards and overwrite is off, or it can't be made or written
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.tmp-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as reason:
        raise ShardError(f"{folder} can't be written: {reason_of(reason)}; choose another --out") from reason
    held = shards_in(folder)
    if held and not overwrite:
        raise ShardError(f"{folder} already holds shards ({held[0].name} and {len(held) - 1} more files); "
                         "pass --overwrite to replace them, or choose another --out")


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
