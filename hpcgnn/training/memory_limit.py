"""A run within a limit of memory: its arena, how ranks share the limit, and what they write and read on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpcgnn.config import TrainConfig, parse_memory
from hpcgnn.errors import TrainingError
from hpcgnn.exchange.transfer import split_nodes
from hpcgnn.ops.arena import empty_array
from hpcgnn.ops.evictions import SLACK, row_bytes_that_fit, too_little
from hpcgnn.ops.limited_arena import LimitedArena, process_bytes
from hpcgnn.partition.partition import PartitionStatistics
from hpcgnn.run.launch import together
from hpcgnn.run.output import size_text
from hpcgnn.shards.features import FloatFeatures

DEFAULT_SCRATCH = "/var/tmp"
BYTES_AN_EDGE, BYTES_A_BEGIN, BYTES_AN_ID = 8, 8, 8


@dataclass(frozen=True)
class MemoryLimit:
    """This rank's share of --memory."""

    comm: MPI.Comm
    arena: LimitedArena
    num_mates: int      # ranks of this machine

    def check_part(self, part: PartitionStatistics) -> None:
        """Collective: CollectiveError if this rank's edges and rows alone exceed its limit, before they are read.

        The least that they take: edges by both of their ends, where a row's edges begin, and ids of rows.
        """
        rows = part.num_inner + part.num_halo
        least = BYTES_AN_EDGE * part.num_edges + BYTES_A_BEGIN * (part.num_inner + rows) + BYTES_AN_ID * rows
        reason = too_little(self.arena.limit, self.arena.slack, process_bytes() + least, self.num_mates)

        def refuse() -> None:
            if reason is not None:
                raise TrainingError(reason)

        together(self.comm, refuse)

    def check(self, sizes: tuple[int, int, int], table_bytes: int = 0) -> str | None:
        """Collective: settle how many columns are summed at a time; what to tell a user if that is no help.

        sizes : numbers of this rank's inner and halo rows, and of the rows that it sends
        table_bytes : of the rows that a layer sums, if it must have them whole

        CollectiveError if what can't leave memory exceeds the limit on some rank.
        """
        together(self.comm, lambda: self.arena.check_limit(self.num_mates))
        self.arena.row_bytes = self.comm.allreduce(row_bytes_that_fit(self.arena.room_for_tables, *sizes), MPI.MIN)
        found = self.comm.allgather((table_bytes - self.arena.room_for_tables, table_bytes))
        excess, largest = max(found)
        if excess <= 0:
            return None
        rank = found.index((excess, largest))
        return (f"a layer's rows take {size_text(largest)} on rank {rank}, and its share of --memory leaves "
                f"{size_text(largest - excess)} for tables; sums read such rows from the disk one by one, many times "
                "their bytes, so epochs are slow; set more --memory or fewer --hidden columns, or use more machines")

    def rates(self) -> tuple[float, float]:
        """Collective: bytes per second that a machine's ranks together write to its disk and read from it, where it is
        slowest.
        """
        self.comm.Barrier()      # so that the ranks share the disk, as in an epoch
        slowest = np.array(together(self.comm, self.arena.file.rates)) * self.num_mates
        self.comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MIN)
        return float(slowest[0]), float(slowest[1])

    def take_use(self) -> dict[str, int]:
        """Collective: bytes of all ranks since the last call, for a record of an epoch."""
        use = self.arena.take_use()
        sums = np.array(use, np.int64)
        self.comm.Allreduce(MPI.IN_PLACE, sums)
        return {f"disk_bytes_{name}": int(value) for name, value in zip(use._fields, sums, strict=True)}


@contextmanager
def limited_memory(comm: MPI.Comm, config: TrainConfig) -> Iterator[MemoryLimit | None]:
    """Collective: within the block, large tables come from a LimitedArena; None without --memory.

    Raises CollectiveError: the scratch folder can't be used, or the process alone exceeds the limit.
    """
    num_bytes = parse_memory(config.memory)
    if not num_bytes:
        yield None
        return
    machine = split_nodes(comm)
    num_mates = machine.size
    machine.Free()
    arena = together(comm, lambda: _opened(num_bytes // num_mates, scratch_of(config)))
    together(comm, lambda: arena.check_limit(num_mates))
    with arena.in_use():
        FloatFeatures.new_rows = empty_array
        try:
            yield MemoryLimit(comm, arena, num_mates)
        finally:
            FloatFeatures.new_rows = np.empty


def scratch_of(config: TrainConfig) -> Path:
    """The folder for tables that exceed the memory."""
    found = config.scratch or os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or DEFAULT_SCRATCH
    return Path(found)


def _opened(num_bytes: int, folder: Path) -> LimitedArena:
    try:
        return LimitedArena(num_bytes, folder, slack=num_bytes // SLACK)
    except OSError as error:
        raise TrainingError(f"memory can't be limited on this system: {error}; leave --memory out") from error
