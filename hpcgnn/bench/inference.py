"""`hpcgnn bench inference` times passes over batches of METIS clusters, on integers and in floats, against peers.

The cases are those of QGTC's Fig. 7, cluster-GCN (3 x 16) and batched GIN (3 x 64), and SAGE (3 x 64). Weights are
random, since accuracy is another matter; graphs, batches and packed features are made beforehand on every side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from hpcgnn.bench.float_batches import FloatBatches, FloatConvolution, integer_model, random_stack
from hpcgnn.bench.peers.dgl_batches import DglBatches
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import OURS, Measurement, wall_seconds
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.source import load_source
from hpcgnn.inference.batches.cut import Batches, cut_batches
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.inference.batches.run import BatchedRun, pack_features

HIDDEN = {"gcn": 16, "gin": 64, "sage": 64}
PEER_KINDS = ("gcn", "gin")     # QGTC's
LAYERS = 3
BATCH_SIZE = 16     # clusters a batch, as QGTC's
ONCE = "dgl, one batch"
PASSES = 3      # in a row: the first one finds the caches full of another side's rows
REMARK = (f"each time is of {PASSES} passes in a row; {ONCE}: all clusters in one block-diagonal graph, where dgl goes "
          "batch after batch; hpcgnn takes all batches in one call, a thread a batch, and in floats as one graph")


@dataclass(frozen=True)
class InferenceBenchmark:
    """Runs the measurements of `hpcgnn bench inference`.

    Attributes
    ----------
    sources : .npz archives
    models : of HIDDEN
    bits : of features, weights and sums' codes
    num_clusters : clusters of a graph
    peers : of dgl
    """

    place: Place
    sources: tuple[Path, ...]
    models: tuple[str, ...]
    bits: tuple[int, ...]
    num_clusters: int
    peers: tuple[str, ...]
    batch_size: int = BATCH_SIZE

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table."""
        for source in self.sources:
            dataset = load_source(f"npz:{source}", SourceOptions(features="auto", normalize_features="auto"))
            work = BatchedGraph.of(dataset, self.num_clusters, self.batch_size)
            for model in self.models:
                yield from self._measure_model(work, model)

    def _measure_model(self, work: BatchedGraph, kind: str) -> Iterator[Measurement]:
        dims = [work.features.shape[1], *[HIDDEN[kind]] * (LAYERS - 1), work.num_classes]
        stack = random_stack(kind, dims, HIDDEN[kind])
        others = {"hpcgnn fp32": FloatBatches(stack, work.batches, work.features),
                  "hpcgnn bf16": FloatBatches(stack, work.batches, work.features, torch.bfloat16)}
        if "dgl" in self.peers and kind in PEER_KINDS:
            others |= {"dgl": DglBatches(stack, work.batches, work.features),
                       ONCE: DglBatches(stack, work.batches.joined(), work.features)}
        case = (f"{work.name}, {kind} {LAYERS} x {HIDDEN[kind]}, {work.batches.num_batches} batches of "
                f"{work.batches.num_rows / work.batches.num_batches:.0f} nodes")
        for bits in self.bits:
            yield _measure_bits(f"{case}, {bits} bits", work, stack, bits, others, self.place)


@dataclass(frozen=True)
class BatchedGraph:
    """Holds a graph cut into batches: features (num_rows, num_features) float32, in-degrees in the rows' order."""

    name: str
    num_classes: int
    batches: Batches
    features: np.ndarray
    in_degree: np.ndarray

    @classmethod
    def of(cls, dataset: GraphDataset, num_clusters: int, batch_size: int) -> BatchedGraph:
        """Cut a graph; arcs between clusters are left out."""
        batches = cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size, name=dataset.name)
        rows = dataset.features[batches.node_id]
        rows = rows.toarray() if scipy.sparse.issparse(rows) else np.asarray(rows)
        return cls(dataset.name, dataset.num_classes, batches, np.ascontiguousarray(rows, np.float32),
                   dataset.in_degree()[batches.node_id])


def _measure_bits(case: str, work: BatchedGraph, stack: list[FloatConvolution], bits: int, others: dict[str, Any],
                  place: Place) -> Measurement:
    model = integer_model(stack, bits, others["hpcgnn fp32"], work.name)
    packed = pack_features(model, work.batches, work.features, work.in_degree)
    load_seconds = wall_seconds(partial(PackedBatches.load, packed.buffer))
    runs = {way: BatchedRun(model, packed, way) for way in ("auto", "tiles", "gather")}
    sides = {OURS: runs["auto"], "tiles": runs["tiles"], "gather": runs["gather"], **others}
    contestants = {name: partial(_passes, side) for name, side in sides.items()}
    answers = {name: runs[name].forward()[0] for name in ("auto", "tiles", "gather")}
    if any(answer.tobytes() != answers["auto"].tobytes() for answer in answers.values()):
        raise AssertionError(f"{case}: tiles and gathering disagree")
    measured = place.measure("inference", case, PASSES * work.batches.num_rows / 1e6, "s", contestants, [REMARK])
    measured.details |= _details(packed, runs, measured, answers["auto"], others["hpcgnn fp32"].forward())
    measured.details["load_seconds"] = load_seconds
    measured.remarks.append(_summary(case, measured.details))
    return measured


def _passes(side: Any) -> None:
    for _ in range(PASSES):
        side.forward()


def _details(packed: PackedBatches, runs: dict[str, BatchedRun], measured: Measurement, logits: np.ndarray,
             floats: np.ndarray) -> dict[str, Any]:
    counts, tiles = runs["auto"].counts, runs["tiles"].counts
    better = min(measured.median("tiles"), measured.median("gather"))
    return {"zero_tile_share": tiles.num_jumped / max(tiles.num_places, 1),
            "tile_choice_share": counts.by_tiles / max(counts.by_tiles + counts.by_gather, 1),
            "auto_over_better": measured.median() / better,
            "same_class_as_fp32": float((logits.argmax(1) == floats.argmax(1)).mean()),
            "packed_bytes": packed.nbytes, "float_bytes": 4 * packed.batches.num_rows * packed.features.shape[1]}


def _summary(case: str, details: dict[str, Any]) -> str:
    return (f"{case}: {100 * details['zero_tile_share']:.1f} % of the tiles are zero and jumped, auto takes tiles for "
            f"{100 * details['tile_choice_share']:.0f} % of the sums and {details['auto_over_better']:.2f} of the "
            f"better side's seconds, {100 * details['same_class_as_fp32']:.1f} % of the classes are fp32's")
