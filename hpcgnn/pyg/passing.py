"""ForwardPassing: one forward of a PyTorch Geometric model, with hooks that give its convolutions halo rows.

Example: before SAGEConv runs, a hook replaces its x by (inner and halo rows, inner rows); the halo rows come by an
exchange. Rows that two convolutions read are exchanged once. The hooks exist during the forward only.

PyTorch Geometric keeps a row for each edge and then sums them. Where a convolution only sums its neighbors' rows, a
sparse product takes the place of both.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.node_embedding import NodeEmbedding
from hpcgnn.nn.propagation import neighbor_sums
from hpcgnn.ops.aggregation import aggregate
from hpcgnn.ops.dispatch import STORAGE_NUMBER
from hpcgnn.pyg.convolutions import (
    READS_SUMS_ONCE,
    Way,
    is_normalizing,
    loop_weight,
    names_taken,
    needs_attributes,
    needs_relations,
    num_edge_columns,
    only_sums,
)
from hpcgnn.pyg.edges import GraphEdges, SealedEdges, plain_edges
from hpcgnn.pyg.recomputation import HaloAgain, Region, replaced


class UnfitEdges(ConfigError):
    """A convolution lacks relations or attributes of edges, or is made for others."""


class ForwardPassing:
    """What the convolutions of one forward share.

    Parameters
    ----------
    x : (num_inner, num_features)          input rows in the model's type; their halo rows are known
    edges : GraphEdges                     already normalized if a convolution needs it
    ways : dict                            convolution -> Way
    tables : dict                          id of a tensor with one row per node of the whole graph -> its name
    embeddings : dict                      id of the weight of a NodeEmbedding -> NodeEmbedding
    shared : set                           which exchanges, counted from 0, bring rows that several convolutions read; a
                                           pass adds to it, and the next one sends these rows once
    over_all : list of modules             GPSConv, and PerformerProjection, whose attention is over all nodes

    Attributes
    ----------
    at : GraphEdges                        edges that the convolution of now was given, or a selection of them
    passed : (2, n) int64 or None          edges that messages pass along now
    own : dict                             id of a table -> its rows for this rank's nodes
    region : Region or None                checkpointed function that runs for the first time now
    replay : iterator or None              while it runs again, the rows that its convolutions got in the first run
    """

    def __init__(self, graph: LocalGraph, x: torch.Tensor, edges: Any, ways: dict[nn.Module, Way],
                 tables: dict[int, str], embeddings: dict[int, NodeEmbedding], shared: set[int],
                 over_all: list[nn.Module]):
        self.over_all = over_all
        self.graph, self.ways, self.passed = graph, ways, None
        self.edges, self.at = edges, edges
        self.tables, self.embeddings = tables, embeddings
        self.region: Region | None = None
        self.replay: Iterator[tuple[torch.Tensor, ExchangeSite | None]] | None = None
        self.own: dict[int, torch.Tensor] = {}
        # By identity: completed rows are not sent again. The tensors are held, so that no id is reused.
        self._completed: dict[tuple[int, int, bool], tuple[torch.Tensor, torch.Tensor]] = {}
        self._constant: dict[int, torch.Tensor] = {}
        self._wide: dict[nn.Module, torch.Tensor] = {}
        self._mapped_here: set[nn.Module] = set()
        self._gets_inner: set[nn.Module] = set()
        self._lifted_names: dict[nn.Module, list[str]] = {}      # of `message`, given as one table of rows
        self._shared = shared
        self._read: dict[tuple[int, int, bool], tuple[int, torch.Tensor]] = {}     # which exchange, and the rows
        self._normalized: dict[nn.Module, tuple[float | None, bool]] = {}
        self._input, self._summing = x, {conv for conv, way in ways.items() if only_sums(conv, way)}
        # They learn the weights of edges, so they are normalized anew in each pass.
        self._learning = {conv for conv, way in ways.items()
                          if (way.kind, way.name) == ("plain", "PDNConv") and conv.normalize}

    def keep_constant(self, rows: torch.Tensor, all_rows: torch.Tensor) -> None:
        """Note inner rows with known halo rows, which need no message."""
        self._constant[id(rows)] = rows
        for is_scaled in (False, True):
            self._completed[id(rows), rows._version, is_scaled] = rows, all_rows

    def _know_input(self, rows: torch.Tensor) -> None:
        # Only if they are read: a step gathers them.
        if rows is self._input and id(rows) not in self._constant:
            x_all = self.graph.x_all
            self.keep_constant(rows, x_all if rows is self.graph.x else x_all.to(rows.dtype))

    def own_rows(self, value: Any) -> Any:
        """Return this rank's rows of a table of all nodes, also inside tuples and lists; other values unchanged."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.own_rows, value)) if type(value) in (tuple, list) else value
        if id(value) not in self.tables:
            return value
        if id(value) not in self.own:      # the same tensor each time, so that its halo rows come once
            embedding, number = self.embeddings.get(id(value)), self.number_of(value)
            self.own[id(value)] = value.index_select(0, number if embedding is None else embedding.row_of(number))
        return self.own[id(value)]

    def number_of(self, table: Any) -> torch.Tensor:
        """(num_inner,) int64, the row of each own node in a table."""
        return self.graph.node_index

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """Numbers of own rows, and of all nodes."""
        return self.graph.num_inner, self.graph.num_nodes

    def ids_of(self, rows: torch.Tensor) -> np.ndarray | None:
        """Ids by which the draws for some rows are keyed, (len(rows),) int64; None if these belong to no node or edge.

        Rows belong to edges while messages pass, otherwise to nodes, or else to all edges.
        """
        if self.passed is not None and len(rows) == self.passed.shape[1]:
            return self.at.draw_ids(self.passed).cpu().numpy()
        return self._ids_of_nodes(rows)

    def _ids_of_nodes(self, rows: torch.Tensor) -> np.ndarray | None:
        if len(rows) in (self.graph.num_inner, self.graph.num_rows):
            return self.graph.ids(0, len(rows))
        if len(rows) == self.edges.edge_index.shape[1]:
            return self.edges.draw_ids(self.edges.edge_index).cpu().numpy()
        return None

    def is_of_nodes(self, rows: torch.Tensor) -> bool:
        """Whether there is one row for each own node."""
        return len(rows) == self.graph.num_inner

    def is_of_edges(self, rows: torch.Tensor) -> bool:
        """Whether there is one row for each edge that messages pass along, or for each edge."""
        return len(rows) == (self.edges.edge_index if self.passed is None else self.passed).shape[1]

    def note(self, args: Any, out: Any) -> None:
        """Note what a function on rows returns."""

    def all_rows_of(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Return inner and halo rows if they are known without a message, else None."""
        return self._completed[id(rows), rows._version, True][1] if self._is_constant(rows) else None

    def _is_constant(self, rows: torch.Tensor) -> bool:
        self._know_input(rows)
        return id(rows) in self._constant and (id(rows), rows._version, True) in self._completed

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Within the block, the model's convolutions get halo rows."""
        with contextlib.ExitStack() as ended:
            for conv in self._summing:
                ended.enter_context(replaced(conv, propagate=partial(self._summed, conv)))
            for conv in self._learning:
                ended.enter_context(replaced(conv, normalize=False))
            for conv in self.ways:
                # With cached=True it keeps what belongs to one part, or kept what belongs to the whole graph.
                if getattr(conv, "cached", False):
                    kept = dict.fromkeys(name for name in vars(conv) if name.startswith("_cached_"))
                    ended.enter_context(replaced(conv, cached=False, **kept))
            for module in self.over_all:
                if type(module).__name__ == "GPSConv":
                    ended.callback(module.register_forward_pre_hook(_without_batch, with_kwargs=True).remove)
                else:
                    ended.enter_context(replaced(module, forward=partial(self._attended, module)))
            for conv, way in self.ways.items():
                if way.kind == "own":
                    ended.enter_context(replaced(conv, update=partial(self._updated, conv)))
                for handle in (conv.register_forward_pre_hook(self._before_call, with_kwargs=True),
                               conv.register_propagate_forward_pre_hook(self._before_propagate),
                               conv.register_propagate_forward_hook(self._after),
                               conv.register_edge_update_forward_pre_hook(self._before_edges),
                               conv.register_edge_update_forward_hook(self._after)):
                    ended.callback(handle.remove)
            yield

    def complete(self, rows: torch.Tensor, way: Way) -> torch.Tensor:
        """Collective: return inner rows (num_inner, ...) followed by halo rows, differentiable."""
        self._know_input(rows)
        key, site = self._key(rows, way), None
        came, first_site = (None, None) if self.replay is None else next(self.replay)
        self._note_read(rows, way)
        if key not in self._completed:
            flat = flat_rows(rows).to(self.graph.x.dtype)
            if self.replay is None:
                h_all, site = self._fetched(flat, way)
            elif first_site is None:
                raise ConfigError("torch.utils.checkpoint with use_reentrant=True can't run a convolution again on "
                                  "rows that one outside has also read; use use_reentrant=False")
            else:
                h_all = self._fetched_before(flat, flat_rows(came)[len(flat):].to(flat.dtype), first_site)
            self._completed[key] = rows, h_all.to(rows.dtype).view(-1, *rows.shape[1:])
        h_all = self._completed[key][1]
        if self.region is not None:
            self.region.entries.append((h_all.detach(), site))
        return h_all

    def _key(self, rows: torch.Tensor, way: Way) -> tuple[int, int, bool]:
        return id(rows), rows._version, way.is_linear

    def _fetched(self, flat: torch.Tensor, way: Way) -> tuple[torch.Tensor, ExchangeSite]:
        stood = self.graph.current_pass
        site = ExchangeSite(stood.num_halo_calls, stood.seed, stood.epoch, stood.is_training, None, way.is_linear, None,
                            stood.loss_scale)
        return self.graph.halo(flat, is_scaled=way.is_linear), site

    def _fetched_before(self, flat: torch.Tensor, halo: torch.Tensor, site: ExchangeSite) -> torch.Tensor:
        return HaloAgain.apply(flat, halo, self.graph, site)

    def _before_call(self, conv: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        way = self.ways[conv]
        if way.kind == "own":
            return None
        call = inspect.signature(conv.forward).bind(*args, **kwargs)
        values = call.arguments
        if self.tables:
            values |= {name: self.own_rows(value) for name, value in values.items()}
        edges = values["edge_index"]
        self._enter(edges, way)
        is_whole = edges is self.at.sealed
        self._check_edges(conv, way, values)
        if way.kind == "normalized" and is_normalizing(conv):
            if not is_whole:
                raise ConfigError(f"{way.place} can't be distributed on a selection of edges, which it would normalize "
                                  "by degrees that one rank does not know; use normalize=False, or SAGEConv")
            self._begin_normalized(conv, way, values)
        else:
            values["edge_index"] = self.at.edge_index if is_whole else plain_edges(edges)
            if is_whole and self._takes_sums(conv, values["x"], values):
                self._gets_inner.add(conv)
                return call.args, call.kwargs
            self._gets_inner.discard(conv)
            if way.kind == "pair":
                self._begin_pair(values, way)
            elif way.name == "PNAConv":
                self._wide[conv] = values["x"]
        return call.args, call.kwargs

    def _enter(self, edges: Any, way: Way) -> None:
        """Take the edges that a convolution is given; ConfigError unless they are the graph's, or a selection."""
        if not isinstance(edges, SealedEdges) or not self._has(edges.owner):
            raise ConfigError(f"{way.name} was given edges that are not the graph's, so they can't be "
                              "distributed; pass it edge_index as the model's forward gets it, or a selection of it")
        self.at = edges.owner

    def _has(self, edges: GraphEdges) -> bool:
        return edges is self.edges

    def _begin_normalized(self, conv: nn.Module, way: Way, values: dict) -> None:
        weight = values.pop("edge_weight", None)
        if weight is not None and weight is not self.at.edge_weight:
            raise ConfigError(f"{way.name} was given edge weights that are not the graph's, and would normalize these "
                              "weights by degrees that one rank does not know; pass them as they come, or none, or use "
                              "normalize=False")
        # The convolution gets no edges to normalize; `propagate` gets normalized ones.
        self._normalized[conv] = loop_weight(conv), weight is not None
        values["edge_index"] = self.at.edge_index[:, :0]
        x = values["x"]
        # GCNConv maps rows before it sums. Halo rows are mapped here if they are known, if they are narrower before the
        # map, or if they come from an earlier step: rows mapped in an earlier step would have old weights and give this
        # step's weights no gradient.
        if way.name == "GCNConv" and (self._is_constant(x) or conv.in_channels < conv.out_channels
                                      or self.graph.reads_history):
            values["x"] = self.complete(x, way)
            self._mapped_here.add(conv)
        else:
            self._mapped_here.discard(conv)

    def _begin_pair(self, values: dict, way: Way) -> None:
        x = values["x"]
        if x is None or (way.name in ("RGCNConv", "FastRGCNConv") and isinstance(x, torch.Tensor)
                         and not x.is_floating_point()):
            values["x"] = self._all_numbers(x, way)
            return
        source, target = x if isinstance(x, (tuple, list)) else (x, None)
        h_all = self.complete(source, way)
        values["x"] = h_all, target if isinstance(x, (tuple, list)) else h_all[:self.at.graph.num_inner]
        keep = self._present_edges(source, way, values["edge_index"])
        if keep is None:
            return
        values["edge_index"] = values["edge_index"][:, keep]
        for name, value in values.items():
            if name.startswith("edge_") and name != "edge_index" and isinstance(value, torch.Tensor):
                values[name] = value[keep]

    def _all_numbers(self, numbers: torch.Tensor | None, way: Way) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of all nodes here, and of this rank's own, for a convolution with a row of weights for each node."""
        if way.name != "RGCNConv":
            raise ConfigError(f"{way.place} was given {'no rows' if numbers is None else 'whole numbers'}, and would "
                              "count nodes on one rank; give it rows, such as nn.Embedding(num_nodes, dim).weight" + (
                                  ", or use RGCNConv" if way.name == "FastRGCNConv" else ""))
        if numbers is not None and numbers is not self.graph.node_index:
            raise ConfigError(f"{way.place} was given whole numbers that are not the nodes'; pass None or n_id")
        known = torch.from_numpy(self.graph.node_id.astype(np.int64)).to(self.graph.x.device)
        return known, known[:self.graph.num_inner]

    def _check_edges(self, conv: nn.Module, way: Way, values: dict) -> None:
        """Raise UnfitEdges if a convolution lacks relations or attributes of edges, or is made for others."""
        edges, attributes, relations = self.at, values.get("edge_attr"), values.get("edge_type")
        if relations is None and needs_relations(conv, way.name):
            raise UnfitEdges(_lacks(way, "edge_type", "relations of edges", edges.edge_type is not None))
        if attributes is None and needs_attributes(conv, way.name):
            raise UnfitEdges(_lacks(way, "edge_attr", "attributes of edges", edges.edge_attr is not None))
        made_for = getattr(conv, "num_relations", None)
        if relations is edges.edge_type is not None and made_for is not None and made_for <= edges.largest_relation:
            raise UnfitEdges(f"{way.place} is made for {made_for} relations, and the graph has more; make it for the "
                             "graph's, len(graph.info.relation_names)")
        columns = num_edge_columns(conv)
        if way.name == "GINEConv" and not columns and isinstance(values["x"], torch.Tensor):
            columns = values["x"].shape[-1]
        found = None if attributes is None else attributes.shape[1] if attributes.dim() == 2 else 1
        if columns and found is not None and found != columns:
            is_weight = found == 1 and edges.edge_attr is None and edges.edge_weight is not None
            what = "the graph has one weight per edge" if is_weight else f"is given {found}"
            raise UnfitEdges(f"{way.place} is made for {columns} columns of edge_attr, and {what}; make it for {found} "
                             f"column{'s' * (found > 1)}")

    def _present_edges(self, rows: torch.Tensor, way: Way, edge_index: torch.Tensor) -> torch.Tensor | None:
        # None keeps all edges: sums that are linear take absent rows as zeros.
        if way.is_linear or self._is_constant(rows):
            return None
        present = self._present(rows)
        if present is None:
            return None
        return torch.from_numpy(present).to(rows.device)[edge_index[0]]

    def _present(self, rows: torch.Tensor) -> np.ndarray | None:
        return self.graph.halo_present(rows)

    def _before_propagate(self, conv: nn.Module, inputs: tuple) -> tuple | None:
        edge_index, _, given = inputs
        way, values = self.ways[conv], {name: self.own_rows(value) for name, value in given.items()}
        if conv in self._normalized:
            edge_index, values["edge_weight"] = self.at.normalized(*self._normalized[conv])
        elif isinstance(edge_index, SealedEdges):
            self._enter(edge_index, way)
            edge_index = plain_edges(edge_index)
        if conv in self._learning:
            edge_index = self._normalize(conv, way, edge_index, values)
        keep = None
        self._lifted_names[conv] = [name for name in _source_names(conv) if isinstance(values.get(name), torch.Tensor)]
        for name in _source_names(conv):
            if values.get(name) is not None:
                values[name], present = self._lifted(conv, way, values[name], edge_index)
                keep = present if keep is None else keep
        if keep is not None:
            edge_index = edge_index[:, keep]
            values = {name: value[keep] if _is_of_edges(conv, name, value, len(keep)) else value
                      for name, value in values.items()}
        self.passed = edge_index
        return edge_index, (self.at.graph.num_rows, self.at.graph.num_inner), values

    def _updated(self, conv: nn.Module, out: torch.Tensor, **given: Any) -> torch.Tensor:
        """`update` of a user's convolution, which gets its own rows of what `message` takes as NAME_j."""
        for name in self._lifted_names.get(conv, ()):
            if name in given:
                given[name] = given[name][1]
        return type(conv).update(conv, out, **given)

    def _normalize(self, conv: nn.Module, way: Way, edge_index: torch.Tensor, values: dict) -> torch.Tensor:
        """Collective: weigh edges by D^-1/2 (A + I) D^-1/2, where the weights in A are learned.

        Owners scale rows by D^-1/2 before these are sent, so no degrees are sent. Returns edges with self-loops.
        """
        x, weight, (source, target) = values["x"], values["edge_weight"], edge_index
        own = torch.arange(len(x), device=x.device)
        if conv.add_self_loops:
            weight = torch.cat([weight, weight.new_ones(len(x))])
            source, target = torch.cat([source, own]), torch.cat([target, own])
        degree = weight.new_zeros(len(x)).index_add(0, target, weight)
        factor = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
        values["x"] = self.complete(factor[:, None] * x, way), x
        values["edge_weight"] = factor[target] * weight
        return torch.stack([source, target])

    def _takes_sums(self, conv: nn.Module, rows: Any, given: dict) -> bool:
        """Whether a convolution reads nothing of its neighbors' rows but their sum or mean."""
        return (conv in self._summing and isinstance(rows, torch.Tensor) and rows.dim() == 2
                and rows.dtype in STORAGE_NUMBER and len(rows) == self.graph.num_inner
                and given.get("edge_weight") is None and self.graph.edge_weight is None)

    def _summed(self, conv: nn.Module, edge_index: torch.Tensor, size: Any = None, **given: Any) -> torch.Tensor:
        """Collective: `propagate` of a convolution that only sums, without a row for each edge."""
        kind, way, x = self._normalized.get(conv), self.ways[conv], self.own_rows(given["x"])
        source = x[0] if isinstance(x, (tuple, list)) else x
        is_whole = edge_index is self.at.edge_index or edge_index is self.at.sealed
        if kind is not None and source.dim() == 2 and source.dtype in STORAGE_NUMBER:
            _, _, values = self._before_propagate(conv, (edge_index, size, given))
            self.passed = None
            return aggregate(values["x"][0], *self.at.matrices(*kind))
        if kind is None and is_whole and (way.kind != "pair" or conv in self._gets_inner) and self._takes_sums(
                conv, source, given):
            return self._sums_of(source, way, "mean" if conv.aggr == "mean" else "sum")
        if conv in self._gets_inner and way.kind == "pair":
            given["x"] = self.complete(source, way), x[1] if isinstance(x, (tuple, list)) else source
        return type(conv).propagate(conv, edge_index, size=size, **given)

    def _sums_of(self, rows: torch.Tensor, way: Way, reduction: str) -> torch.Tensor:
        if rows is self.graph.x and way.name in READS_SUMS_ONCE:
            return self.graph.input_aggregate(reduction)
        key = self._key(rows, way)
        is_free = self.region is None and self.replay is None and not self._is_constant(rows)
        if is_free and key not in self._completed and self._note_read(rows, way) not in self._shared:
            return neighbor_sums(self.graph, rows, reduction)
        return self.graph.aggregate(self.complete(rows, way), reduction)

    def _note_read(self, rows: torch.Tensor, way: Way) -> int:
        """Return which exchange brings the halo rows; note if rows that were summed, and not kept, are read again."""
        key = self._key(rows, way)
        if key in self._read and key not in self._completed:
            self._shared.add(self._read[key][0])
        return self._read.setdefault(key, (len(self._read), rows))[0]

    def _lifted(self, conv: nn.Module, way: Way, rows: torch.Tensor | tuple,
                edge_index: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor | None]:
        source, target = rows if isinstance(rows, (tuple, list)) else (rows, rows if self._is_within_type else None)
        num_inner = self.at.graph.num_inner
        if way.kind in ("pair", "tables") or conv in self._mapped_here or conv in self._learning:
            target = target if target is None or len(target) == num_inner else target[:num_inner]
            return (source, target), None
        self._check_sources(source, way)
        if conv in self._wide:
            h = self._wide[conv]
            return (_in_towers(conv, self.complete(h, way)), target), self._present_edges(h, way, edge_index)
        return (self.complete(source, way), target), self._present_edges(source, way, edge_index)

    @property
    def _is_within_type(self) -> bool:
        return True

    def _check_sources(self, source: torch.Tensor, way: Way) -> None:
        if len(source) != self.graph.num_inner:
            raise ConfigError(f"{way.name} passes on {len(source)} rows, which can't be distributed: this rank has "
                              f"{self.graph.num_inner} nodes of its own; pass one row per node")

    def _before_edges(self, conv: nn.Module, inputs: tuple) -> None:
        self.passed = inputs[0]

    def _after(self, conv: nn.Module, inputs: tuple, out: torch.Tensor) -> None:
        self.passed = None

    def _attended(self, projection: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Collective: attention of a PerformerProjection to the nodes of all ranks; all are (1, heads, num_inner, dim).

        With the rows q and k after their kernel, a row of the result is q (k^T v) / (q (k^T 1)). Both products with k^T
        are sums over nodes, which travel in one sum over ranks.
        """
        kernel_of = sys.modules[type(projection).__module__].generalized_kernel
        q, k = (kernel_of(rows, projection.projection_matrix, projection.kernel) for rows in (q, k))
        own = k.transpose(-2, -1) @ torch.cat([v, v.new_ones((*v.shape[:-1], 1))], dim=-1)
        sums = self.graph.sum_over_ranks(own.float()).to(v.dtype)
        return (q @ sums[..., :-1]) / (q @ sums[..., -1:])


def _without_batch(conv: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of a GPSConv without `batch`, since shards hold one graph."""
    call = inspect.signature(conv.forward).bind(*args, **kwargs)
    batch = call.arguments.get("batch")
    if batch is not None and bool((batch != 0).any()):
        raise ConfigError("GPSConv was given a batch of several graphs, and shards hold one, in which each node "
                          "attends to all others; leave batch out")
    call.arguments["batch"] = None
    return call.args, call.kwargs


def _lacks(way: Way, name: str, what: str, has_graph: bool) -> str:
    return f"{way.place} needs {name}, and " + (
        f"was given none; let the model's forward take {name} and pass it on" if has_graph else
        f"the graph has no {what}; preprocess it with them")


def _source_names(conv: nn.Module) -> list[str]:
    return sorted({name[:-2] for name in names_taken(conv) if name.endswith("_j")})


def _is_of_edges(conv: nn.Module, name: str, value: object, num_edges: int) -> bool:
    is_of_nodes = {name + "_i", name + "_j"} & set(names_taken(conv))
    return isinstance(value, torch.Tensor) and not is_of_nodes and len(value) == num_edges


def _in_towers(conv: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    if conv.divide_input:
        return rows.view(-1, conv.towers, conv.F_in)
    return rows.view(-1, 1, conv.F_in).repeat(1, conv.towers, 1)


def flat_rows(rows: torch.Tensor) -> torch.Tensor:
    """(n, ...) as (n, values); n may be 0, where a step has no row of a rank."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))
