"""BatchedRun: an integer model on packed batches, as layers that run batch by batch where they can.

How batches are cut, packed and summed is not known here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.inference.batches.costs import AggregationCosts
from hpcgnn.inference.batches.cut import Batches
from hpcgnn.inference.batches.neighbors import AggregationCounts, BatchNeighborhood
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.inference.coded_rows import CodedRows, code_rows
from hpcgnn.inference.forward import forward_codes
from hpcgnn.inference.layers import is_summed, layers_of
from hpcgnn.inference.neighborhood import REDUCTIONS
from hpcgnn.ops.integer_layers import BatchedLayers
from hpcgnn.quantized.integer_model import IntegerModel

LEAST_BATCHES = 16      # fewer could leave threads without work


class BatchedRun:
    """Passes of one model over the same batches.

    Parameters
    ----------
    model : IntegerModel
    packed : PackedBatches               codes of the model's first convolution
    aggregation : {"auto", "tiles", "gather"}
    costs : AggregationCosts or None     that auto chooses by; None is this machine's
    """

    def __init__(self, model: IntegerModel, packed: PackedBatches, aggregation: str = "auto",
                 costs: AggregationCosts | None = None):
        self._model, self._packed, self._in_degree = model, packed, packed.in_degree
        self._neighborhood = BatchNeighborhood(packed, aggregation, costs)
        self._layers = _layers_of(model, packed, self._neighborhood) if runs_by_batch(model, packed) else None
        if self._layers is None:
            codes = packed.codes()
            self._coded = CodedRows.empty(model.convolutions[0].rows, packed.in_degree, codes.shape[1])
            self._coded.codes[...] = codes

    @property
    def counts(self) -> AggregationCounts:
        """Return the counts of all passes so far."""
        return self._neighborhood.counts

    @property
    def row_bytes(self) -> int:
        """Count the bytes of the features' codes and of the rows that lie between convolutions on all threads."""
        if self._layers is not None:
            return self._packed.features.words.nbytes + self._layers.space_bytes
        dims = [len(one.neighbor.codes) + one.neighbor.codes.shape[1] for one in self._model.convolutions]
        return self._coded.codes.nbytes + len(self._in_degree) * max(dims)

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits (num_rows, num_classes) and embeddings (num_rows, hidden), float32, in the order of the batches.

        Raises
        ------
        KernelError      a value that is NaN
        """
        if self._layers is None:
            return forward_codes(self._model, self._coded, self._in_degree, self._neighborhood)
        for convolution in self._model.convolutions:
            self._neighborhood.count(len(convolution.neighbor.codes), convolution.mapped.bit_width)
        return self._layers.forward()


def pack_features(model: IntegerModel, batches: Batches, features: np.ndarray, in_degree: np.ndarray) -> PackedBatches:
    """Batches with the codes of their rows' features, (num_rows, num_features) float32, in the order of the batches."""
    scale = model.convolutions[0].rows
    coded = code_rows(scale, features, in_degree)
    return PackedBatches.pack(batches, coded.codes, in_degree, int(scale.bit_width.max()))


def runs_by_batch(model: IntegerModel, packed: PackedBatches) -> bool:
    """Tell whether every convolution sums its neighbors, and batches are many enough."""
    return is_summed(model) and packed.batches.num_batches >= LEAST_BATCHES


def _layers_of(model: IntegerModel, packed: PackedBatches, neighborhood: BatchNeighborhood) -> BatchedLayers:
    """Return the model's layers over packed batches; their sums are taken as the neighborhood chooses."""
    factors = [neighborhood.row_factor(REDUCTIONS[one.kind]) for one in model.convolutions]
    choices = [neighborhood.takes_tiles(len(one.neighbor.codes), one.mapped.bit_width).astype(np.uint8)
               for one in model.convolutions]
    return BatchedLayers(layers_of(model, factors, choices), packed.tiles, packed.batches.indices,
                         packed.in_degree.astype(np.int32), packed.features.lines, packed.is_signed)
