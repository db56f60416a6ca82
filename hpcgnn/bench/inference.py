"""`hpcgnn bench inference`: passes over batches of METIS clusters, or whole graphs, on integers and in floats.

Drawn networks are QGTC's of Fig. 7, cluster-GCN (3 x 16) and batched GIN (3 x 64), and SAGE (3 x 64), with the
LayerNorm of training. A model file holds a trained network; its float twin has the values of the weight codes. Graphs,
batches and packed features are made beforehand for all contestants, which are in `inference_host` and
`inference_device`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcgnn.bench import inference_device, inference_host
from hpcgnn.bench.float_networks import (
    SUMMED_KINDS,
    FloatBatches,
    FloatConvolution,
    float_stack,
    integer_model,
    random_stack,
)
from hpcgnn.bench.inference_work import BatchedGraph
from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import Measurement
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import ConfigError
from hpcgnn.lowbit.inference.model_file import read_model
from hpcgnn.lowbit.integer_model import IntegerModel

HIDDEN = {"gcn": 16, "gin": 64, "sage": 64}
LAYERS = 3
BATCH_SIZE = 16     # clusters per batch, as in QGTC


@dataclass(frozen=True)
class InferenceBenchmark:
    place: Place
    sources: tuple[Path, ...]    # .npz archives
    trained: tuple[Path, ...]    # model files, each for the graph of one archive; if any, no model is drawn
    models: tuple[str, ...]      # keys of HIDDEN, models to draw
    bits: tuple[int, ...]        # bits of drawn features, weights and sums
    num_clusters: int            # 0 takes the graph as a whole
    peers: tuple[str, ...]       # dgl, torch; on a device only torch
    batch_size: int = BATCH_SIZE

    def measure(self) -> Iterator[Measurement]:
        """Measure everything, in the order of the table.

        Raises ConfigError: a model without its archive, or a model that can't run in batches.
        """
        waiting = read_models(self.trained)
        for source in self.sources:
            dataset = load_source(f"npz:{source}", SourceOptions(feature_kind="auto", normalize_features="auto"))
            work = BatchedGraph.of(dataset, self.num_clusters, self.batch_size) if self.num_clusters \
                else BatchedGraph.whole(dataset)
            for path in models_of(waiting, dataset):
                model = waiting.pop(path)
                stack = float_stack(model)
                case = f"{work.case(stack[0].kind, len(stack), stack[0].out_dim)}, {path.stem}"
                yield self._measure_sides(case, work, model, self._floats(work, stack))
            if not self.trained:
                for kind in self.models:
                    yield from self._measure_drawn(work, kind)
        refuse_waiting(waiting)

    def _measure_drawn(self, work: BatchedGraph, kind: str) -> Iterator[Measurement]:
        dims = [work.features.shape[1], *[HIDDEN[kind]] * (LAYERS - 1), work.num_classes]
        stack = random_stack(kind, dims, HIDDEN[kind])
        seen: list = []
        # On the host, so that a device gets the same integers.
        FloatBatches(stack, work.batches, work.features).forward(seen)
        others = self._floats(work, stack)
        for bits in self.bits:
            model = integer_model(stack, bits, seen, work.name)
            case = f"{work.case(kind, LAYERS, HIDDEN[kind])}, {bits} bits"
            yield self._measure_sides(case, work, model, others)

    @property
    def _sides(self) -> ModuleType:
        return inference_device if self.place.is_device else inference_host

    def _floats(self, work: BatchedGraph, stack: list[FloatConvolution]) -> dict[str, Any]:
        return self._sides.float_sides(work, stack, self.peers, self.place)

    def _measure_sides(self, case: str, work: BatchedGraph, model: IntegerModel,
                       others: dict[str, Any]) -> Measurement:
        measure = self._sides.measure_batches if work.part is None else self._sides.measure_whole
        return measure(case, work, model, others, self.place)


def read_models(paths: Iterable[Path]) -> dict[Path, IntegerModel]:
    """Models by path. Raises ConfigError for a model with convolutions that are not plain sums."""
    found = {path: read_model(path)[0] for path in paths}
    for path, model in found.items():
        kinds = sorted({one.kind for one in model.convolutions} - set(SUMMED_KINDS))
        if kinds:
            raise ConfigError(f"{path} is a model of {', '.join(kinds)}; expected one of {', '.join(SUMMED_KINDS)}")
    return found


def refuse_waiting(waiting: dict[Path, IntegerModel]) -> None:
    """Raise ConfigError if a model's graph was not among those that were given."""
    for path, model in waiting.items():
        raise ConfigError(f"{path} was made on {model.dataset} of {model.num_nodes} nodes, which is no graph here; "
                          "name its archive too")


def models_of(waiting: dict[Path, IntegerModel], dataset: GraphDataset) -> list[Path]:
    """Paths of the models that were made on a graph."""
    found = dataset.name, dataset.num_nodes, dataset.features.shape[1]
    return [path for path, model in waiting.items() if found == (model.dataset, model.num_nodes, model.num_features)]
