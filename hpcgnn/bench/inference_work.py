"""Shared by host and device in `hpcgnn bench inference`: batches or a whole graph, and integers compared with floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.bench.stand_in import StandInComm
from hpcgnn.bench.timing import Measurement
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.lowbit.inference.batches import Batches, PackedBatches, cut_batches
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.partition import Partition

PASSES = 3      # in a row, since the first one finds the caches full of another contestant's rows
WAYS = ("auto", "tiles", "gather")
FP32, BF16 = "hpcgnn fp32", "hpcgnn bf16"


@dataclass(frozen=True)
class BatchedGraph:
    """A graph cut into batches, or as a whole.

    Features (num_rows, num_features) float32 and in-degrees are in the order of the rows.
    """

    name: str
    num_classes: int
    batches: Batches
    features: np.ndarray
    in_degree: np.ndarray
    part: Partition | None = None

    @classmethod
    def whole(cls, dataset: GraphDataset) -> BatchedGraph:
        part = build_partition(dataset, np.zeros(dataset.num_nodes, np.int32), 0, 1)
        batches = Batches(part.inner_id, np.array([0, part.num_inner]), part.indptr, part.indices)
        return cls(dataset.name, dataset.num_classes, batches, np.ascontiguousarray(part.features, np.float32),
                   part.in_degree[:part.num_inner], part)

    @classmethod
    def of(cls, dataset: GraphDataset, num_clusters: int, batch_size: int) -> BatchedGraph:
        """Cut a graph; edges between clusters are left out."""
        batches = cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size, name=dataset.name)
        rows: Any = dataset.features[batches.node_id]
        rows = rows.toarray() if scipy.sparse.issparse(rows) else np.asarray(rows)
        return cls(dataset.name, dataset.num_classes, batches, np.ascontiguousarray(rows, np.float32),
                   dataset.in_degree()[batches.node_id])

    @property
    def alone(self) -> CodeExchange:
        comm: Any = StandInComm(0, 1)
        return CodeExchange(comm, ExchangePlan.build(self.part))

    @property
    def amount(self) -> float:
        """Million rows in the passes of one timing."""
        return PASSES * self.batches.num_rows / 1e6

    def case(self, kind: str, layers: int, hidden: int) -> str:
        cut = f"{self.batches.num_batches} batches of {self.batches.num_rows / self.batches.num_batches:.0f} nodes"
        return f"{self.name}, {kind} {layers} x {hidden}, {cut if self.part is None else 'whole'}"


def in_a_row(work: Callable[[], object]) -> Callable[[], None]:
    return partial(_repeat, work)


def _repeat(work: Callable[[], object]) -> None:
    for _ in range(PASSES):
        work()


def check_same(case: str, answers: dict[str, np.ndarray]) -> None:
    """Raise AssertionError unless all contestants' logits have the same bits."""
    first = next(iter(answers))
    for name, answer in answers.items():
        if answer.tobytes() != answers[first].tobytes():
            raise AssertionError(f"{case}: {name} and {first} disagree")


def against_floats(measured: Measurement, logits: np.ndarray, row_bytes: int, floats: dict[str, Any]) -> dict[str, Any]:
    same = (floats[FP32].forward().argmax(1) == logits.argmax(1)).mean()
    return {"best_float_over_ours": min(measured.median(name) for name in floats) / measured.median(),
            "same_class_as_fp32": float(same), "row_bytes": row_bytes, "bf16_row_bytes": floats[BF16].row_bytes}


def of_batches(packed: PackedBatches, runs: dict[str, Any], measured: Measurement) -> dict[str, Any]:
    counts, tiles = runs["auto"].counts, runs["tiles"].counts
    better = min(measured.median("tiles"), measured.median("gather"))
    return {"zero_tile_share": tiles.num_jumped / max(tiles.num_places, 1),
            "tile_choice_share": counts.by_tiles / max(counts.by_tiles + counts.by_gather, 1),
            "auto_over_better": measured.median() / better,
            "packed_bytes": packed.nbytes, "float_bytes": 4 * packed.batches.num_rows * packed.features.shape[1]}


def float_summary(case: str, details: dict[str, Any]) -> str:
    return (f"{case}: the best float of hpcgnn takes {details['best_float_over_ours']:.2f} times as long; features and "
            f"rows take {details['row_bytes'] / 1e6:.1f} MB, in bfloat16 {details['bf16_row_bytes'] / 1e6:.1f} MB; "
            f"{100 * details['same_class_as_fp32']:.1f} % of the classes are fp32's")


def batch_summary(case: str, details: dict[str, Any]) -> str:
    return (f"{float_summary(case, details)}; {100 * details['zero_tile_share']:.1f} % of the tiles are zero and "
            f"skipped, auto takes tiles for {100 * details['tile_choice_share']:.0f} % of the sums and "
            f"{details['auto_over_better']:.2f} of the better side's seconds")
