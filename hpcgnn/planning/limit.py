"""A run within a limit of memory (`train --memory`): whether it fits, and what it writes to and reads from the disk.

Each rank's tables go through the same `Evictions` as those of a training's arena, in the order in which the training
makes, keeps and frees them (`hpcgnn.planning.memory.Replay`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hpcgnn.ops.evictions import SLACK, too_little
from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.loads import PartLoads
from hpcgnn.planning.memory import BYTES_A_NODE, RankSize, Replay, rank_sizes, sharing, torchs_own
from hpcgnn.planning.messages import Messages
from hpcgnn.planning.model import ModelSize

FIXED = ("process", "structure", "weights", "shared_rows", "method_state")      # kinds of memory that never leave it
SIMULATED = 3      # epochs between two evaluations; all but the first and the last are alike


@dataclass(frozen=True)
class Limited:
    """Bytes of every rank, (num_parts,) each."""

    limit: np.ndarray         # its share
    fixed: np.ndarray         # that can't leave memory
    in_memory: np.ndarray     # most of tables in memory
    on_disk: np.ndarray       # most of tables on the disk
    written: np.ndarray       # of tables, an epoch with its share of evaluations
    read: np.ndarray
    reason: str | None        # why the run does not fit, as it says itself; None if it does
    seconds: float | None     # of the slowest node's disk in an epoch; None if its rates are not known


def limited_to(num_bytes: int, eval_every: int, size: ModelSize, loads: PartLoads, messages: Messages,
               cluster: Cluster, memory: dict[str, np.ndarray]) -> Limited:
    """A run whose ranks may use `num_bytes` of memory together on every node.

    `memory` is that of the run without a limit, see `memory_of`.
    """
    node = np.arange(loads.num_parts) // cluster.network.ranks_per_node
    mates = np.bincount(node)[node]
    limit = num_bytes // mates
    slack = limit // SLACK
    fixed = sum((memory[kind] for kind in FIXED), torchs_own(size, loads) + BYTES_A_NODE * loads.num_inner)
    sent, own, _ = sharing(size, loads, messages, cluster)
    found = np.array([_replayed(size, rank, room, eval_every) for rank, room in zip(
        rank_sizes(size, loads, messages, sent, own), limit - slack - fixed, strict=True)])
    in_memory, on_disk, written, read = found.T
    worst = int((fixed / (limit - slack)).argmax())
    reason = too_little(int(limit[worst]), int(slack[worst]), float(fixed[worst]), int(mates[worst]))
    seconds = None
    if cluster.disk_write_rate is not None and cluster.disk_read_rate is not None:
        seconds = float(np.bincount(node, weights=written / cluster.disk_write_rate
                                    + read / cluster.disk_read_rate).max())
    return Limited(limit, fixed, in_memory, on_disk, written, read, reason, seconds)


def _replayed(size: ModelSize, rank: RankSize, room: float, eval_every: int) -> tuple[float, float, float, float]:
    run, counted = Replay(size, rank, room), list[tuple[int, int]]()
    run.train()      # the first epoch also writes what stays on the disk
    run.evaluate()
    run.tables.take_counts()
    for _ in range(min(eval_every, SIMULATED)):
        run.train()
        counted.append(run.tables.take_counts())
    run.evaluate()
    alike = counted[len(counted) // 2]
    counted += [run.tables.take_counts()]
    written, read = (
        (sum(column) + max(0, eval_every - SIMULATED) * same) / eval_every
        for column, same in zip(zip(*counted, strict=True), alike, strict=True))
    return run.tables.most_in_memory, run.tables.most_on_disk, written, read


def limited_record(limited: Limited) -> dict[str, Any]:
    """As plain data: of all ranks what an epoch writes and reads, else of the fullest rank."""
    of_all = ("written", "read")
    return {name: value if not isinstance(value, np.ndarray) else float(value.sum() if name in of_all else value.max())
            for name, value in asdict(limited).items()}
