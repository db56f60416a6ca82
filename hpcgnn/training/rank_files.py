"""RankFiles: the files of a run folder in which each rank keeps what it remembers, by name. What is in them, rank_state
knows.
"""

from __future__ import annotations

from pathlib import Path

from hpcgnn.errors import TrainingError


class RankFiles:
    """The rank states of one run folder: `rank-RRRR-TOKEN.h5`, which belongs to the checkpoint of that token.

    Attributes
    ----------
    folder : Path
    has_complained : bool      the user knows that they can't be written
    """

    def __init__(self, folder: Path):
        self.folder, self.has_complained = folder, False

    def path(self, rank: int, token: str) -> Path:
        """Return the file of one rank."""
        return self.folder / f"rank-{rank:04d}-{token}.h5"

    def num_ranks(self, token: str) -> int:
        """Ranks that have a file for a checkpoint."""
        return len(list(self.folder.glob(f"rank-*-{token}.h5")))

    def all(self) -> list[Path]:
        """Whole and torn files of every checkpoint."""
        return sorted(self.folder.glob("rank-*.h5*"))

    def torn(self) -> list[Path]:
        """List what ranks that were killed while they wrote have left."""
        return [path for path in self.all() if path.suffix != ".h5"]

    def remove_others(self, *tokens: str) -> None:
        """Remove the files that belong to no checkpoint of these tokens. For rank 0 alone, once all ranks have written.

        Raises
        ------
        TrainingError      a file can't be removed
        """
        for path in self.all():
            if path.suffix == ".h5" and path.stem.rpartition("-")[2] in tokens:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise TrainingError(f"{path} can't be removed: {error.strerror}; check the folder") from error
