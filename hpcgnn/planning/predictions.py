"""Predictions of runs: memory, bytes and seconds of every number of parts under every method, and what to choose.

Within a limit of memory (`train --memory`) each rank's tables go through the same `Evictions` as those of a training's
arena, in the order in which the training makes, keeps and frees them (`hpcgnn.planning.memory.Replay`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hpcgnn.ops.evictions import SLACK, row_bytes_that_fit, too_little
from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.loads import PartLoads
from hpcgnn.planning.memory import (
    BYTES_A_NODE,
    FLOAT,
    RankSize,
    Replay,
    memory_of,
    rank_sizes,
    sharing,
    torchs_own,
)
from hpcgnn.planning.messages import SUM_BYTES, VALUES_OF_A_SUM, Messages, row_bytes_of_sums
from hpcgnn.planning.model import ModelSize, exchanges_of
from hpcgnn.planning.stages import EpochSeconds, directed, epoch_seconds, total

BYTES_OF_A_CLUSTER = 8     # a halo row's cluster number crosses as two float32 columns
FILED_BYTES_A_NODE = 36      # id, offset of its edges, degree, importance, label, masks
FILED_BYTES_A_HALO_ROW = 20  # id, degree, importance, and its place in the rows that its owner sends
FILED_BYTES_AN_EDGE = 4
ARRAYS_OF_A_CHECKPOINT = 4   # weights, the best ones, two moments
FIXED = ("process", "structure", "weights", "shared_rows", "method_state")      # kinds of memory that never leave it
SIMULATED = 3      # epochs between two evaluations; all but the first and the last are alike
LEAST_EFFICIENCY = 0.5     # least ratio of the cheapest plan's rank-seconds to a plan's for more ranks to be worth it


@dataclass(frozen=True)
class Sent:
    """Rows and bytes that an epoch sends."""

    rows: np.ndarray       # (n,) float64, rows of each pair's widest exchange, forward
    by_pair: np.ndarray    # (n,) float64, bytes from one rank to another in an epoch, of pairs that share a row
    is_near: np.ndarray    # (n,) bool, both ranks are on one node
    # evaluation, setup: bytes of one evaluation, and of input rows, once, which sgc without dropout propagates too
    evaluation: int
    setup: int
    sums: int              # bytes that all ranks give to an epoch's sums of gradients, one a step; without padding

    @property
    def total(self) -> float:
        """Bytes of an epoch, all ranks."""
        return float(self.by_pair.sum())

    def of(self, is_near: bool) -> tuple[float, float, float]:
        """Bytes within nodes or between nodes, and their mean and maximum over pairs."""
        chosen = self.by_pair[self.is_near == is_near]
        return float(chosen.sum()), float(chosen.mean()) if len(chosen) else 0.0, float(chosen.max(initial=0.0))


def shard_bytes(size: ModelSize, loads: PartLoads) -> int:
    """Bytes of all part files, with one label per node and features in float32, uncompressed."""
    nodes, halo, edges = (int(one.sum()) for one in (loads.num_inner, loads.num_halo, loads.num_edges))
    return (nodes * (FLOAT * size.in_dim + FILED_BYTES_A_NODE) + halo * FILED_BYTES_A_HALO_ROW
            + edges * (FILED_BYTES_AN_EDGE + size.bytes_of_types))


def checkpoint_bytes(size: ModelSize, loads: PartLoads) -> int:
    """Bytes of a checkpoint, with the whole tables of learned rows."""
    arrays = ARRAYS_OF_A_CHECKPOINT + size.has_average
    return FLOAT * arrays * (size.num_weights + int(loads.num_inner.sum()) * size.embedding_dim)


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
    ranks, rooms = rank_sizes(size, loads, messages, sent, own), limit - slack - fixed
    row_bytes = min(row_bytes_that_fit(room, rank.num_inner, rank.num_halo, rank.num_sent)
                    for rank, room in zip(ranks, rooms, strict=True))
    found = np.array([_replayed(size, rank, room, row_bytes, eval_every)
                      for rank, room in zip(ranks, rooms, strict=True)])
    in_memory, on_disk, written, read = found.T
    worst = int((fixed / (limit - slack)).argmax())
    reason = too_little(int(limit[worst]), int(slack[worst]), float(fixed[worst]), int(mates[worst]))
    seconds = None
    if cluster.disk_write_rate is not None and cluster.disk_read_rate is not None:
        seconds = float(np.bincount(node, weights=written / cluster.disk_write_rate
                                    + read / cluster.disk_read_rate).max())
    return Limited(limit, fixed, in_memory, on_disk, written, read, reason, seconds)


def _replayed(size: ModelSize, rank: RankSize, room: float, row_bytes: int,
              eval_every: int) -> tuple[float, float, float, float]:
    run, counted = Replay(size, rank, room, row_bytes), list[tuple[int, int]]()
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


@dataclass(frozen=True)
class Prediction:
    """One run: `num_parts` ranks, one method."""

    num_parts: int
    messages: Messages
    source: str                      # how the parts were found: "cut", "shards", "sample" or "scaled"
    loads: PartLoads
    seconds: EpochSeconds | None     # None if the cluster file lacks what they need, or there is none
    sent: Sent
    memory: dict[str, np.ndarray]    # kind -> (num_parts,) bytes
    node_bytes: float | None         # memory of a node
    ranks_per_node: int
    least_bytes: float               # of an epoch, all ranks; `sent` has the most, if the method decides in training
    on_disk: tuple[int, int]         # bytes of the part files, and of a checkpoint
    limited: Limited | None = None   # within a limit of memory; `memory` is that without one

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest rank, without a limit."""
        return float(total(self.memory.values()).max())

    @property
    def fits(self) -> bool:
        """Whether a run fits its nodes, within a limit if it has one; True if a node's memory is unknown."""
        if self.limited is None:
            return self.fits_whole
        of_node = float(self.limited.limit.max()) * min(self.num_parts, self.ranks_per_node)
        return self.limited.reason is None and (self.fits_whole or of_node <= (self.node_bytes or 0.0))

    @property
    def fits_whole(self) -> bool:
        """Whether the fullest node has room for its ranks without a limit; True if a node's memory is unknown."""
        node = np.arange(self.num_parts) // self.ranks_per_node
        return self.node_bytes is None or float(
            np.bincount(node, weights=total(self.memory.values())).max()) <= self.node_bytes

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch, with those of the disk if they are known; nan if none are."""
        of_disk = 0.0 if self.limited is None or self.limited.seconds is None else self.limited.seconds
        return math.nan if self.seconds is None else self.seconds.epoch + of_disk

    @property
    def rank_seconds(self) -> float:
        """Cost of an epoch: its seconds times its ranks."""
        return self.num_parts * self.epoch_seconds


def predict(size: ModelSize, loads: PartLoads, messages: Messages, cluster: Cluster, source: str, limit: int = 0,
            eval_every: int = 1) -> Prediction:
    """Predict one run; its ranks share the rows of their nodes if these are known. Errors as in `epoch_seconds`.

    `limit` is the memory of a node in bytes that the run may use; 0: no limit.
    """
    memory = memory_of(size, loads, messages, cluster)
    limited = limited_to(limit, eval_every, size, loads, messages, cluster, memory) if limit else None
    if messages.shares_rows and loads.shared is not None:
        loads = replace(loads, pairs=loads.shared)
    seconds = epoch_seconds(size, loads, messages, cluster) if cluster.can_time(loads.num_parts) else None
    network = cluster.network
    return Prediction(loads.num_parts, messages, source, loads, seconds,
                      bytes_sent(size, loads, messages, network.ranks_per_node), memory, cluster.memory_bytes,
                      network.ranks_per_node,
                      bytes_sent(size, loads, messages.narrowest, network.ranks_per_node).total,
                      (shard_bytes(size, loads), checkpoint_bytes(size, loads)), limited)


def bytes_sent(size: ModelSize, loads: PartLoads, messages: Messages, ranks_per_node: int) -> Sent:
    """Count the bytes of an epoch from each rank to each; exact if the method draws no rows and no widths."""
    pairs, num_parts, exchanges = loads.pairs, loads.num_parts, list(exchanges_of(size))
    place = [pairs.source * num_parts + pairs.destination, pairs.destination * num_parts + pairs.source]
    pair = np.unique(np.concatenate(place))
    by_pair, rows = np.zeros(len(pair)), np.zeros(len(pairs.rows))
    for exchange in exchanges:
        travelling, going = messages.rows(exchange, pairs), directed(exchange, pairs)
        where = np.searchsorted(pair, going.source * num_parts + going.destination)
        by_pair += np.bincount(where, weights=exchange.times * messages.num_bytes(exchange, pairs),
                               minlength=len(pair))
        rows = np.maximum(rows, travelling)
    is_near = pair // num_parts // ranks_per_node == pair % num_parts // ranks_per_node
    evaluation = sum(int(pairs.rows.sum()) * exchange.dim * size.item_bytes
                     for exchange in exchanges_of(size.of_whole_graph) if not exchange.is_backward)
    columns = size.in_dim * (size.num_layers if size.propagates_once else 1)
    columns = size.item_bytes * columns + BYTES_OF_A_CLUSTER * size.has_clusters
    setup = int((loads.inputs or pairs).rows.sum()) * columns
    return Sent(rows, by_pair, is_near, evaluation, setup,
                round(sum_bytes(size, num_parts) * num_parts) * size.num_steps + _drawn_bytes(size, num_parts))


def sum_bytes(size: ModelSize, num_parts: int) -> float:
    """Bytes that a rank gives to one sum of gradients, the mean over ranks; codes go to the owners of shares and back.
    """
    if size.sum_bits == 8 * SUM_BYTES or num_parts == 1:
        return SUM_BYTES * size.num_weights * (num_parts > 1)
    num_rows = -(-size.num_weights // (VALUES_OF_A_SUM * num_parts))
    num_owners = -(-size.num_weights // (VALUES_OF_A_SUM * num_rows))
    return 2 * num_owners * num_rows * row_bytes_of_sums(size) * (num_parts - 1) / num_parts


def _drawn_bytes(size: ModelSize, num_parts: int) -> int:
    # Rows of the nodes that links draw come to all ranks in one sum, their gradients in another, and maybe classes.
    return SUM_BYTES * size.num_drawn * (2 * size.out_dim + size.draws_classes) * num_parts * (num_parts > 1)


def recommend(predictions: list[Prediction]) -> tuple[Prediction | None, list[str]]:
    """Choose a run, and say why.

    Of the runs that fit their nodes and cost at most 1 / LEAST_EFFICIENCY times the rank-seconds of the cheapest one,
    it has the shortest epoch; with a tie, the fewest ranks. Runs without seconds are left out.
    """
    predictions = [one for one in predictions if one.seconds is not None]
    if not predictions:
        return None, ["none, since seconds are not known: --node NAME --network NAME plan them with the rates of data "
                      "sheets (epyc-2x64, ethernet-10g, .., see --help); hpcgnn plan --measure FILE, which takes about "
                      "half a minute on a node, writes the rates that --cluster FILE plans them with"]
    fitting = [one for one in predictions if one.fits]
    if not fitting:
        least = min(predictions, key=lambda one: one.peak_bytes)
        return least, [f"no run fits its nodes' memory; the fullest rank of {least.num_parts} holds the least, "
                       f"{least.peak_bytes / 1e9:.3g} GB: use more ranks, or fewer on a node"]
    cheapest = min(fitting, key=lambda one: one.rank_seconds)
    worthwhile = [one for one in fitting if one.rank_seconds * LEAST_EFFICIENCY <= cheapest.rank_seconds]
    chosen = min(worthwhile, key=lambda one: (one.epoch_seconds, one.num_parts))
    return chosen, _reasons(chosen, cheapest, predictions)


def _reasons(chosen: Prediction, cheapest: Prediction, predictions: list[Prediction]) -> list[str]:
    assert chosen.seconds is not None
    share = chosen.seconds.of_slowest
    travel = 100 * (share["within"] + share["between"] + share["pack"]) / chosen.epoch_seconds
    cost = chosen.rank_seconds / cheapest.rank_seconds
    lines = [f"{chosen.num_parts} ranks with {chosen.messages.name}: {chosen.epoch_seconds:.3g} s per epoch, "
             f"{travel:.0f} % of it for messages, and {cost:.2f} times the rank-seconds of the cheapest run, "
             f"{cheapest.num_parts} with {cheapest.messages.name}"]
    faster = [one for one in predictions if one.fits and one.epoch_seconds < chosen.epoch_seconds]
    if faster:
        best = min(faster, key=lambda one: one.epoch_seconds)
        lines.append(f"{best.num_parts} ranks with {best.messages.name} would be "
                     f"{chosen.epoch_seconds / best.epoch_seconds:.2f} times as fast for "
                     f"{best.rank_seconds / chosen.rank_seconds:.1f} times the rank-seconds")
    tight = sorted({one.num_parts for one in predictions if not one.fits})
    if tight:
        lines.append(f"not enough memory on a node with {', '.join(map(str, tight))} ranks")
    others = [one for one in predictions if one.num_parts == chosen.num_parts and one is not chosen]
    lines += [f"{one.messages.name} would take {one.epoch_seconds / chosen.epoch_seconds:.2f} times as long there"
              for one in sorted(others, key=lambda one: one.epoch_seconds)]
    return lines
