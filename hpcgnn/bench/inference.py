"""`hpcgnn bench inference` times passes over batches of METIS clusters, or whole graphs, on integers and in floats.

Drawn networks are those of QGTC's Fig. 7, cluster-GCN (3 x 16) and batched GIN (3 x 64), and SAGE (3 x 64), with the
LayerNorm that training has. A model file brings a trained one; its float sides have the numbers that its weight codes
stand for. Graphs, batches and packed features are made beforehand on every side.
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

from hpcgnn.bench.float_batches import FloatBatches
from hpcgnn.bench.float_networks import (
    SUMMED_KINDS,
    FloatConvolution,
    SeenRows,
    float_stack,
    integer_model,
    random_stack,
)
from hpcgnn.bench.peers.dgl_batches import DglBatches
from hpcgnn.bench.peers.torch_batches import TorchBatches
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import OURS, Measurement, wall_seconds
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.source import load_source
from hpcgnn.errors import ConfigError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.stand_in import StandInComm
from hpcgnn.inference.batches.cut import Batches, cut_batches
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.inference.batches.run import BatchedRun, pack_features
from hpcgnn.inference.code_exchange import CodeExchange
from hpcgnn.inference.coded_rows import BitRows, code_rows
from hpcgnn.inference.graph_pass import GraphPass
from hpcgnn.inference.model_file import read_model
from hpcgnn.partition.build import build_partition
from hpcgnn.partition.partition import Partition
from hpcgnn.quantized.integer_model import IntegerModel

HIDDEN = {"gcn": 16, "gin": 64, "sage": 64}
LAYERS = 3
BATCH_SIZE = 16     # clusters a batch, as QGTC's
FLOATS = {"hpcgnn fp32": torch.float32, "hpcgnn bf16": torch.bfloat16}
ONCE = "dgl, one batch"
PASSES = 3      # in a row: the first one finds the caches full of another side's rows
REMARK = (f"each time is of {PASSES} passes in a row; {ONCE}: all clusters in one block-diagonal graph, where dgl goes "
          "batch after batch; hpcgnn takes all batches in one call, a thread a batch; floats of hpcgnn and torch are "
          "of one graph")


@dataclass(frozen=True)
class InferenceBenchmark:
    """Runs the measurements of `hpcgnn bench inference`.

    Attributes
    ----------
    sources : .npz archives
    trained : model files of hpcgnn quantize, each of the graph of one archive; where there are any, nothing is drawn
    models : of HIDDEN, to draw
    bits : of drawn features, weights and sums' codes
    num_clusters : clusters of a graph, 0 for the graph as a whole
    peers : of dgl, torch
    """

    place: Place
    sources: tuple[Path, ...]
    trained: tuple[Path, ...]
    models: tuple[str, ...]
    bits: tuple[int, ...]
    num_clusters: int
    peers: tuple[str, ...]
    batch_size: int = BATCH_SIZE

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table.

        Raises
        ------
        ConfigError      a model that has no archive, or can't be taken through batches
        """
        waiting = {path: read_model(path)[0] for path in self.trained}
        for path, model in waiting.items():
            _check_kinds(path, model)
        for source in self.sources:
            dataset = load_source(f"npz:{source}", SourceOptions(features="auto", normalize_features="auto"))
            work = BatchedGraph.of(dataset, self.num_clusters, self.batch_size) if self.num_clusters \
                else BatchedGraph.whole(dataset)
            fitting = [path for path, model in waiting.items() if _is_of(model, dataset)]
            for path in fitting:
                yield self._measure_trained(work, path, waiting.pop(path))
            if not self.trained:
                for kind in self.models:
                    yield from self._measure_drawn(work, kind)
        for path, model in waiting.items():
            raise ConfigError(f"{path} was made on {model.dataset} of {model.num_nodes} nodes, which is no graph here; "
                              "name its archive too")

    def _measure_drawn(self, work: BatchedGraph, kind: str) -> Iterator[Measurement]:
        dims = [work.features.shape[1], *[HIDDEN[kind]] * (LAYERS - 1), work.num_classes]
        stack, seen = random_stack(kind, dims, HIDDEN[kind]), []
        others = self._others(work, stack, seen)
        for bits in self.bits:
            model = integer_model(stack, bits, seen, work.name)
            yield _measure_sides(f"{work.case(kind, LAYERS, HIDDEN[kind])}, {bits} bits", work, model, others,
                                 self.place)

    def _measure_trained(self, work: BatchedGraph, path: Path, model: IntegerModel) -> Measurement:
        stack = float_stack(model)
        case = work.case(stack[0].kind, len(stack), stack[0].out_dim)
        return _measure_sides(f"{case}, {path.stem}", work, model, self._others(work, stack, []), self.place)

    def _others(self, work: BatchedGraph, stack: list[FloatConvolution], seen: list[SeenRows]) -> dict[str, Any]:
        """Return the float sides by name; `seen` gets what the convolutions of float32 see."""
        others: dict[str, Any] = {name: FloatBatches(stack, work.batches, work.features, storage)
                                  for name, storage in FLOATS.items()}
        others["hpcgnn fp32"].forward(seen)
        if "torch" in self.peers:
            others |= {"torch fp32": TorchBatches(stack, work.batches, work.features),
                       "torch int8": TorchBatches(stack, work.batches, work.features, is_int8=True)}
        if "dgl" in self.peers:
            others["dgl"] = DglBatches(stack, work.batches, work.features)
        if "dgl" in self.peers and work.part is None:
            others[ONCE] = DglBatches(stack, work.batches.joined(), work.features)
        return others


@dataclass(frozen=True)
class BatchedGraph:
    """Holds a graph cut into batches, or as a whole, and then as a part too: features (num_rows, num_features) float32
    and in-degrees in the rows' order.
    """

    name: str
    num_classes: int
    batches: Batches
    features: np.ndarray
    in_degree: np.ndarray
    part: Partition | None = None

    @classmethod
    def whole(cls, dataset: GraphDataset) -> BatchedGraph:
        """Take all rows and arcs as one batch."""
        part = build_partition(dataset, np.zeros(dataset.num_nodes, np.int32), 0, 1)
        batches = Batches(part.inner_id, np.array([0, part.num_inner]), part.indptr, part.indices)
        return cls(dataset.name, dataset.num_classes, batches, np.ascontiguousarray(part.features, np.float32),
                   part.in_degree[:part.num_inner], part)

    @classmethod
    def of(cls, dataset: GraphDataset, num_clusters: int, batch_size: int) -> BatchedGraph:
        """Cut a graph; arcs between clusters are left out."""
        batches = cut_batches(dataset.indptr, dataset.indices, num_clusters, batch_size, name=dataset.name)
        rows = dataset.features[batches.node_id]
        rows = rows.toarray() if scipy.sparse.issparse(rows) else np.asarray(rows)
        return cls(dataset.name, dataset.num_classes, batches, np.ascontiguousarray(rows, np.float32),
                   dataset.in_degree()[batches.node_id])

    def case(self, kind: str, layers: int, hidden: int) -> str:
        """Say what is measured."""
        cut = f"{self.batches.num_batches} batches of {self.batches.num_rows / self.batches.num_batches:.0f} nodes"
        return f"{self.name}, {kind} {layers} x {hidden}, {cut if self.part is None else 'whole'}"


def _is_of(model: IntegerModel, dataset: GraphDataset) -> bool:
    found = dataset.name, dataset.num_nodes, dataset.features.shape[1]
    return found == (model.dataset, model.num_nodes, model.num_features)


def _check_kinds(path: Path, model: IntegerModel) -> None:
    kinds = sorted({one.kind for one in model.convolutions} - set(SUMMED_KINDS))
    if kinds:
        raise ConfigError(f"{path} is a model of {', '.join(kinds)}; expected one of {', '.join(SUMMED_KINDS)}")


def _measure_sides(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                   place: Place) -> Measurement:
    measure = _measure_batches if work.part is None else _measure_whole
    return measure(case, work, model, others, place)


def _measure_whole(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                   place: Place) -> Measurement:
    scale = model.convolutions[0].rows
    rows = BitRows.of(code_rows(scale, work.features, work.in_degree), scale, work.in_degree)
    alone = CodeExchange(StandInComm(0, 1), ExchangePlan.build(work.part))
    run = GraphPass(model, work.part, alone, rows)
    contestants = {name: partial(_passes, side) for name, side in {OURS: run, **others}.items()}
    measured = place.measure("inference", case, PASSES * work.batches.num_rows / 1e6, "s", contestants,
                             [f"each time is of {PASSES} passes in a row"])
    measured.details |= _against_floats(measured, run.forward()[0], rows.bits.nbytes + run.row_bytes, others)
    measured.remarks.append(_float_summary(case, measured.details))
    return measured


def _measure_batches(case: str, work: BatchedGraph, model: IntegerModel, others: dict[str, Any],
                     place: Place) -> Measurement:
    packed = pack_features(model, work.batches, work.features, work.in_degree)
    load_seconds = wall_seconds(partial(PackedBatches.load, packed.buffer))
    runs = {way: BatchedRun(model, packed, way) for way in ("auto", "tiles", "gather")}
    # Sides that read the same rows are kept apart: one would find them in the caches.
    apart = {OURS: runs["auto"], "hpcgnn fp32": others["hpcgnn fp32"], "tiles": runs["tiles"],
             "hpcgnn bf16": others["hpcgnn bf16"], "gather": runs["gather"]}
    sides = apart | others
    contestants = {name: partial(_passes, side) for name, side in sides.items()}
    answers = {name: runs[name].forward()[0] for name in ("auto", "tiles", "gather")}
    if any(answer.tobytes() != answers["auto"].tobytes() for answer in answers.values()):
        raise AssertionError(f"{case}: tiles and gathering disagree")
    measured = place.measure("inference", case, PASSES * work.batches.num_rows / 1e6, "s", contestants, [REMARK])
    measured.details |= _details(packed, runs, measured, answers["auto"], others)
    measured.details["load_seconds"] = load_seconds
    measured.remarks.append(_summary(case, measured.details))
    return measured


def _passes(side: Any) -> None:
    for _ in range(PASSES):
        side.forward()


def _details(packed: PackedBatches, runs: dict[str, BatchedRun], measured: Measurement, logits: np.ndarray,
             others: dict[str, Any]) -> dict[str, Any]:
    counts, tiles = runs["auto"].counts, runs["tiles"].counts
    better = min(measured.median("tiles"), measured.median("gather"))
    against = _against_floats(measured, logits, runs["auto"].row_bytes, others)
    return against | {"zero_tile_share": tiles.num_jumped / max(tiles.num_places, 1),
            "tile_choice_share": counts.by_tiles / max(counts.by_tiles + counts.by_gather, 1),
            "auto_over_better": measured.median() / better,
            "packed_bytes": packed.nbytes, "float_bytes": 4 * packed.batches.num_rows * packed.features.shape[1]}


def _against_floats(measured: Measurement, logits: np.ndarray, row_bytes: int,
                    others: dict[str, Any]) -> dict[str, Any]:
    floats = others["hpcgnn fp32"].forward()
    return {"best_float_over_ours": min(measured.median(name) for name in FLOATS) / measured.median(),
            "same_class_as_fp32": float((logits.argmax(1) == floats.argmax(1)).mean()),
            "row_bytes": row_bytes, "bf16_row_bytes": others["hpcgnn bf16"].row_bytes}


def _float_summary(case: str, details: dict[str, Any]) -> str:
    return (f"{case}: the best float of hpcgnn takes {details['best_float_over_ours']:.2f} times as long; features and "
            f"rows take {details['row_bytes'] / 1e6:.1f} MB, in bfloat16 {details['bf16_row_bytes'] / 1e6:.1f} MB; "
            f"{100 * details['same_class_as_fp32']:.1f} % of the classes are fp32's")


def _summary(case: str, details: dict[str, Any]) -> str:
    return (f"{_float_summary(case, details)}; {100 * details['zero_tile_share']:.1f} % of the tiles are zero and "
            f"jumped, auto takes tiles for {100 * details['tile_choice_share']:.0f} % of the sums and "
            f"{details['auto_over_better']:.2f} of the better side's seconds")
