"""HostPass: an integer model on the host, over the rows of one rank's graph or over packed batches.

`hpcgnn.lowbit.integer_model` has the formulas. Each float operation is elementwise or within one row, in a fixed order,
so the integers of a row do not depend on its rank, its batch or its place. Two ways compute the same bits:

    forward_codes     layer by layer, in NumPy and small kernels: any model, and the reference for all other passes
    compiled          models that sum their neighbors: a block of one rank's rows goes through all that lies between two
                      exchanges while it is in the cache, and a batch goes through all layers

A neighborhood has what differs between a graph and batches: `RankNeighborhood` fetches the codes of halo rows, and sums
central rows while they travel; `BatchNeighborhood` sums each batch by tiles of bits or by gathering. Sums come in
blocks (first row, block), which cover rows 0 .. n - 1 in order. A block is valid until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.graph.reductions import degree_factor
from hpcgnn.lowbit.inference.batches import Batches, PackedBatches, runs_of_batches
from hpcgnn.lowbit.inference.code_exchange import CodeExchange
from hpcgnn.lowbit.inference.coded_rows import BitRows, CodedRows, LayerRows, code_rows, column_target, row_blocks
from hpcgnn.lowbit.inference.tile_costs import AggregationCosts, BatchShapes, check_aggregation, choose
from hpcgnn.lowbit.integer_model import IntegerConvolution, IntegerModel, RowScale
from hpcgnn.nn.layers import LINEAR
from hpcgnn.ops import tiles
from hpcgnn.ops.arena import empty
from hpcgnn.ops.bit_gemm import padded
from hpcgnn.ops.integer_layers import (
    PADDING,
    AttentionHeads,
    BatchedLayers,
    DegreeScales,
    GraphLayers,
    IntegerLayer,
)
from hpcgnn.ops.integer_rows import (
    Epilogue,
    LayerNorm,
    OwnPart,
    Scores,
    attend_codes,
    rescale,
    score_codes,
    sum_codes,
)
from hpcgnn.ops.spans import blocks
from hpcgnn.partition.partition import Partition

SUMMED_KINDS = ("gcn", "gin", "sage")      # neighbors are summed without weights
REDUCTIONS = {**{name: kind.reduction for name, kind in LINEAR.items()}, "gin": "sum", "gat": "sum"}
BATCH_ELEMENTS = 1 << 18     # of int32 sums of batches in memory at a time, few enough for the caches
LEAST_BATCHES = 16           # that are compiled; with fewer, threads could be idle

Answer = tuple[np.ndarray, np.ndarray]      # logits (n, num_classes) and embeddings (n, hidden), float32
# First row of a block, its sums (m, dim) int32 or float32, and the epilogue that turns them into the output.
Block = tuple[int, np.ndarray, Epilogue]


class HostPass:
    """Passes of one model over the same rows.

    `rows` are read by the first convolution; None takes the codes of packed batches. keeps_codes keeps what a compiled
    pass shows to `observe`.
    """

    def __init__(self, model: IntegerModel, neighborhood: Neighborhood, rows: LayerRows | None = None,
                 keeps_codes: bool = False):
        self._model, self._neighborhood, self._keeps_codes = model, neighborhood, keeps_codes
        self._compiled = neighborhood.compiled(model, rows, keeps_codes) if is_summed(model) else None
        if rows is None and self._compiled is None:
            rows = cast(BatchNeighborhood, neighborhood).coded(model)      # only batches have rows of their own
        self._rows = rows

    @classmethod
    def over_batches(cls, model: IntegerModel, packed: PackedBatches, aggregation: str = "auto",
                     costs: AggregationCosts | None = None) -> HostPass:
        return cls(model, BatchNeighborhood(packed, aggregation, costs))

    def forward(self, observe: Callable[[LayerRows], None] | None = None) -> Answer:
        """Collective on a graph: run `forward_codes`. KernelError: `observe` without `keeps_codes`."""
        if observe is not None and not self._keeps_codes:
            raise KernelError("this pass keeps no codes to show; make it with keeps_codes=True")
        if self._compiled is not None:
            return self._compiled.forward(observe)
        return forward_codes(self._model, self._rows, self._neighborhood, observe)

    @property
    def counts(self) -> AggregationCounts:
        return cast(BatchNeighborhood, self._neighborhood).counts

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    @property
    def row_bytes(self) -> int:
        """Bytes of rows between convolutions, and of packed features."""
        if self._compiled is not None:
            return self._compiled.row_bytes
        dims = [len(one.neighbor.codes) + one.neighbor.codes.shape[1] for one in self._model.convolutions]
        return cast(CodedRows, self._rows).codes.nbytes + len(self._neighborhood.in_degree) * max(dims)


def forward_codes(model: IntegerModel, coded: LayerRows, neighborhood: Neighborhood,
                  observe: Callable[[LayerRows], None] | None = None,
                  observe_second: Callable[[int, CodedRows], None] | None = None) -> Answer:
    """Collective: logits and embeddings from the codes of the first convolution's rows.

    Embeddings are the unquantized input of the last convolution; (n, 0) if it is the only one. observe, if given, is
    called with the codes that each convolution reads, observe_second with a block's first row and the codes of gin's
    second map. Raises KernelError for NaN.
    """
    in_degree = neighborhood.in_degree
    embeddings, last = np.empty((len(in_degree), 0), np.float32), len(model.convolutions) - 1
    for number, convolution in enumerate(model.convolutions):
        if observe is not None:
            observe(coded)
        layer = _Layer(convolution, coded, neighborhood, observe_second)
        if number < last:
            coded, values = layer.hidden(model.convolutions[number + 1].rows, keeps_values=number + 1 == last)
            embeddings = embeddings if values is None else values
    return layer.logits(), embeddings


@dataclass(frozen=True)
class _Layer:
    convolution: IntegerConvolution
    coded: LayerRows
    neighborhood: Neighborhood
    observe_second: Callable[[int, CodedRows], None] | None = None

    def hidden(self, scale: RowScale, keeps_values: bool) -> tuple[CodedRows, np.ndarray | None]:
        """Collective: the next convolution's codes, and its rows before rounding if keeps_values."""
        given = self.convolution.norm
        norm = None if given is None else LayerNorm(given.weight, given.bias, given.eps)
        coded = CodedRows.empty(scale, self.neighborhood.in_degree, self._out_dim)
        values = empty(coded.codes.shape).numpy() if keeps_values else None
        for first, source, epilogue in self._outputs():
            stop = first + len(source)
            rescale(source, replace(epilogue, norm=norm, rectifies=True), coded.target(first, stop),
                    None if values is None else values[first:stop])
        return coded, values

    def logits(self) -> np.ndarray:
        """Collective: return (n, out_dim) float32."""
        out = empty((len(self.neighborhood.in_degree), self._out_dim)).numpy()
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
        mapped = empty((len(self.neighborhood.in_degree), len(weights.codes)), torch.int8).numpy()
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
            in_degree = self.neighborhood.in_degree[first:first + len(sums)]
            between = CodedRows.empty(convolution.second_rows, in_degree, sums.shape[1])
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


class RankNeighborhood:
    """The rows of one rank; `in_degree`, (n,), is counted in the whole graph and chooses steps and widths."""

    def __init__(self, part: Partition, exchange: CodeExchange):
        self._part, self._exchange = part, exchange
        self.in_degree = part.in_degree[:part.num_inner]

    def row_factor(self, reduction: str) -> np.ndarray | None:
        return degree_factor(self.in_degree, reduction)

    def compiled(self, model: IntegerModel, rows: LayerRows | None, keeps_codes: bool) -> CompiledGraph | None:
        if not isinstance(rows, BitRows):
            return None
        return CompiledGraph(model, self._part, self._exchange, rows, keeps_codes)

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: yield exact sums over in-neighbors, (first, (m, dim) contiguous int32).

        Codes, (n, dim) int8, have a magnitude below 2**(bit_width - 1).
        """
        for first, stop, table in self._readable(codes, bit_width):
            yield first, sum_codes(self._part.indptr[first:stop + 1], self._part.indices, table)

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        """Collective: yield attention over in-neighbors and the row itself, (first, (m, dim) float32).

        `vectors`, (2, dim) float64, are in units of a code; see `hpcgnn.ops.integer_rows`.
        """
        part, scores = self._part, score_codes(codes, vectors, num_heads)
        for first, stop, table in self._readable(codes, bit_width):
            # Halo rows are scored here, from the same codes to the same integers as by their owners.
            if len(scores.source) < len(table):
                halo = score_codes(table[part.num_inner:], vectors, num_heads)
                scores = Scores(np.concatenate([scores.target, halo.target]),
                                np.concatenate([scores.source, halo.source]))
            yield first, attend_codes(part.indptr[first:stop + 1], part.indices, table, scores, first)

    def _readable(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Collective: yield rows first .. stop - 1 and a table with their neighbors' codes, central rows first."""
        part, (num_inner, dim) = self._part, codes.shape
        arrival = self._exchange.start(codes, bit_width)
        for first, stop in row_blocks(0, part.num_central, dim):
            yield first, stop, codes
            arrival.poll()
        table = codes
        if self._exchange.num_halo:
            table = empty((num_inner + self._exchange.num_halo, dim), torch.int8).numpy()
            table[:num_inner] = codes
        arrival.finish(table[num_inner:])
        for first, stop in row_blocks(part.num_central, num_inner, dim):
            yield first, stop, table


class CompiledGraph:
    def __init__(self, model: IntegerModel, part: Partition, exchange: CodeExchange, rows: BitRows,
                 keeps_codes: bool = False):
        self._model, self._part, self._exchange, self._rows = model, part, exchange, rows
        self._in_degree = part.in_degree[:part.num_inner]
        factors = [degree_factor(self._in_degree, REDUCTIONS[one.kind]) for one in model.convolutions]
        self._layers = GraphLayers(layers_of(model, factors), part.indptr, part.indices, exchange.num_halo,
                                   self._in_degree, rows.bits, keeps_codes)

    @property
    def row_bytes(self) -> int:
        return self._layers.row_bytes

    def forward(self, observe: Callable[[LayerRows], None] | None = None) -> Answer:
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
            if arrival.poll():      # then all other rows go at once
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


class BatchNeighborhood:
    """Sums of packed batches.

    `costs` decide if `aggregation` is "auto"; None is this machine's. "tiles" and "gather" are other choices, any other
    word raises ConfigError.
    """

    def __init__(self, packed: PackedBatches, aggregation: str = "auto", costs: AggregationCosts | None = None):
        check_aggregation(aggregation)
        self.in_degree, self._packed = packed.in_degree, packed
        self._batches, self._tiles = packed.batches, packed.tiles
        self._shapes, self._costs = BatchShapes.of(packed.tiles), costs
        self._aggregation = aggregation
        self._takes_tiles: dict[tuple[int, int], np.ndarray] = {}
        self._factors: dict[str, np.ndarray | None] = {}
        self.counts = AggregationCounts()

    def coded(self, model: IntegerModel) -> CodedRows:
        codes = self._packed.codes()
        coded = CodedRows.empty(model.convolutions[0].rows, self.in_degree, codes.shape[1])
        coded.codes[...] = codes
        return coded

    def compiled(self, model: IntegerModel, rows: LayerRows | None, keeps_codes: bool) -> CompiledBatches | None:
        # Compiled batches keep no rows of a whole layer, so they have none to show.
        if keeps_codes or self._batches.num_batches < LEAST_BATCHES:
            return None
        return CompiledBatches(model, self._packed, self)

    def row_factor(self, reduction: str) -> np.ndarray | None:
        if reduction not in self._factors:
            self._factors[reduction] = degree_factor(self._batches.in_degree, reduction)
        return self._factors[reduction]

    def takes_tiles(self, dim: int, bit_width: int) -> np.ndarray:
        if (dim, bit_width) not in self._takes_tiles:
            self._takes_tiles[dim, bit_width] = choose(self._aggregation, self._shapes, dim, bit_width, self._costs)
        return self._takes_tiles[dim, bit_width]

    def sums(self, codes: np.ndarray, bit_width: int) -> Iterator[tuple[int, np.ndarray]]:
        row_begin, takes_tiles = self._batches.row_begin, self.takes_tiles(codes.shape[1], bit_width)
        self.count(codes.shape[1], bit_width)
        for first, end in self._blocks(codes.shape[1]):
            start = int(row_begin[first])
            out = empty((int(row_begin[end]) - start, codes.shape[1]), torch.int32).numpy()
            # Neighboring batches that are summed alike form a run.
            changes = np.flatnonzero(np.diff(takes_tiles[first:end])) + first + 1
            for low, high in pairwise([first, *changes.tolist(), end]):
                sums = out[row_begin[low] - start:row_begin[high] - start]
                if takes_tiles[low]:
                    tiles.sum_batches(self._tiles, codes, bit_width, low, high, sums)
                else:
                    indptr = self._batches.indptr[row_begin[low]:row_begin[high] + 1]
                    sum_codes(indptr, self._batches.indices, codes, sums)
            yield start, out

    def attended(self, codes: np.ndarray, bit_width: int, vectors: np.ndarray,
                 num_heads: int) -> Iterator[tuple[int, np.ndarray]]:
        # Tiles can't weigh entries, so attention always gathers.
        row_begin, scores = self._batches.row_begin, score_codes(codes, vectors, num_heads)
        for first, end in self._blocks(codes.shape[1]):
            start, stop = int(row_begin[first]), int(row_begin[end])
            yield start, attend_codes(self._batches.indptr[start:stop + 1], self._batches.indices, codes, scores, start)

    def _blocks(self, dim: int) -> Iterator[tuple[int, int]]:
        return runs_of_batches(self._batches.row_begin, max(1, BATCH_ELEMENTS // max(1, dim)))

    def count(self, dim: int, bit_width: int) -> None:
        takes_tiles = self.takes_tiles(dim, bit_width)
        places = self._tiles.num_places[takes_tiles].sum()
        self.counts.by_tiles += int(takes_tiles.sum())
        self.counts.by_gather += int((~takes_tiles).sum())
        self.counts.num_places += int(places)
        self.counts.num_jumped += int(places - self._shapes.num_tiles[takes_tiles].sum())


Neighborhood = RankNeighborhood | BatchNeighborhood


class CompiledBatches:
    def __init__(self, model: IntegerModel, packed: PackedBatches, neighborhood: BatchNeighborhood):
        self._packed, self._neighborhood = packed, neighborhood
        self._sums = [(len(one.neighbor.codes), one.mapped.bit_width) for one in model.convolutions]
        factors = [neighborhood.row_factor(REDUCTIONS[one.kind]) for one in model.convolutions]
        choices = [neighborhood.takes_tiles(*sums).astype(np.uint8) for sums in self._sums]
        self._layers = BatchedLayers(layers_of(model, factors, choices), packed.tiles, packed.batches.indices,
                                     packed.in_degree.astype(np.int32), packed.features.lines, packed.is_signed)

    @property
    def row_bytes(self) -> int:
        return self._packed.features.words.nbytes + self._layers.space_bytes

    def forward(self, observe: Callable[[LayerRows], None] | None = None) -> Answer:
        # A pass that is observed is not compiled.
        for sums in self._sums:
            self._neighborhood.count(*sums)
        return self._layers.forward()


@dataclass
class AggregationCounts:
    """Number of batches summed by tiles and by gathering, and of skipped and all tiles (`num_places`), so far."""

    by_tiles: int = 0
    by_gather: int = 0
    num_jumped: int = 0
    num_places: int = 0


def pack_features(model: IntegerModel, batches: Batches, features: np.ndarray, in_degree: np.ndarray) -> PackedBatches:
    scale = model.convolutions[0].rows
    coded = code_rows(scale, features, in_degree)
    return PackedBatches.pack(batches, coded.codes, in_degree, int(scale.bit_width.max()))


def is_summed(model: IntegerModel) -> bool:
    return all(one.kind in SUMMED_KINDS for one in model.convolutions) and model.num_features > 0


def layers_of(model: IntegerModel, factors: Iterable[np.ndarray | None],
              takes_tiles: Iterable[np.ndarray | None] | None = None) -> list[IntegerLayer]:
    """The model's convolutions as layers of `hpcgnn.ops.integer_layers`.

    Per convolution, `factors` has (n,) float32 of its reduction or None; takes_tiles is as in `IntegerLayer`, or None.
    """
    choices = [None] * len(model.convolutions) if takes_tiles is None else takes_tiles
    return [_layer(*of_one) for of_one in zip(model.convolutions, factors, choices, strict=True)]


def _layer(convolution: IntegerConvolution, factor: np.ndarray | None,
           takes_tiles: np.ndarray | None) -> IntegerLayer:
    weights, mapped = convolution.neighbor, convolution.mapped
    more: dict[str, Any] = {}
    if convolution.own is not None:
        more |= {"own": convolution.own.codes, "own_scale": _padded(convolution.own.scale.step)}
    if convolution.second is not None:
        more |= {"second": convolution.second.codes, "second_scale": _padded(convolution.second.scale.step),
                 "second_bias": _padded(convolution.second_bias), "second_rows": _by_degree(convolution.second_rows)}
    if convolution.norm is not None:
        more |= {"norm_weight": _padded(convolution.norm.weight), "norm_bias": _padded(convolution.norm.bias),
                 "norm_eps": convolution.norm.eps}
    if convolution.attention is not None:
        vectors = convolution.attention.astype(np.float64) * mapped.step
        more["attention"] = AttentionHeads(vectors, convolution.heads, convolution.averages_heads)
    return IntegerLayer(
        map=weights.codes, ratio=_padded(weights.scale.step / mapped.step), mapped_step=_padded(mapped.step),
        bias=_padded(convolution.bias), rows=_by_degree(convolution.rows), row_factor=factor,
        mapped_limit=float(mapped.max_code), epsilon=convolution.epsilon, mapped_bits=mapped.bit_width,
        takes_tiles=takes_tiles, adds_near=convolution.kind in ("gcn", "gin"),
        scales_mapped=convolution.kind == "gcn", **more)


def _by_degree(scale: RowScale) -> DegreeScales:
    return DegreeScales(scale.step, scale.max_code.astype(np.float32), scale.is_signed)


def _padded(columns: np.ndarray) -> np.ndarray:
    return np.pad(columns.astype(np.float32), (0, padded(len(columns), PADDING) - len(columns)))
