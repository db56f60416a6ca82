"""corrupt: random damage to every file that hpcgnn writes. It must be refused in one sentence, or read as it was.

A damaged file that is read with other values is a failure, and so is any exception that is no sentence.
"""

from __future__ import annotations

import random
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

mpi4py.rc.initialize = False     # reading needs no MPI, and a process that has it must not be forked

from campaigns.calls import last_of_traceback, shortened  # noqa: E402
from campaigns.forked import Worker  # noqa: E402
from campaigns.made_files import make_all  # noqa: E402

CASE_SECONDS = 20.0
Damage = Callable[[bytes, random.Random], bytes]


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut_the_end(content: bytes, rng: random.Random) -> bytes:
    return content[:rng.choice((0, 1, len(content) - 1, rng.randrange(len(content))))]


def zero_a_block(content: bytes, rng: random.Random) -> bytes:
    first = rng.randrange(len(content))
    size = min(rng.choice((1, 8, 512, 4096)), len(content) - first)
    return content[:first] + bytes(size) + content[first + size:]


def swap_blocks(content: bytes, rng: random.Random) -> bytes:
    size = rng.choice((1, 16, 512))
    a, b = sorted(rng.randrange(max(1, len(content) - size)) for _ in range(2))
    if b < a + size:
        return content
    return content[:a] + content[b:b + size] + content[a + size:b] + content[a:a + size] + content[b + size:]


def append_bytes(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.choice((1, 7, 512)))


def append_nulls(content: bytes, rng: random.Random) -> bytes:
    return content + bytes(rng.choice((1, 100, 4096)))


def nulls_at_the_end(content: bytes, rng: random.Random) -> bytes:
    """What a file system leaves that had given out blocks but not written them when power went."""
    first = rng.randrange(len(content))
    return content[:first] + bytes(len(content) - first)


def change_a_digit(content: bytes, rng: random.Random) -> bytes:
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    place = rng.choice(places) if places else 0
    return content[:place] + bytes([48 + (content[place] - 47) % 10]) + content[place + 1:]


def repeat_a_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    return b"".join([*lines[:place], lines[place], *lines[place:]])


def lose_a_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


DAMAGES: tuple[Damage, ...] = (flip_bits, flip_bits, cut_the_end, zero_a_block, swap_blocks, append_bytes, append_nulls,
                               nulls_at_the_end)
TEXT_DAMAGES: tuple[Damage, ...] = (*DAMAGES, change_a_digit, change_a_digit, repeat_a_line, lose_a_line)


@dataclass(frozen=True)
class Target:
    """A file, and what reads it: `read(file)` reads the folder that the file lies in."""

    path: Path
    read: Callable[[Path], Any]

    @property
    def damages(self) -> tuple[Damage, ...]:
        return DAMAGES if self.path.suffix == ".h5" else TEXT_DAMAGES


def read_graph(path: Path) -> Any:
    from hpcgnn.shards.reader import read_graph_info
    return read_graph_info(path.parent)


def read_part(path: Path) -> Any:
    from hpcgnn.shards.reader import read_graph_info, read_partition
    info = read_graph_info(path.parent)
    return read_partition(path.parent, int(path.stem.rpartition("-")[2]), info.num_parts, info)


def read_checkpoint_file(path: Path) -> Any:
    from hpcgnn.training.checkpoint import read_checkpoint
    return read_checkpoint(path)


def read_model_file(path: Path) -> Any:
    from hpcgnn.lowbit.inference.model_file import read_model
    return read_model(path)


def read_prediction_file(path: Path) -> Any:
    from hpcgnn.lowbit.inference.predictions import read_predictions
    return read_predictions(path)


def read_activation_file(path: Path) -> Any:
    from hpcgnn.lowbit.package_shards import read_activations
    return read_activations(path.parent, int(path.stem.rpartition("-")[2]))


def read_rank_file(path: Path) -> Any:
    """All that a rank's file holds; who goes on from it reads it behind the same check of its seal."""
    import h5py

    from hpcgnn.errors import CheckpointError
    from hpcgnn.shards.sealed import open_sealed
    from hpcgnn.training.rank_state import KIND, VERSION

    found = []
    with open_sealed(path, KIND, VERSION, error=CheckpointError, advice="begin anew") as file:
        found.append(("/", sorted(file.attrs.items())))
        file.visititems(lambda name, item: found.append(
            (name, sorted(item.attrs.items()), item[()] if isinstance(item, h5py.Dataset) else None)))
    return found


def read_run_folder(path: Path) -> Any:
    from hpcgnn.report.run_folder import read_run
    return read_run(path.parent, "run")


def targets_in(folders: dict[str, Path]) -> list[Target]:
    """All files with their readers."""
    shards = [folders[name] for name in ("shards", "shards-float16", "shards-package")]
    found = [Target(folder / "graph.h5", read_graph) for folder in shards]
    found += [Target(path, read_part) for folder in shards for path in sorted(folder.glob("part-*.h5"))]
    found += [Target(path, read_checkpoint_file) for path in sorted(folders["run"].glob("checkpoint*.h5"))]
    found += [Target(path, read_rank_file) for path in sorted(folders["adaqp"].glob("rank-*.h5"))]
    found += [Target(folders["made"] / "model.h5", read_model_file),
              Target(folders["made"] / "predictions.h5", read_prediction_file)]
    found += [Target(path, read_activation_file) for path in sorted(folders["packages"].glob("*.h5"))]
    found += [Target(folders["run"] / name, read_run_folder) for name in ("config.toml", "metrics.jsonl",
                                                                          "summary.json")]
    return found


def plain(value: Any) -> Any:
    """A value as nested tuples in which equal means equal in every bit."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    if is_dataclass(value):
        return tuple((item.name, plain(getattr(value, item.name))) for item in fields(value))
    return type(value).__name__, repr(value)


class Corrupt:
    """The campaign; see the module."""

    cases = range(2**62)

    def __init__(self, scratch: Path, seed: int, mpi: str):
        self._seed = seed
        self._targets = targets_in(make_all(scratch))
        self._whole = {target.path: target.path.read_bytes() for target in self._targets}
        self._expected = {target.path: plain(target.read(target.path)) for target in self._targets}
        self._worker = Worker(self._damage_and_read, CASE_SECONDS)

    def try_case(self, number: int) -> str | None:
        """Damage a file, read it, and put it back."""
        target = self._target(number)
        try:
            return self._worker.ask(number)
        finally:
            target.path.write_bytes(self._whole[target.path])

    def close(self) -> None:
        self._worker.close()

    def _target(self, number: int) -> Target:
        return self._targets[number % len(self._targets)]

    def _damage_and_read(self, number: int) -> str | None:
        from hpcgnn.errors import HpcgnnError

        rng, target = random.Random(f"{self._seed}/{number}"), self._target(number)
        damage = rng.choice(target.damages)
        target.path.write_bytes(damage(self._whole[target.path], rng))
        what = f"{target.path.parent.name}/{target.path.name} after {damage.__name__}"
        try:
            found = target.read(target.path)
        except HpcgnnError as error:
            return None if "\n" not in str(error) else f"{what}: a sentence of several lines: {shortened(str(error))}"
        except BaseException:
            return f"{what}: traceback: {last_of_traceback(traceback.format_exc())}"
        return None if plain(found) == self._expected[target.path] else f"{what}: read with other values"


def open_campaign(scratch: Path, seed: int, mpi: str) -> Corrupt:
    shutil.rmtree(scratch / "corrupt", ignore_errors=True)
    (scratch / "corrupt").mkdir(parents=True)
    return Corrupt(scratch / "corrupt", seed, mpi)
