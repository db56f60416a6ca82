"""The forward pass of an integer model, layer by layer in NumPy and small kernels: the reference for the faster passes.

`hpcgnn.lowbit.integer_model` has the formulas. Each float operation is elementwise or within one row, in a fixed order,
so the integers of a row do not depend on its rank, its batch or its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcgnn.lowbit.inference.coded_rows import CodedRows, LayerRows, code_rows, column_target
from hpcgnn.lowbit.inference.neighborhood import REDUCTIONS, CodeNeighborhood, row_blocks
from hpcgnn.lowbit.integer_model import IntegerConvolution, IntegerModel, RowScale
from hpcgnn.ops.arena import empty
from hpcgnn.ops.integer_rows import Epilogue, LayerNorm, OwnPart, rescale

# First row of a block, its sums (m, dim) int32 or float32, and the epilogue that turns them into the output.
Block = tuple[int, np.ndarray, Epilogue]


def forward(model: IntegerModel, rows: np.ndarray, in_degree: np.ndarray,
            neighborhood: CodeNeighborhood) -> tuple[np.ndarray, np.ndarray]:
    """Collective: return logits (n, num_classes) and embeddings (n, hidden) of float rows, both float32.

    Embeddings are the unquantized input of the last convolution; (n, 0) if it is the only one. `in_degree`, (n,), is
    counted in the whole graph and chooses steps and widths. Raises KernelError for NaN, and for negative features if
    codes have no sign.
    """
    return forward_codes(model, code_rows(model.convolutions[0].rows, rows, in_degree), in_degree, neighborhood)


def forward_codes(model: IntegerModel, coded: LayerRows, in_degree: np.ndarray, neighborhood: CodeNeighborhood,
                  observe: Callable[[LayerRows], None] | None = None,
                  observe_second: Callable[[int, CodedRows], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Collective: run `forward` from the codes of the first convolution's rows.

    observe, if given, is called with the codes that each convolution reads, observe_second with a block's first row and
    the codes of gin's second map.
    """
    embeddings, last = np.empty((len(in_degree), 0), np.float32), len(model.convolutions) - 1
    for number, convolution in enumerate(model.convolutions):
        if observe is not None:
            observe(coded)
        layer = _Layer(convolution, coded, in_degree, neighborhood, observe_second)
        if number < last:
            coded, values = layer.hidden(model.convolutions[number + 1].rows, keeps_values=number + 1 == last)
            embeddings = embeddings if values is None else values
    return layer.logits(), embeddings


@dataclass(frozen=True)
class _Layer:
    convolution: IntegerConvolution
    coded: LayerRows
    in_degree: np.ndarray
    neighborhood: CodeNeighborhood
    observe_second: Callable[[int, CodedRows], None] | None = None

    def hidden(self, scale: RowScale, keeps_values: bool) -> tuple[CodedRows, np.ndarray | None]:
        """Collective: the next convolution's codes, and its rows before rounding if keeps_values."""
        norm = self.convolution.norm
        norm = None if norm is None else LayerNorm(norm.weight, norm.bias, norm.eps)
        coded = CodedRows.empty(scale, self.in_degree, self._out_dim)
        values = empty(coded.codes.shape).numpy() if keeps_values else None
        for first, source, epilogue in self._outputs():
            stop = first + len(source)
            rescale(source, replace(epilogue, norm=norm, rectifies=True), coded.target(first, stop),
                    None if values is None else values[first:stop])
        return coded, values

    def logits(self) -> np.ndarray:
        """Collective: return (n, out_dim) float32."""
        out = empty((len(self.in_degree), self._out_dim)).numpy()
        for first, source, epilogue in self._outputs():
            rescale(source, epilogue, values=out[first:first + len(source)])
        return out

    @property
    def _out_dim(self) -> int:
        return len(self.convolution.bias if self.convolution.second is None else self.convolution.second_bias)

    def _outputs(self) -> Iterator[Block]:
        """Collective: yield blocks of the output's rows in order."""
        if self.convolution.kind == "gat":
            return self._attended()
        return self._summed() if self.convolution.second is None else self._second(self._summed())

    def _summed(self) -> Iterator[Block]:
        """Collective: yield sums over neighbors and the row's own part."""
        convolution, mapped = self.convolution, self._map()
        factor = self.neighborhood.row_factor(REDUCTIONS[convolution.kind])
        for first, sums in self.neighborhood.sums(mapped, convolution.mapped.bit_width):
            stop = first + len(sums)
            yield first, sums, Epilogue(
                row_scale=None if factor is None else factor[first:stop], column_scale=convolution.mapped.step,
                bias=convolution.bias, near=mapped[first:stop] if convolution.kind in ("gcn", "gin") else None,
                epsilon=convolution.epsilon, own=self._own(first, stop))

    def _attended(self) -> Iterator[Block]:
        """Collective: yield attention over neighbors and the row itself."""
        convolution, step = self.convolution, self.convolution.mapped.step
        vectors = convolution.attention.astype(np.float64) * step
        ending = Epilogue(column_scale=None if convolution.averages_heads else step, bias=convolution.bias)
        for first, attended in self.neighborhood.attended(self._map(), convolution.mapped.bit_width, vectors,
                                                          convolution.heads):
            yield first, _mean_of_heads(attended * step, convolution.heads) if convolution.averages_heads \
                else attended, ending

    def _map(self) -> np.ndarray:
        # B of the formulas: mapped rows as codes, as they are sent and summed.
        weights, scale, coded = self.convolution.neighbor, self.convolution.mapped, self.coded
        factor = self.neighborhood.row_factor("gcn") if self.convolution.kind == "gcn" else None
        row_scale = coded.step if factor is None else coded.step * factor
        ratio = weights.scale.step / scale.step
        mapped = empty((len(self.in_degree), len(weights.codes)), torch.int8).numpy()
        for first, stop in row_blocks(0, *mapped.shape):
            rescale(coded.product(first, stop, weights),
                    Epilogue(row_scale=row_scale[first:stop], column_scale=ratio),
                    column_target(mapped[first:stop], scale))
        return mapped

    def _own(self, first: int, stop: int) -> OwnPart | None:
        own, coded = self.convolution.own, self.coded
        if own is None:
            return None
        return OwnPart(coded.product(first, stop, own), coded.step[first:stop], own.scale.step)

    def _second(self, blocks: Iterator[Block]) -> Iterator[Block]:
        convolution = self.convolution
        for first, sums, epilogue in blocks:
            # gin's rows between its two maps become codes too.
            between = CodedRows.empty(convolution.second_rows, self.in_degree[first:first + len(sums)], sums.shape[1])
            rescale(sums, replace(epilogue, rectifies=True), between.target(0, len(sums)))
            if self.observe_second is not None:
                self.observe_second(first, between)
            second = between.product(0, len(sums), convolution.second)
            yield first, second, Epilogue(row_scale=between.step, column_scale=convolution.second.scale.step,
                                          bias=convolution.second_bias)


def _mean_of_heads(rows: np.ndarray, num_heads: int) -> np.ndarray:
    # Heads are added in a fixed order, so that no bit depends on the block.
    by_head = rows.reshape(len(rows), num_heads, -1)
    total = by_head[:, 0].copy()
    for head in range(1, num_heads):
        total += by_head[:, head]
    return total / np.float32(num_heads)
