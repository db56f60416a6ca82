"""LocalGraph: one rank's rows of the graph, as layers see them.

Rows 0 .. num_inner - 1 are inner rows, which this rank owns and computes; halo rows, which other ranks own, follow. A
layer calls `halo(h)` to append the halo rows, then `aggregate`. Fused layers use `hop` and `exchange` instead, and
aggregate central rows while messages travel. Example with two ranks: the path a - b - c, rank 0 owns a and b, rank 1
owns c. Rank 0 has inner rows [a, b] and halo row [c]; b is marginal, and it is the boundary row that `halo` sends to
rank 1.

Random draws depend on (seed, epoch, number of the call, global node id), so any number of ranks draws the same.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcgnn.errors import KernelError
from hpcgnn.graph.hop import (
    Exchange,
    ExchangeSite,
    Hop,
    Matrices,
    PeerEntries,
    PeerMatrices,
    restrict,
)
from hpcgnn.graph.reductions import (
    Adjacency,
    Reductions,
    build_adjacency,
    degree_factor,
    store_loop_weights,
)
from hpcgnn.graph.rows import FarArcs, LocalRows, Prefixes
from hpcgnn.ops.aggregation import SparseRows, aggregate, chosen_rows, maximum
from hpcgnn.ops.arena import empty, keep_long
from hpcgnn.ops.column_ranges import product
from hpcgnn.ops.counter import DROPOUT, STORE, CounterKey, words_of
from hpcgnn.ops.pointwise import Activating, Activation, apply_activation, dropout
from hpcgnn.ops.resident import resident
from hpcgnn.ops.spans import spans

if TYPE_CHECKING:
    from hpcgnn.ops.relations import Relations
    from hpcgnn.ops.row_codes import RowStore

HopShape = tuple[bool, str, int, int, int, int]      # is_input, reduction, num_in, num_out, back_in, back_out


@dataclass
class ForwardPass:
    """The counters of calls in the current forward pass, equal on every rank."""

    seed: int = 0
    epoch: int = 0
    is_training: bool = False
    hops_left: int | None = None
    num_halo_calls: int = 0
    num_dropout_calls: int = 0
    num_stored: int = 0
    loss_scale: float = 1.0


class LocalGraph:
    """A rank's rows as layers see them.

    Parameters
    ----------
    rows : LocalRows
    exchange : Exchange
    prefixes : Prefixes or None      rows that training passes compute; None: all
    far_arcs : FarArcs or None       edges of later layers, where they differ from the input's
    has_half_sums : bool             whether a GPU sums 16-bit rows in their own type, see `SparseRows`
    stored_bits : {2, 4, 8} or None  bits of rows that layers keep for the backward pass; None: unquantized
    is_trial : bool                  a few rows to try a model on, without statistics

    Attributes
    ----------
    x : (num_inner, num_features)              input rows; `halo(x)` sends nothing
    node_id, in_degree, num_nodes              as in `LocalRows`
    degree : (num_inner + num_halo,)           degrees that scale sums, see `LocalRows`
    edge_weight : (num_edges,) float32 or None
    edge_type : (num_edges,) int64 or None                 relation of each edge, in the order of `edge_index`
    edge_attr : (num_edges, num_edge_features) float32 or None
    """

    def __init__(self, rows: LocalRows, exchange: Exchange, prefixes: Prefixes | None = None,
                 far_arcs: FarArcs | None = None, has_half_sums: bool = False, stored_bits: int | None = None,
                 is_trial: bool = False):
        self.rows, self.prefixes, self.has_half_sums = rows, prefixes, has_half_sums
        self.stored_bits, self.is_trial = stored_bits, is_trial
        self.num_inner, self.num_rows, self.num_nodes = len(rows.indptr) - 1, len(rows.node_id), rows.num_nodes
        self.num_halo = self.num_rows - self.num_inner
        self.node_id, self.in_degree, self.degree = rows.node_id, rows.in_degree, rows.degree
        self.x, weight = rows.features[:self.num_inner], rows.edge_weight
        self.edge_weight = None if weight is None else torch.from_numpy(weight).to(self.x.device)
        self._edge_weight = None if weight is None else resident(weight)
        self._indptr, self._indices = resident(rows.indptr), resident(rows.indices)
        # Maps the number of a hop's rows to the prefix that a gradient reaches; if prefixes have equally many rows, the
        # last one counts.
        self._back_of = {} if prefixes is None else dict(zip(prefixes.num_within, prefixes.backward, strict=True))
        self._ids: dict[tuple[int, int], np.ndarray] = {}
        self._row_factors: dict[str, torch.Tensor | None] = {}
        self._input_aggregates: dict[str, torch.Tensor] = {}
        self._adjacencies: dict[bool, Adjacency] = {}
        self._relations: list[Relations] = []      # made on first use, and shared by copies
        returning = exchange.num_returning
        self._reductions = Reductions(self._indptr, self._indices, self.num_rows, self.degree, has_half_sums,
                                      self._edge_weight, None if returning is None else self.num_inner + returning)
        self._far_halo = self.num_halo if far_arcs is None else far_arcs.num_halo
        self._far_reductions = self._reductions if far_arcs is None else self._reductions_over(far_arcs)
        self._pass = ForwardPass()
        self._whole = self
        self._read_by(exchange)

    def _read_by(self, exchange: Exchange) -> None:
        self.exchange, self.halo_spans = exchange, exchange.halo_spans
        self._restricted: dict[HopShape, Matrices] = {}
        self._cut: dict[HopShape, PeerMatrices] = {}
        self._peer_entries: PeerEntries | None = None
        self._spans: dict[int, tuple] = {}

    def with_exchange(self, exchange: Exchange) -> LocalGraph:
        """Return the same rows with another exchange; matrices are shared."""
        other = copy.copy(self)
        other._whole = self
        other._read_by(exchange)
        return other

    @property
    def num_within(self) -> list[int] | None:
        return None if self.prefixes is None else self.prefixes.num_within

    @property
    def x_all(self) -> torch.Tensor:
        return self.rows.features

    @property
    def whole(self) -> tuple[LocalGraph, torch.Tensor | None]:
        """The graph of all inner rows, and which of them this graph has, (num_inner,) int64; None: all."""
        return self._whole, None

    @property
    def structure_bytes(self) -> int:
        both = {id(made): made for made in (self._reductions, self._far_reductions)}.values()
        matrices = [matrix for made in both for matrix in made.made]
        matrices += [matrix for made in self._adjacencies.values() for matrix in made[:2]]
        names = ("begin", "end", "indices", "row_scale", "column_scale", "entry_scale")
        of_relations = [array for made in self._relations for array in made.arrays]
        arrays = [self.node_id, self.in_degree, self._indptr, self._indices, *of_relations,
                  self.rows.edge_type, self.rows.edge_attr,
                  *(array for made in both for array in made.arrays),
                  *(getattr(matrix, name) for matrix in matrices for name in names)]
        # Memory is counted once: of views by the array that owns it, of arrays that a tensor holds too by its address.
        owners = [_owner(array) for array in arrays if array is not None]       # matrices share arrays
        return sum({owner.ctypes.data: owner.nbytes for owner in owners}.values())

    @cached_property
    def _is_marginal(self) -> np.ndarray:
        return _has_entry_from(self._indptr, self._indices, self.num_inner)

    @property
    def reads_history(self) -> bool:
        return self.exchange.reads_history

    @property
    def num_back(self) -> int | None:
        """Number of leading rows of `halo` that get a gradient, where the rest are constants; None: all rows."""
        returning = self.exchange.num_returning
        return None if returning is None else self.num_inner + returning

    @property
    def drops_first(self) -> bool:
        # In steps, rows of the history are read again and again, and would be masked each time; sums are of masked
        # rows.
        return self.exchange.is_alone or self.exchange.reads_history or self.sends_sums

    @property
    def sends_sums(self) -> bool:
        return self._far_reductions is not self._reductions

    @property
    def arcs(self) -> tuple[np.ndarray, np.ndarray]:
        """CSR by destination, (num_inner + 1,) int64 and (num_edges,) int32."""
        return self._indptr, self._indices

    @property
    def edge_index(self) -> torch.Tensor:
        """(2, num_edges) int64: local source (inner or halo) and destination (inner), as in PyTorch Geometric."""
        target = np.repeat(np.arange(self.num_inner), np.diff(self._indptr))
        return torch.from_numpy(np.stack([self._indices.astype(np.int64), target])).to(self.x.device)

    @cached_property
    def edge_type(self) -> torch.Tensor | None:
        found = self.rows.edge_type
        return None if found is None else torch.from_numpy(found.astype(np.int64)).to(self.x.device)

    @cached_property
    def edge_attr(self) -> torch.Tensor | None:
        found = self.rows.edge_attr
        return None if found is None else torch.from_numpy(found).to(self.x.device)

    @property
    def relations(self) -> Relations:
        """The entries of `adjacency(with_self=False)` by relation; KernelError for edges of one kind."""
        if self.rows.edge_type is None:
            raise KernelError("these edges have no relations; preprocess a source whose edges have relations")
        if not self._relations:
            from hpcgnn.ops.relations import Relations

            made = build_adjacency(self._indptr, self._indices, self.num_rows, with_self=False)
            self._relations.append(Relations.of(made, self.rows.edge_type))
        return self._relations[0]

    def adjacency(self, with_self: bool = True) -> Adjacency:
        """Return the entries by destination and by source, for layers that weigh them."""
        if with_self not in self._adjacencies:
            self._adjacencies[with_self] = build_adjacency(self._indptr, self._indices, self.num_rows, with_self,
                                                           self.has_half_sums)
        return self._adjacencies[with_self]

    @cached_property
    def looped_weight(self) -> torch.Tensor | None:
        """(num_entries,) float32, weights of `adjacency(with_self=True).matrix`, self-loops 1; or None."""
        if self.edge_weight is None:
            return None
        looped = store_loop_weights(self._indptr, self._indices, self._edge_weight)
        return torch.from_numpy(looped).to(self.x.device)

    def ids(self, start: int, stop: int) -> np.ndarray:
        """Return (stop - start,) int64 global ids: the same array each time, so that a device keeps one copy."""
        if (start, stop) not in self._ids:
            self._ids[start, stop] = resident(self.node_id[start:stop])
        return self._ids[start, stop]

    @cached_property
    def node_index(self) -> torch.Tensor:
        """(num_inner,) int64, number of each row's node in the source."""
        return torch.from_numpy(self.node_id[:self.num_inner].astype(np.int64)).to(self.x.device)

    @cached_property
    def inner_degree(self) -> torch.Tensor:
        """In-degrees in the whole graph, (num_inner,) int64."""
        return torch.from_numpy(self.in_degree[:self.num_inner].astype(np.int64)).to(self.x.device)

    def row_factor(self, reduction: str) -> torch.Tensor | None:
        if reduction not in self._row_factors:
            factor = degree_factor(self.degree[:self.num_inner], reduction)
            self._row_factors[reduction] = None if factor is None else torch.from_numpy(factor).to(self.x.device)
        return self._row_factors[reduction]

    def begin_forward(self, seed: int, epoch: int, is_training: bool, num_hops: int | None = None,
                      loss_scale: float = 1.0) -> None:
        """Start a forward pass. All ranks then call the same layers in the same order.

        A model that says its `num_hops` must call `hop` that often; in training it returns only the rows of the loss.
        `loss_scale` is the factor on the gradients of this pass.
        """
        knows_reach = self.prefixes is not None and is_training and num_hops == len(self.prefixes.num_within) - 1
        self._pass = ForwardPass(seed, epoch, is_training, num_hops if knows_reach else None, loss_scale=loss_scale)

    @property
    def current_pass(self) -> ForwardPass:
        return replace(self._pass)

    def go_back(self, earlier: ForwardPass) -> None:
        """Return to an earlier `current_pass`, to repeat the same layers with the same draws and messages."""
        self._pass = replace(earlier)

    def is_input(self, h: torch.Tensor) -> bool:
        """Whether `h` is the constant input; its halo rows are already here."""
        return h is self.x

    def halo(self, h: torch.Tensor, is_scaled: bool = True) -> torch.Tensor:
        """Collective: return inner rows followed by halo rows, (num_inner + num_halo, dim), differentiable.

        Parameters
        ----------
        h : (num_inner, dim) of the input's type
        is_scaled : bool
            if halo rows are sampled: whether they are scaled so that sums stay unbiased; else see `halo_present`
        """
        if self.is_input(h):
            return self.x_all
        if self.sends_sums:
            raise KernelError("this layer reads its neighbors' rows one by one, and some of them come as sums; use "
                              "--set pre_aggregation=off")
        if len(h) != self.num_inner:
            raise KernelError(f"halo needs one row per inner node, {self.num_inner}, found {len(h)}")
        return _Halo.apply(h, self, self.next_site(is_scaled=is_scaled))

    def halo_present(self, h: torch.Tensor) -> np.ndarray | None:
        """Return which rows `halo(h)` has in this pass, (num_inner + num_halo,) bool; None: all."""
        if self.is_input(h):
            return None
        current = self._pass
        present = self.exchange.present(ExchangeSite(0, current.seed, current.epoch, current.is_training))
        return None if present is None else np.concatenate([np.ones(self.num_inner, bool), present])

    def share(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective: return constant inner rows (num_inner, dim) float32, then halo rows, which are sent once."""
        return self.exchange.input_rows(rows)

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Collective: return a new tensor with the sums of float32 values over all ranks, differentiable.

        The backward pass is collective, too: the gradient of a rank's values is the sum of all ranks' gradients. In a
        trial on a few rows, sums are 1.
        """
        return torch.ones_like(values) if self.is_trial else _SumOverRanks.apply(values, self)

    def sum_of_pass(self, values: torch.Tensor) -> torch.Tensor:
        """Collective: like `sum_over_ranks`, for values of the rows that this pass computes: a step's, or all."""
        return self.sum_over_ranks(values)

    def draw_rows(self, h: torch.Tensor, count: int) -> torch.Tensor:
        """Collective: return the rows of drawn nodes of the whole graph, the same on all ranks, differentiable.

        Nodes are drawn with replacement. Draws depend on seed, epoch and number of the call only, so any number of
        ranks draws the same nodes. Only the drawn rows travel.

        Parameters
        ----------
        h : (num_inner, dim)      this rank's own rows
        count : int               number of rows to draw

        Returns
        -------
        (count, dim) float32

        Raises
        ------
        KernelError               `h` has other rows
        ConfigError               a step of an epoch of several steps, which has only some of the rows
        """
        if len(h) != self.num_inner:
            raise KernelError(f"draw_rows needs one row per inner node, {self.num_inner}, found {len(h)}")
        return self.rows_of(h, self.node_index, draw_numbers(count, self.num_nodes, self.next_draw()))

    def rows_of(self, h: torch.Tensor, own: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Collective: return rows by number, the same on all ranks, differentiable.

        Parameters
        ----------
        h : (n, dim)                    rows of this rank
        own : (m,) int64                numbers of the first m rows; each number is on one rank only
        wanted : (count,) int64         the same on all ranks; may repeat

        Returns
        -------
        (count, dim) float32            0 for numbers that no rank has
        """
        wanted = wanted.to(h.device)
        ascending, place = torch.sort(own)
        at = torch.searchsorted(ascending, wanted).clamp_(max=max(0, len(own) - 1))
        mine = torch.nonzero(ascending[at] == wanted).flatten() if len(own) else at[:0]
        found = chosen_rows(h, place[at[mine]]).float()
        return self.sum_over_ranks(found.new_zeros((len(wanted), h.shape[1])).index_copy(0, mine, found))

    def aggregate(self, h_all: torch.Tensor, reduction: str) -> torch.Tensor:
        """Reduce the in-neighbors of each inner row; an edge weight multiplies its neighbor.

        Parameters
        ----------
        h_all : (num_inner + num_halo, dim) float32, bfloat16 or float16
        reduction : {"sum", "mean", "gcn", "max"}
            mean divides by the global in-degree; gcn is D^-1/2 (A + I) D^-1/2 with D = in-degree + 1 (Kipf and Welling,
            ICLR 2017, Eq. 2); max is per column, without weights. A row without neighbors gives 0. With weights, the
            sum of weights replaces the in-degree, and self-loops weigh 1.

        Returns
        -------
        (num_inner, dim), as h_all

        Raises
        ------
        KernelError      an unknown reduction, a maximum over weighted edges, or rows that do not fit
        """
        if reduction == "max":
            return maximum(h_all, *self._reductions.matrices("sum"))
        return aggregate(h_all, *self._reductions.matrices(reduction))

    def dropout(self, h: torch.Tensor, probability: float) -> torch.Tensor:
        """Drop elements of rows in training; in evaluation, return the rows.

        The mask of a row depends on seed, epoch and global node id only, so a halo row has its owner's mask.

        Parameters
        ----------
        h : (n, dim) float32, bfloat16 or float16      the first n inner rows, or all inner and halo rows
        probability : float                            of an element to be dropped, in [0, 1)

        Returns
        -------
        (n, dim), type of `h`, differentiable          kept elements divided by 1 - probability
        """
        key = self.next_dropout(probability)
        return h if key is None else dropout(h, probability, self.ids(0, len(h)), key)

    def dropped_to_send(self, h: torch.Tensor, probability: float) -> tuple[torch.Tensor, bool]:
        """Return rows as a layer sends them, and whether dropout was applied here; else receivers mask them."""
        return (self.dropout(h, probability), True) if self.sends_sums else (h, False)

    def activate(self, h: torch.Tensor, norm: torch.nn.LayerNorm | None, probability: float,
                 is_dropped: bool = True) -> torch.Tensor:
        """Compute dropout(relu(norm(h))) in one pass.

        Parameters
        ----------
        h : (n, dim) float32, bfloat16 or float16      the first n inner rows
        norm : LayerNorm or None
        probability : float                            as in `dropout`
        is_dropped : bool                              False: no dropout, and none is counted

        Returns
        -------
        (n, dim), type of `h`, differentiable
        """
        return apply_activation(h.contiguous(), self.stored(self.activation(h, norm, probability, is_dropped), h))

    def activation(self, h: torch.Tensor, norm: torch.nn.LayerNorm | None, probability: float,
                   is_dropped: bool = True) -> Activation:
        """Count the dropout of `activate`; return the activation for a layer that applies it itself."""
        key = self.next_dropout(probability) if is_dropped else None
        weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
        num_back = None if self._pass.hops_left is None else self._back_of.get(len(h))
        return Activation.of(h, 0.0 if key is None else probability, self.ids(0, len(h)), key, weight, bias, eps,
                             num_back)

    def stored(self, activation: Activation, h: torch.Tensor) -> Activating:
        """Return the activation, with codes of `h` for the backward pass if this graph stores codes."""
        store = self.next_store(h)
        return activation if store is None else store.of_activation(activation)

    def next_dropout(self, probability: float) -> CounterKey | None:
        """Count one dropout; return the key of its draws, or None if it changes nothing."""
        current = self._pass
        layer, current.num_dropout_calls = current.num_dropout_calls, current.num_dropout_calls + 1
        if not current.is_training or probability == 0.0:
            return None
        return CounterKey(current.seed, current.epoch, DROPOUT, layer)

    def next_draw(self) -> CounterKey:
        """Count one draw per node other than dropout, also outside training; return its key."""
        current = self._pass
        layer, current.num_dropout_calls = current.num_dropout_calls, current.num_dropout_calls + 1
        return CounterKey(current.seed, current.epoch, DROPOUT, layer)

    def is_there(self, rows: torch.Tensor) -> bool:
        """Whether rows are part of the constant input, so that keeping them costs no memory."""
        return rows.untyped_storage().data_ptr() == self.x.untyped_storage().data_ptr()

    def next_store(self, rows: torch.Tensor) -> RowStore | None:
        """Count rows (n, dim) of the first n inner nodes kept for the backward pass; return their store, or None."""
        current = self._pass
        if self.stored_bits is None or not current.is_training:
            return None
        from hpcgnn.ops.row_codes import RowStore

        layer, current.num_stored = current.num_stored, current.num_stored + 1
        key = CounterKey(current.seed, current.epoch, STORE, layer)
        return RowStore(self.stored_bits, key, self.ids(0, len(rows)), rows.shape[1], rows.dtype)

    def next_site(self, reach: int | None = None, is_scaled: bool = True,
                  reduction: str | None = None) -> ExchangeSite:
        current = self._pass
        layer, current.num_halo_calls = current.num_halo_calls, current.num_halo_calls + 1
        return ExchangeSite(layer, current.seed, current.epoch, current.is_training, reach, is_scaled,
                            reduction, current.loss_scale)

    def hop(self, reduction: str, is_input: bool = False) -> Hop:
        """Count one aggregation (`is_input`: of the input) of a model with `num_hops`; return its rows and matrices."""
        left = self._pass.hops_left
        # Without a known reach all rows are computed; else this hop goes from the prefix `left` hops away to the prefix
        # one hop nearer.
        if left is None:
            num_in = num_out = back_in = back_out = self.num_inner
        else:
            self._pass.hops_left = left - 1
            num_out, num_in = self.prefixes.num_within[left - 1:left + 1]
            back_out, back_in = self.prefixes.backward[left - 1:left + 1]
        is_input = is_input or not self.sends_sums
        made, num_halo = (self._reductions, self.num_halo) if is_input else (self._far_reductions, self._far_halo)
        shape = is_input, reduction, num_in, num_out, back_in, back_out
        if shape not in self._restricted:
            self._restricted[shape] = restrict(*made.matrices(reduction), self.num_inner, num_in, num_out,
                                              self.exchange.num_returning, (back_in, back_out))
        by_peer = None if self.halo_spans is None else self._cut_by_peer(shape)
        if num_out not in self._spans:
            self._spans[num_out] = (spans(self._is_marginal[:num_out], self.x.device.type) if self.exchange.overlaps
                                    else ((), ((0, num_out),)))
        central, marginal = self._spans[num_out]
        return Hop(num_in, num_out, back_in, back_out, left, self._restricted[shape], num_halo, central, marginal,
                   by_peer)

    def _cut_by_peer(self, shape: HopShape) -> PeerMatrices:
        if self._peer_entries is None:
            matrix, _ = self._reductions.matrices(shape[1])
            self._peer_entries = PeerEntries.order(matrix, self.num_inner, self.halo_spans)
        if shape not in self._cut:
            self._cut[shape] = self._peer_entries.cut(self._restricted[shape])
        return self._cut[shape]

    def input_aggregate(self, reduction: str, is_kept: bool = False) -> torch.Tensor:
        """Aggregate of the constant input, (num_inner, num_features); kept by training passes or if `is_kept`."""
        aggregate = self._input_aggregates.get(reduction)
        if aggregate is None:
            aggregate = keep_long(product(self.matrix(reduction), self.x_all))
            if is_kept or self._pass.is_training:
                self._input_aggregates[reduction] = aggregate
        return aggregate

    def forget_input_sums(self) -> None:
        """Discard the aggregates of the input, because its values have changed."""
        self._input_aggregates.clear()

    def matrix(self, reduction: str) -> SparseRows:
        return self._reductions.matrices(reduction)[0]

    def masked_input_aggregate(self, hop: Hop, reduction: str, probability: float,
                               key: CounterKey) -> torch.Tensor | None:
        """Return the aggregate of the masked input, (hop.num_out, num_features), if the epoch keeps it; else None."""

    def halo_squares(self, reduction: str) -> np.ndarray:
        return self._far_reductions.halo_squares(reduction)

    def _reductions_over(self, arcs: FarArcs) -> Reductions:
        degree = arcs.degree_of_rows(self.degree)
        weight = None if arcs.edge_weight is None else resident(arcs.edge_weight)
        return Reductions(resident(arcs.indptr), resident(arcs.indices), len(degree), degree, self.has_half_sums,
                          weight)


def draw_numbers(count: int, size: int | np.ndarray, key: CounterKey) -> torch.Tensor:
    """Numbers below `size`, one for all or of each, drawn with replacement, (count,) int64."""
    words = words_of(np.arange(count), 1, key)[:, 0]
    return torch.from_numpy((words * np.uint64(size) >> np.uint64(32)).astype(np.int64))


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
        ctx.graph = graph
        return _summed(values, graph)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradient, ctx.graph), None


def _summed(values: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
    total = values.detach().clone(memory_format=torch.contiguous_format)
    graph.exchange.sum_over_ranks(total)
    return total


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h: torch.Tensor, graph: LocalGraph, site: ExchangeSite) -> torch.Tensor:
        ctx.graph, ctx.site = graph, site
        # A copy for any number of ranks: a model may change what it gets in place.
        rows = empty((graph.num_rows, h.shape[1]), h.dtype, h.device)
        rows[:graph.num_inner] = h
        graph.exchange.start_fetch(rows[:graph.num_inner], site).finish(rows[graph.num_inner:])
        return rows

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        gradient, num_inner = gradient.contiguous(), ctx.graph.num_inner
        total = gradient[:num_inner].clone() if len(gradient) > num_inner else gradient
        ctx.graph.exchange.start_take_home(gradient[num_inner:], ctx.site).finish(total)
        return total, None, None


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _has_entry_from(indptr: np.ndarray, indices: np.ndarray, column: int) -> np.ndarray:
    has_entry, has_any = np.zeros(len(indptr) - 1, bool), indptr[1:] > indptr[:-1]
    has_entry[has_any] = np.maximum.reduceat(indices, indptr[:-1][has_any]) >= column
    return has_entry
