"""GraphPass: an integer model on one rank's rows, a block of rows through all that lies between two exchanges; codes of
halo rows come while central rows go on. The same bits come from `hpcgnn.inference.forward`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcgnn.graph.normalization import degree_factor
from hpcgnn.inference.code_exchange import CodeExchange
from hpcgnn.inference.coded_rows import BitRows, CodedRows, LayerRows
from hpcgnn.inference.layers import layers_of
from hpcgnn.inference.neighborhood import REDUCTIONS
from hpcgnn.ops.arena import empty
from hpcgnn.ops.integer_layers import GraphLayers
from hpcgnn.ops.spans import blocks
from hpcgnn.partition.partition import Partition
from hpcgnn.quantized.integer_model import IntegerModel


class GraphPass:
    """Passes of one model over the same rows.

    Parameters
    ----------
    model : IntegerModel                 whose convolutions `hpcgnn.inference.layers.is_summed`
    part : Partition
    exchange : CodeExchange
    rows : BitRows                       of the inner nodes, that the first convolution reads
    keeps_codes : bool                   for `observe`
    """

    def __init__(self, model: IntegerModel, part: Partition, exchange: CodeExchange, rows: BitRows,
                 keeps_codes: bool = False):
        self._model, self._part, self._exchange, self._rows = model, part, exchange, rows
        self._in_degree = part.in_degree[:part.num_inner]
        factors = [degree_factor(self._in_degree, REDUCTIONS[one.kind]) for one in model.convolutions]
        self._layers = GraphLayers(layers_of(model, factors), part.indptr, part.indices, exchange.num_halo,
                                   self._in_degree, rows.bits, keeps_codes)

    @property
    def row_bytes(self) -> int:
        """Count the bytes of rows that lie between convolutions."""
        return self._layers.row_bytes

    def forward(self, observe: Callable[[LayerRows], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Collective: return what `hpcgnn.inference.forward.forward_codes` does.

        Parameters
        ----------
        observe : function or None       is shown the codes that each convolution reads

        Raises
        ------
        KernelError      a value that is NaN
        """
        num_rows, last = self._part.num_inner, self._model.convolutions[-1]
        hidden_dim = last.neighbor.codes.shape[1] if len(self._model.convolutions) > 1 else 0
        logits = empty((num_rows, len(last.bias if last.second is None else last.second_bias))).numpy()
        hidden = empty((num_rows, hidden_dim)).numpy()
        self._layers.begin()
        for number in range(len(self._model.convolutions)):
            if observe is not None:
                observe(self._codes(number))
            self._convolve(number, logits, hidden)
        return logits, hidden

    def _convolve(self, number: int, logits: np.ndarray, hidden: np.ndarray) -> None:
        part, mapped = self._part, self._layers.mapped[number]
        arrival = self._exchange.start(mapped, self._model.convolutions[number].mapped.bit_width)
        done = 0
        for first, stop in blocks(0, part.num_central):
            if arrival.poll():      # all other rows at once, then
                break
            self._layers.convolve(number, first, stop, logits, hidden)
            done = stop
        arrival.finish_into(mapped, part.num_inner)
        self._layers.convolve(number, done, part.num_inner, logits, hidden)

    def _codes(self, number: int) -> LayerRows:
        if number == 0:
            return self._rows
        coded = CodedRows.empty(self._model.convolutions[number].rows, self._in_degree,
                                self._layers.codes(number).shape[1])
        coded.codes.view(np.uint8)[...] = self._layers.codes(number)
        return coded
