"""Predicts the seconds of each stage of a training epoch, for every part.

Divides the counts of `model` and `messages` by a cluster's measured rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.planning.cluster import Cluster
from hpcgnn.planning.exchange_time import exchange_seconds, simulate_exchange, sum_seconds
from hpcgnn.planning.loads import Pairs, PartLoads
from hpcgnn.planning.messages import VALUES_OF_A_SUM, Messages, row_bytes_of_sums
from hpcgnn.planning.model import Exchange, ModelSize, Work, exchanges_of, work_of

STAGES = ("products", "sums", "passes", "pack", "within", "between", "allreduce", "step")
POLLS = 8          # blocks of rows in which central rows are summed; see `hpcgnn.graph.hop.BLOCKS`


def total(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Sum of arrays of one shape, added in their order."""
    return reduce(np.add, arrays)


@dataclass(frozen=True)
class EpochSeconds:
    # one of STAGES -> (num_parts,) float64; exchange stages count only what sums do not hide
    by_stage: dict[str, np.ndarray]
    exchange: float                    # simulated, until all exchanges have ended on all ranks, even if sums hide them
    closed_form: float                 # the same by the closed form

    @property
    def by_rank(self) -> np.ndarray:
        return total(self.by_stage.values())

    @property
    def slowest(self) -> int:
        """The slowest rank: all others wait for it in the sum of the gradients."""
        return int(self.by_rank.argmax())

    @property
    def epoch(self) -> float:
        return float(self.by_rank.max())

    @property
    def of_slowest(self) -> dict[str, float]:
        """The slowest rank's seconds by stage, which sum to the epoch's."""
        return {stage: float(seconds[self.slowest]) for stage, seconds in self.by_stage.items()}


def epoch_seconds(size: ModelSize, loads: PartLoads, messages: Messages, cluster: Cluster) -> EpochSeconds:
    """Predict an epoch of every rank.

    Raises
    ------
    ConfigError      the cluster has no rates for the precision or the messages' code, or no network for as many ranks
    """
    lacking = cluster.lacks(loads.num_parts)
    if lacking is not None:
        raise ConfigError(lacking)
    work, steps = work_of(size, loads), size.num_steps
    computing, windows = compute_seconds(work, size, cluster), window_seconds(work, size, loads, cluster)
    none = np.zeros(loads.num_parts)
    packing, near, far, lasting, closed = none.copy(), none.copy(), none.copy(), 0.0, 0.0
    for exchange in exchanges_of(size):
        pairs, rows = directed(exchange, loads.pairs), messages.rows(exchange, loads.pairs)
        packing += total(pack_seconds(exchange, pairs, rows, messages, cluster, loads.num_parts))
        whole, within, formula = _travel(pairs, messages.num_bytes(exchange, pairs) / steps, loads.num_parts, cluster)
        whole, within = steps * whole, steps * within
        lasting, closed = lasting + float(whole.max()), closed + steps * formula
        if messages.is_asynchronous:
            continue
        # A processor copies messages within its node; messages to other nodes travel while rows are summed, round by
        # round.
        between = np.maximum(whole - within, 0)
        hidden = none if steps > 1 or not messages.overlaps else np.minimum(     # a step reads its rows at once
            between * min(1.0, POLLS / max(_num_rounds(pairs, loads.num_parts), 1)),
            windows.get((exchange.layer, exchange.is_backward), none))
        near, far = near + within, far + between - hidden
    summing = steps * sum_seconds(bytes_of_sum(size), loads.num_parts, cluster.network)
    by_stage = {**computing, "pack": packing, "within": near, "between": far, "allreduce": none + summing,
                "step": none + steps * cluster.step_seconds}
    if messages.is_asynchronous:      # messages may take as long as the rest of the epoch; only the excess counts
        by_stage["between"] = np.maximum(lasting - sum(by_stage.values()), 0)
    return EpochSeconds({stage: by_stage[stage] for stage in STAGES}, lasting, closed)


def compute_seconds(work: Work, size: ModelSize, cluster: Cluster) -> dict[str, np.ndarray]:
    """Seconds of products, sums over neighbors, and elementwise passes (dropout, normalization), (num_parts,) each."""
    rates, none = cluster.rates_of(size.precision), np.zeros(len(work.maps))
    return {
        "products": work.maps / rates.map_flops + work.gradients / rates.gradient_flops,
        "sums": none + sum(values * size.item_bytes / rates.gather_rate(columns, rows * columns * size.item_bytes)
                           for values, rows, columns in work.sums),
        "passes": (work.drops / rates.drop_values + work.norms / rates.norm_values
                   + work.norms_back / rates.norm_back_values)}


def bytes_of_sum(size: ModelSize) -> int:
    """Bytes of the gradients that all ranks sum after a step."""
    return size.num_weights * row_bytes_of_sums(size) // VALUES_OF_A_SUM


def directed(exchange: Exchange, pairs: Pairs) -> Pairs:
    """The pairs as messages go: backward, gradients go from the part that reads a row to its owner."""
    if not exchange.is_backward:
        return pairs
    return Pairs(pairs.destination, pairs.source, pairs.rows_within, pairs.rows)


def pack_seconds(exchange: Exchange, pairs: Pairs, rows: np.ndarray, messages: Messages, cluster: Cluster,
                 num_parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds in which each part packs and unpacks the `rows` of `directed` pairs, (n,): two of (num_parts,)."""
    code = f"{messages.code_of(exchange)}_{messages.bits}"
    sent = np.bincount(pairs.source, weights=rows, minlength=num_parts) * exchange.dim
    received = np.bincount(pairs.destination, weights=rows, minlength=num_parts) * exchange.dim
    return sent / cluster.rate_of(code, "pack"), received / cluster.rate_of(code, "unpack")


def _travel(pairs: Pairs, num_bytes: np.ndarray, num_parts: int,
            cluster: Cluster) -> tuple[np.ndarray, np.ndarray, float]:
    # Simulates the exchange, and the messages within nodes alone: (num_parts,) each; the closed form comes last.
    network = cluster.network
    is_near = pairs.source // network.ranks_per_node == pairs.destination // network.ranks_per_node
    whole = simulate_exchange(pairs.source, pairs.destination, num_bytes, num_parts, network)
    within = whole if is_near.all() else simulate_exchange(
        pairs.source, pairs.destination, np.where(is_near, num_bytes, 0), num_parts, network)
    return whole, within, exchange_seconds(pairs.source, pairs.destination, num_bytes, num_parts, network)


def _num_rounds(pairs: Pairs, num_parts: int) -> int:
    return int(np.bincount(pairs.source, minlength=num_parts).max(initial=0))


def window_seconds(work: Work, size: ModelSize, loads: PartLoads,
                   cluster: Cluster) -> dict[tuple[int, bool], np.ndarray]:
    """Seconds of the sums that need no halo row, (num_parts,), by (layer, is_backward) of their exchange."""
    rates = cluster.rates_of(size.precision)
    columns = {exchange.layer: exchange.dim for exchange in exchanges_of(size)}
    return {place: values * size.item_bytes / rates.gather_rate(
                columns[place[0]], loads.num_inner * columns[place[0]] * size.item_bytes)
            for place, values in work.window.items() if place[0] in columns}
