"""RunFolder: config.toml, metrics.jsonl, summary.json and the checkpoints of a run; only rank 0 writes them.

Each rank also keeps its own file there (`RankFiles`). `replace_text` and `sync_file` return only when the content is on
the disk, so a power cut can't undo it. docs/run-folder.md says what users may rely on.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcgnn.errors import TrainingError
from hpcgnn.registry import as_toml, read_json, seal_json, seal_toml
from hpcgnn.run.launch import together
from hpcgnn.shards.schema import GRAPH_FILE
from hpcgnn.shards.sealed import sync_folder
from hpcgnn.training.checkpoint import Checkpoint, Generations, Progress
from hpcgnn.training.run_lock import RunLock


def replace_text(path: Path, text: str) -> None:
    """Replace a file's content, completely or not at all; if it raises OSError, the old content stays."""
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
    """Flush appended content, and the file's name, to the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


class RankFiles:
    """The rank states of one run folder: `rank-RRRR-TOKEN.h5`, with the token of its checkpoint.

    `has_complained` is set once the user was told that they can't be written.
    """

    def __init__(self, folder: Path):
        self.folder, self.has_complained = folder, False

    def path(self, rank: int, token: str) -> Path:
        return self.folder / f"rank-{rank:04d}-{token}.h5"

    def num_ranks(self, token: str) -> int:
        return len(list(self.folder.glob(f"rank-*-{token}.h5")))

    def all(self) -> list[Path]:
        """Complete and unfinished files of all checkpoints."""
        return sorted(self.folder.glob("rank-*.h5*"))

    def torn(self) -> list[Path]:
        """Unfinished files that killed ranks have left."""
        return [path for path in self.all() if path.suffix != ".h5"]

    def remove_others(self, *tokens: str) -> None:
        """For rank 0, after all ranks have written: remove files of all other tokens; TrainingError if that fails."""
        for path in self.all():
            if path.suffix == ".h5" and path.stem.rpartition("-")[2] in tokens:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise TrainingError(f"{path} can't be removed: {error.strerror}; check the folder") from error


CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"


class RunFolder:
    """One run's folder. Only rank 0 may call the methods. They raise TrainingError if a file can't be read or written.

    `lock`, if any, is checked before every write; `rank_files` hold what each rank remembers apart from the
    checkpoints.
    """

    def __init__(self, path: Path, lock: RunLock | None = None):
        self.path, self.lock = Path(path), lock
        self.generations = Generations(self.path)
        self.rank_files = RankFiles(self.path)

    @property
    def checkpoint(self) -> Path:
        return self.generations.current

    def create(self, overwrite: bool, resume: bool = False) -> None:
        """Make the folder. An earlier run in it is refused, or removed with `overwrite`.

        With `resume`, a run that stopped before its first checkpoint is also removed: it can't continue.
        """
        if os.path.lexists(self.path / GRAPH_FILE):
            raise TrainingError(f"run folder {self.path} holds shards; choose another with --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise TrainingError(f"run folder {self.path} can't be written: {error.strerror}; "
                                "choose another with --out") from error
        old = [path for path in (self.path / METRICS, self.path / SUMMARY, *self.generations.files)
               if os.path.lexists(path)]
        if old and not overwrite and not (resume and old == [self.path / METRICS]):
            names = ", ".join(path.name for path in old)
            raise TrainingError(f"{self.path} already holds a run ({names}); continue it with --resume, "
                                "replace it with --overwrite, or choose another --out")
        self._remove(*old, *self.generations.torn(), *self.rank_files.all())

    def write_config(self, settings: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Write config.toml: the resolved settings, which --config reads, and where they were used."""
        self._write(CONFIG, seal_toml(as_toml({"": settings, "provenance": provenance})))

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl. JSON has no NaN or infinity, so these become null."""
        self._check_lock()
        with _or_refused(self.path / METRICS, "written"), open(self.path / METRICS, "a") as file:
            file.write(seal_json(json.dumps(_finite(record))) + "\n")

    def sync_metrics(self) -> None:
        self._check_lock()
        file = self.path / METRICS
        with _or_refused(file, "flushed to the disk"):
            if file.exists():
                sync_file(file)

    def go_on_from(self, progress: Progress, first_seed: int) -> str | None:
        """Remove what a checkpoint does not count: lines of later epochs, damaged lines, the summary, unfinished files.

        `progress` is the checkpoint's, `first_seed` the seed of the first training. Returns a sentence on epochs
        without a line, or None.
        """
        file, place = self.path / METRICS, (first_seed + progress.seed_index, progress.epoch)
        lines = self._lines()
        kept, last, num_damaged = [], (first_seed, 0), 0
        for line in lines:
            record = _record_of(line)
            num_damaged += record is None
            epoch = last if record is None else (record["seed"], record["epoch"])
            if last < epoch <= place:
                kept.append(line)
                last = epoch
        with _or_refused(file, "cut back to its checkpoint"):
            if kept == lines[:len(kept)] and file.exists():
                os.truncate(file, sum(len(line) + 1 for line in kept))
                sync_file(file)
            else:
                replace_text(file, "".join(f"{line.decode()}\n" for line in kept))
        self._remove(self.path / SUMMARY, *self.generations.torn(), *self.rank_files.torn())
        return self._complaint(progress.num_epochs, len(kept), num_damaged)

    def _complaint(self, num_epochs: int, num_kept: int, num_damaged: int) -> str | None:
        damaged = f"; damaged lines removed: {num_damaged}" if num_damaged else ""
        if num_kept < num_epochs:
            return (f"{self.path / METRICS} lacks the lines of {num_epochs - num_kept} of the {num_epochs} epochs that "
                    f"its checkpoint counts{damaged}; the run goes on, and its statistics leave those epochs out")
        return f"{self.path / METRICS} had damaged lines after its last checkpoint{damaged}" if num_damaged else None

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines of metrics.jsonl."""
        return [record for record in map(_record_of, self._lines()) if record is not None]

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json; its presence means that the run is complete."""
        self.sync_metrics()
        self._write(SUMMARY, seal_json(json.dumps(_finite(summary), indent=2)) + "\n")

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def _lines(self) -> list[bytes]:
        """Finished lines, without text after the last newline, which was cut off when a run was killed."""
        try:
            return (self.path / METRICS).read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrainingError(f"{self.path / METRICS} can't be read: {error.strerror}; restore it, or remove it: the "
                                "run goes on without it") from error

    def _remove(self, *paths: Path) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise TrainingError(f"{path} can't be removed: {error.strerror}; choose another --out") from error

    def _write(self, name: str, text: str) -> None:
        self._check_lock()
        with _or_refused(self.path / name, "written"):
            replace_text(self.path / name, text)


REMEDIES = {errno.ENOENT: "the folder was moved or removed; put it back", errno.EACCES: "make it writable",
            errno.EPERM: "make it writable", errno.EROFS: "make it writable"}


@contextmanager
def _or_refused(file: Path, done: str) -> Iterator[None]:
    """Raise TrainingError, with a remedy, if the block can't have a file written, flushed or cut back."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "free space on its disk")
        raise TrainingError(f"{file} can't be {done}: {error.strerror}; {remedy}, then go on with --resume") from error


def _record_of(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        record, is_sealed = read_json(line.decode())
        return record if is_sealed else None
    return None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save(comm: MPI.Comm, folder: RunFolder, checkpoint_of: Callable[[str], Checkpoint],
         write_rank_state: Callable[[str], None], last_token: str | None) -> str:
    """Collective: write the ranks' states, then metrics.jsonl, then a checkpoint. Returns the new checkpoint's token.

    All ranks call `write_rank_state` first, then rank 0 calls `checkpoint_of`, both with the new token. `last_token` is
    the token of the newest checkpoint so far, which is kept as the previous one. CollectiveError on all ranks if a file
    can't be written; the checkpoint of `last_token` is then unchanged.
    """
    token = comm.bcast(secrets.token_hex(16) if comm.rank == 0 else None)

    write_rank_state(token)

    def write_generation() -> None:
        if comm.rank == 0:
            folder.sync_metrics()
            folder.generations.write(checkpoint_of(token))
            folder.rank_files.remove_others(token, *([last_token] if last_token else []))

    together(comm, write_generation)
    return token
