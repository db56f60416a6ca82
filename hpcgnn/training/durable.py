"""Writes that a power cut can't undo: a file of these is on the disk when they return. No content is known here."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hpcgnn.shards.seal import sync_folder


def replace_text(path: Path, text: str) -> None:
    """Give a file this content, whole or not at all; raises OSError, and what was there stays."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Bring what was appended to a file, and its name, to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
