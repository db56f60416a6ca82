"""Generations: the two checkpoints of a run folder, of which one is whole at every instant. Only rank 0 writes."""

from __future__ import annotations

import os
from pathlib import Path

from hpcgnn.errors import CheckpointError
from hpcgnn.shards.seal import sync_folder
from hpcgnn.shards.sealed import reason_of
from hpcgnn.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

CURRENT, PREVIOUS, INCOMING = "checkpoint.h5", "checkpoint-previous.h5", "checkpoint-incoming.h5"
DAMAGED = "checkpoint-damaged.h5"


class Generations:
    """The checkpoints of one run folder.

    Attributes
    ----------
    current : Path       the last one
    previous : Path      the one before; there is none after the first
    """

    def __init__(self, folder: Path):
        self.current, self.previous = folder / CURRENT, folder / PREVIOUS
        self._incoming, self._damaged = folder / INCOMING, folder / DAMAGED

    @property
    def exist(self) -> bool:
        """Tell whether there is a checkpoint of either generation, whole or not."""
        return any(os.path.lexists(path) for path in (self.current, self.previous))

    def write(self, checkpoint: Checkpoint) -> None:
        """Make this the last checkpoint and the last one the previous; after a failure both are as they were.

        Raises
        ------
        CheckpointError      the folder can't be written or the disk is full
        """
        # The new one is whole and on the disk before the old ones move.
        write_checkpoint(self._incoming, checkpoint)
        try:
            if self.current.exists():
                os.replace(self.current, self.previous)
            os.replace(self._incoming, self.current)
            sync_folder(self.current.parent)
        except OSError as reason:
            raise CheckpointError(f"{self.current} can't be replaced: {reason_of(reason)}; check the folder and the "
                                  "space on its disk, then go on with --resume") from reason

    def read(self) -> tuple[Checkpoint, str | None]:
        """Return the last checkpoint; or the previous one, and a sentence that says why.

        Raises
        ------
        CheckpointError      none is whole; the sentence is that of the last one
        """
        try:
            return read_checkpoint(self.current), None
        except CheckpointError as failure:
            try:
                checkpoint = read_checkpoint(self.previous)
            except CheckpointError:
                raise failure from None
            place = f"epoch {checkpoint.progress.epoch}"
            if checkpoint.progress.seed_index:
                place += f" of training {checkpoint.progress.seed_index + 1}"
            reason = str(failure).rpartition("; ")[0]
            return checkpoint, f"{reason}; the run goes on from {self.previous.name}, after {place}"

    def restore_previous(self) -> None:
        """Make the previous checkpoint, which `read` has returned, the current one; a damaged one is kept aside.

        Raises
        ------
        CheckpointError      a file can't be renamed
        """
        try:
            if os.path.lexists(self.current):
                os.replace(self.current, self._damaged)
            os.replace(self.previous, self.current)
            sync_folder(self.current.parent)
        except OSError as reason:
            raise CheckpointError(f"{self.previous} can't take the place of {self.current}: {reason_of(reason)}; check "
                                  "the folder") from reason

    def torn(self) -> list[Path]:
        """List what a rank 0 that was killed while it wrote a checkpoint has left."""
        folder = self.current.parent
        return [path for pattern in (INCOMING, f"{INCOMING}.tmp-*", f"{CURRENT}.tmp-*")
                for path in sorted(folder.glob(pattern))]

    @property
    def files(self) -> list[Path]:
        """List the files that may be there, whole or not, except torn ones."""
        return [self.current, self.previous, self._damaged]

