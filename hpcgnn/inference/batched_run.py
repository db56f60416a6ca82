"""BatchedRun: an integer model on packed batches, and the same over the parts of all ranks.

Cutting, packing and sums live elsewhere; which rows a rank computes changes no integer of any row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcgnn.inference.aggregation_choice import AggregationCosts
from hpcgnn.inference.batch_dealing import DealtBatches
from hpcgnn.inference.batch_neighborhood import AggregationCounts, BatchNeighborhood
from hpcgnn.inference.coded_rows import CodedRows, code_rows
from hpcgnn.inference.forward import forward_codes
from hpcgnn.inference.packed_batches import PackedBatches
from hpcgnn.quantized.integer_model import IntegerModel


@dataclass(frozen=True)
class BatchedAnswer:
    """What the ranks' batches gave for this rank's inner rows.

    Attributes
    ----------
    logits : (num_inner, num_classes) float32
    embeddings : (num_inner, hidden) float32
    counts : AggregationCounts           of this rank
    packed_bytes : int                   of this rank's batches
    """

    logits: np.ndarray
    embeddings: np.ndarray
    counts: AggregationCounts
    packed_bytes: int


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
        codes = packed.codes()
        self._model, self._in_degree = model, packed.in_degree
        self._coded = CodedRows.empty(model.convolutions[0].rows, packed.in_degree, codes.shape[1])
        self._coded.codes[...] = codes
        self._neighborhood = BatchNeighborhood(packed, aggregation, costs)

    @property
    def counts(self) -> AggregationCounts:
        """Of all passes so far."""
        return self._neighborhood.counts

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits (num_rows, num_classes) and embeddings (num_rows, hidden), float32, in the order of the batches."""
        return forward_codes(self._model, self._coded, self._in_degree, self._neighborhood)


def pack_features(model: IntegerModel, batches, features: np.ndarray, in_degree: np.ndarray) -> PackedBatches:
    """Batches with the codes of their rows' features, (num_rows, num_features) float32, in the order of the batches."""
    scale = model.convolutions[0].rows
    coded = code_rows(scale, features, in_degree)
    return PackedBatches.pack(batches, coded.codes, in_degree, int(scale.bit_width.max()))


def infer_in_batches(comm: MPI.Comm, dealt: DealtBatches, model: IntegerModel, features: np.ndarray,
                     in_degree: np.ndarray, aggregation: str = "auto") -> BatchedAnswer:
    """Collective: logits of inner rows, each computed within its batch by the rank that the batch was dealt to.

    Parameters
    ----------
    features : (num_inner, num_features) float32
    in_degree : (num_inner,) integer     in the whole graph
    """
    scale = model.convolutions[0].rows
    coded = code_rows(scale, features, in_degree)
    codes, degrees = dealt.to_batches(coded.codes), dealt.to_batches(in_degree.astype(np.int64))
    packed = PackedBatches.pack(dealt.batches, codes, degrees, int(scale.bit_width.max()))
    run = BatchedRun(model, packed, aggregation)
    logits, embeddings = run.forward()
    return BatchedAnswer(dealt.to_owners(logits), dealt.to_owners(embeddings), run.counts, packed.nbytes)
