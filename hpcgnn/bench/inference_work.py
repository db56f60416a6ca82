"""Shared by host and device in `hpcgnn bench inference`: batches or a whole graph, and integers compared with floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    def repeat() -> None:
        for _ in range(PASSES):
            work()

    return repeat


def check_same(case: str, answers: dict[str, np.ndarray]) -> None:
    """Raise AssertionError unless all contestants' logits have the same bits."""
    first = next(iter(answers))
    for name, answer in answers.items():
        if answer.tobytes() != answers[first].tobytes():
            raise AssertionError(f"{case}: {name} and {first} disagree")


def compared(case: str, measured: Measurement, floats: dict[str, Any], logits: np.ndarray, row_bytes: int,
             packed: PackedBatches | None = None, runs: dict[str, Any] | None = None, **more: Any) -> Measurement:
    """Add to a measurement how integers compare with `floats`, in details and in a remark, and return it.

    Of batches, which are `packed`, it also says what tiles did in `runs`, by way.
    """
    same = float((floats[FP32].forward().argmax(1) == logits.argmax(1)).mean())
    best = min(measured.median(name) for name in floats) / measured.median()
    wide_bytes = floats[BF16].row_bytes
    measured.details |= {"best_float_over_ours": best, "same_class_as_fp32": same, "row_bytes": row_bytes,
                         "bf16_row_bytes": wide_bytes}
    said = (f"{case}: the best float of hpcgnn takes {best:.2f} times as long; features and rows take "
            f"{row_bytes / 1e6:.1f} MB, in bfloat16 {wide_bytes / 1e6:.1f} MB; {100 * same:.1f} % of the classes are "
            "fp32's")
    if packed is not None and runs is not None:
        counts, tiles = runs["auto"].counts, runs["tiles"].counts
        zeros = tiles.num_jumped / max(tiles.num_places, 1)
        by_tiles = counts.by_tiles / max(counts.by_tiles + counts.by_gather, 1)
        over_better = measured.median() / min(measured.median("tiles"), measured.median("gather"))
        measured.details |= {"zero_tile_share": zeros, "tile_choice_share": by_tiles, "auto_over_better": over_better,
                             "packed_bytes": packed.nbytes,
                             "float_bytes": 4 * packed.batches.num_rows * packed.features.shape[1]}
        said += (f"; {100 * zeros:.1f} % of the tiles are zero and skipped, auto takes tiles for {100 * by_tiles:.0f} "
                 f"% of the sums and {over_better:.2f} of the better side's seconds")
    measured.details |= more
    measured.remarks.append(said)
    return measured
