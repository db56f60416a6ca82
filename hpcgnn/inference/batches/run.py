"""BatchedRun: an integer model on packed batches. How batches are cut, packed and summed is not known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.inference.batches.costs import AggregationCosts
from hpcgnn.inference.batches.cut import Batches
from hpcgnn.inference.batches.layers import layers_of, runs_by_batch
from hpcgnn.inference.batches.neighbors import AggregationCounts, BatchNeighborhood
from hpcgnn.inference.batches.packed import PackedBatches
from hpcgnn.inference.coded_rows import CodedRows, code_rows
from hpcgnn.inference.forward import forward_codes
from hpcgnn.quantized.integer_model import IntegerModel


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
        self._model, self._in_degree = model, packed.in_degree
        self._neighborhood = BatchNeighborhood(packed, aggregation, costs)
        self._layers = layers_of(model, packed, self._neighborhood) if runs_by_batch(model, packed) else None
        if self._layers is None:
            codes = packed.codes()
            self._coded = CodedRows.empty(model.convolutions[0].rows, packed.in_degree, codes.shape[1])
            self._coded.codes[...] = codes

    @property
    def counts(self) -> AggregationCounts:
        """Return the counts of all passes so far."""
        return self._neighborhood.counts

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
