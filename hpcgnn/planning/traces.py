"""Writes what every rank computes, sends and receives in a planned epoch, for SimGrid to replay on any network.

A trace is a text file for each rank with a line per action, as `smpirun -replay` of SimGrid 3.32 reads it. Computing is
given in operations of a processor that does OPERATIONS of them a second. Rank 0 of two with an exchange of 8 kB:

    0 init
    0 compute 1200000           1.2 ms
    0 irecv 1 0 8192 6          from rank 1, tag 0, 8192 values of SMPI's type 6, which are bytes
    0 isend 1 0 8192 6
    0 compute 500000            sums of rows without a halo neighbor, while messages travel
    0 waitall 2
    0 compute 900000
    0 allreduce 262144 0 6      the sum of the gradients
    0 finalize

As in a training, a rank posts a round of the ring when the round before has ended. A trace can't ask whether it has, so
there is one block of central rows for each of the first POLLS rounds, and a late round delays the next block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.loads import Pairs
from hpcgnn.planning.model import ModelSize, works_in_order
from hpcgnn.planning.predictions import Prediction
from hpcgnn.planning.stages import (
    POLLS,
    bytes_of_sum,
    compute_seconds,
    directed,
    pack_seconds,
    total,
    window_seconds,
)

OPERATIONS = 1e9
BYTE = 6                     # SMPI's number of MPI_BYTE
MOST_BYTES = 1 << 30         # of a message, as in `hpcgnn.exchange.transfer`, which planning can't import
RANKS = "ranks.txt"          # lists the traces by rank

Round = list[tuple[str, int, int]]      # ("irecv" or "isend", peer, bytes)


class Ring:
    """Messages of one exchange, by rank and round: round i sends to rank + i and receives from rank - i."""

    def __init__(self, pairs: Pairs, num_bytes: np.ndarray, num_parts: int):
        is_sent = num_bytes > 0
        source, destination = pairs.source[is_sent], pairs.destination[is_sent]
        rank, number = np.concatenate([destination, source]), np.tile((destination - source) % num_parts, 2)
        is_send = np.repeat([False, True], len(source))
        order = np.lexsort((is_send, number, rank))
        self._first = np.searchsorted(rank[order], np.arange(num_parts + 1))
        self._columns = [column[order] for column in (number, is_send, np.concatenate([source, destination]),
                                                      np.tile(num_bytes[is_sent], 2))]

    def rounds(self, rank: int) -> Iterator[Round]:
        own = slice(*self._first[rank:rank + 2])
        rows = zip(*(column[own].tolist() for column in self._columns), strict=True)
        for _, messages in groupby(rows, key=lambda row: row[0]):
            yield [("isend" if is_send else "irecv", peer, num_bytes) for _, is_send, peer, num_bytes in messages]


@dataclass(frozen=True)
class Stage:
    """What all ranks compute, and the exchange that follows; the last stage of an epoch has none."""

    seconds: np.ndarray            # (num_parts,)
    ring: Ring | None = None
    is_backward: bool = False
    window: np.ndarray | None = None      # (num_parts,) seconds of sums while messages travel


def stages_of(one: Prediction, size: ModelSize, cluster: Cluster) -> list[Stage]:
    """An epoch as stages; their seconds are those of products, sums, passes, pack and step of the plan."""
    loads, messages, stages, left = one.loads, one.messages, [], np.zeros(one.num_parts)
    left += size.num_steps * cluster.step_seconds
    works = list(works_in_order(size, loads))
    for (work, exchange), (later, _) in pairwise([*works, (None, None)]):
        left += total(compute_seconds(work, size, cluster).values())
        if exchange is None:
            break
        pairs, rows = directed(exchange, loads.pairs), messages.rows(exchange, loads.pairs)
        pack, unpack = pack_seconds(exchange, pairs, rows, messages, cluster, one.num_parts)
        window = np.zeros(one.num_parts)
        if messages.overlaps and size.num_steps == 1 and not messages.is_asynchronous:
            sums = window_seconds(later, size, loads, cluster).get((exchange.layer, exchange.is_backward), window)
            window = np.minimum(sums, compute_seconds(later, size, cluster)["sums"])
        num_bytes = np.rint(messages.num_bytes(exchange, pairs)).astype(np.int64)
        stages.append(Stage(left + pack, Ring(pairs, num_bytes, one.num_parts), exchange.is_backward, window))
        left = unpack - window
    return [*stages, Stage(left)]


class Traces:
    def __init__(self, one: Prediction, size: ModelSize, cluster: Cluster):
        self._one, self._stages, self._num_steps = one, stages_of(one, size, cluster), size.num_steps
        self._bytes_of_sum = bytes_of_sum(size) if one.num_parts > 1 else 0
        is_shared = one.loads.shared is not None and one.messages.shares_rows
        self._node = one.ranks_per_node if is_shared else 1      # ranks that share rows

    def lines(self, rank: int) -> Iterator[str]:
        """The actions of a rank, without its number in front."""
        is_open, num_steps = self._one.messages.is_asynchronous, self._num_steps
        yield "init"
        for step in range(num_steps):
            num_posted = 0
            for number, stage in enumerate(self._stages):
                yield from _compute(stage.seconds[rank] / num_steps)
                if stage.ring is None:
                    continue
                if stage.is_backward:      # the ranks of a node sum gradients, then they are sent
                    yield from self._meeting(rank, number)
                rounds = [posts for each in stage.ring.rounds(rank) if (posts := _posts(each, number, step, num_steps))]
                blocks = max(min(POLLS, len(rounds)), 1)
                for place, posts in enumerate(rounds):
                    yield from posts
                    if place < blocks:
                        yield from _compute(stage.window[rank] / blocks)
                    if is_open:
                        num_posted += len(posts)
                    else:
                        yield f"waitall {len(posts)}"
                if not rounds:
                    yield from _compute(stage.window[rank])
                if not stage.is_backward:
                    yield from self._meeting(rank, number)
            if self._bytes_of_sum:
                yield f"allreduce {self._bytes_of_sum} 0 {BYTE}"
            if num_posted:
                yield f"waitall {num_posted}"
        yield "finalize"

    def _meeting(self, rank: int, number: int) -> Iterator[str]:
        # Messages without bytes, after which ranks that share rows have met: each tells those 1, 2, 4, .. places on.
        # They leave at once, and only they are waited for: pipelined rows may still travel.
        first = rank - rank % self._node
        count, own = min(self._node, self._one.num_parts - first), rank - first
        for power in range((count - 1).bit_length()):
            source = first + (own - (1 << power)) % count
            yield f"irecv {source} {2 * number + 1} 0 {BYTE}"
            yield f"send {first + (own + (1 << power)) % count} {2 * number + 1} 0 {BYTE}"
            yield f"wait {source} {rank} {2 * number + 1}"


def _compute(seconds: float) -> Iterator[str]:
    if seconds > 0:
        yield f"compute {seconds * OPERATIONS:.0f}"


def _posts(messages: Round, number: int, step: int, num_steps: int) -> list[str]:
    # The bytes of all steps sum to those of the epoch.
    lines = []
    for action, peer, num_bytes in messages:
        of_step = (step + 1) * num_bytes // num_steps - step * num_bytes // num_steps
        lines += [f"{action} {peer} {2 * number} {min(MOST_BYTES, of_step - start)} {BYTE}"
                  for start in range(0, of_step, MOST_BYTES)]
    return lines


def write_traces(folder: Path, one: Prediction, size: ModelSize, cluster: Cluster) -> Path:
    """Write the traces of a run to a folder of `folder`, one rank after the other, and return it.

    Raises
    ------
    ConfigError      the cluster has no rates for the precision or the messages' code; files can't be written
    """
    traces, own = Traces(one, size, cluster), folder / f"{one.num_parts}-{one.messages.name.replace(':', '-')}"
    try:
        own.mkdir(parents=True, exist_ok=True)
        (own / RANKS).write_text("".join(f"rank-{rank}.txt\n" for rank in range(one.num_parts)))
        for rank in range(one.num_parts):
            with (own / f"rank-{rank}.txt").open("w") as file:
                file.writelines(f"{rank} {line}\n" for line in traces.lines(rank))
    except OSError as error:
        raise ConfigError(f"--trace {folder} can't hold the traces: {error.strerror}") from error
    return own
