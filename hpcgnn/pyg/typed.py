"""Models with a table of rows for each type of nodes, as those of PyTorch Geometric for its HeteroData.

Such a model's forward takes `x_dict` and `edge_index_dict`. A rank numbers the rows of each type on their own: first
the rows of its own nodes, then the halo rows. Take papers 0 to 2 and authors 3 and 4, where this rank owns nodes 0, 2
and 4 and reads node 3. Its table of papers has the rows (0, 2), its table of authors (4 | 3); an edge 3 -> 2 of the
kind (author, writes, paper) is 1 -> 1. A convolution of this kind gets the authors' table with halo rows, and the own
papers. Only rows of the one type travel, once for all kinds of edges that leave from it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.hop import ExchangeSite
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.ops.aggregation import aggregate
from hpcgnn.ops.dispatch import STORAGE_NUMBER
from hpcgnn.ops.resident import resident
from hpcgnn.pyg.convolutions import Way
from hpcgnn.pyg.edges import GraphEdges, plain_edges
from hpcgnn.pyg.fitting import INDEX_NAMES, Signature
from hpcgnn.pyg.passing import ForwardPassing
from hpcgnn.pyg.recomputation import replaced

Kind = tuple[str, str, str]      # type of the sources, name, type of the targets
# Attributes of a tensor: the Table or the edges that its rows are of, or the second dimension of stacked tables.
OWNER, STACKED = "hpcgnn_rows", "hpcgnn_stacked"
HAN = "torch_geometric.nn.conv.han_conv"


@dataclass(frozen=True)
class NodeTypes:
    """The types of nodes of a graph, and its kinds of edges.

    nodes : dict of range by type       global ids
    columns : dict of slice by type     of the features
    kinds : tuple of Kind               by relation
    kind_columns : tuple of slice       of the attributes of edges, by relation
    """

    nodes: dict[str, range]
    columns: dict[str, slice]
    kinds: tuple[Kind, ...]
    kind_columns: tuple[slice, ...]

    @classmethod
    def of(cls, info: Any, model: str) -> NodeTypes:
        """The types in a GraphInfo. Raises ConfigError for a graph without types, or with one kind of edges."""
        if not info.node_types or not info.relation_names:
            what = "types of nodes" if not info.node_types else "relations, as edges of one kind have none"
            raise ConfigError(f"{model} takes a table for each type of nodes, and the graph has no {what}; preprocess "
                              "a graph with types, or let its forward take (x, edge_index)")
        nodes, columns, first, column = {}, {}, 0, 0
        for (name, count), width in zip(info.node_types, info.type_columns or [None] * len(info.node_types),
                                        strict=True):
            nodes[name] = range(first, first + count)
            columns[name] = slice(None) if width is None else slice(column, column + width)
            first, column = first + count, column + (width or 0)
        is_shared = max(info.relation_columns, default=0) == info.num_edge_features      # by relations that have any
        ends = info.relation_columns if is_shared else np.cumsum(info.relation_columns).tolist()
        own = [slice(end - width, end) for end, width in zip(ends, info.relation_columns, strict=True)] or [slice(None)]
        return cls(nodes, columns, info.edge_kinds,
                   tuple(own[number % len(own)] for number in range(len(info.edge_kinds))))


def check_kinds(model: nn.Module, types: NodeTypes) -> None:
    """Raise ConfigError for a HeteroConv of edges that the graph does not have, or another layer without its kinds."""
    for place, part in model.named_modules():
        name, known = type(part).__name__, set(types.kinds)
        made_for = set(part.convs.keys() if name == "HeteroConv" else part.edge_types if name == "HGTConv" else
                       map(tuple, part.metadata[1]) if name == "HANConv" else known)
        wrong = made_for - known if name == "HeteroConv" else known - made_for
        if wrong:
            what = "has a convolution for" if name == "HeteroConv" else "is made without"
            raise ConfigError(f"{name} at model.{place} {what} the edges {min(wrong)}, and the graph's are "
                              f"{', '.join(map(str, types.kinds))}; make it with graph.metadata()")


class Table:
    """The rows of one type on a rank: of its own nodes, then halo rows.

    Attributes
    ----------
    name : str, nodes : range       the type, and its global ids
    rows : (num_rows,) int64        rows in the graph
    halo : (num_halo,) int64        places of the halo rows among the graph's
    number : (num_inner,) int64     of the own nodes, within the type
    """

    def __init__(self, graph: LocalGraph, name: str, nodes: range):
        self.name, self.nodes, device = name, nodes, graph.x.device
        rows = np.flatnonzero((graph.node_id >= nodes.start) & (graph.node_id < nodes.stop))
        self.num_rows, self.num_inner = len(rows), int(np.searchsorted(rows, graph.num_inner))
        self.ids, self._inner_ids = resident(graph.node_id[rows]), resident(graph.node_id[rows[:self.num_inner]])
        self.rows = torch.from_numpy(rows).to(device)
        self.inner, self.halo = self.rows[:self.num_inner], self.rows[self.num_inner:] - graph.num_inner
        self.node_index = graph.node_index[self.inner]
        self.number = self.node_index - nodes.start

    def draw_ids(self, num_rows: int) -> np.ndarray | None:
        """Ids of the own rows, or of all, for draws; None for another number."""
        return {self.num_rows: self.ids, self.num_inner: self._inner_ids}.get(num_rows)


class KindGraph:
    """The edges of one kind as a graph of its own, whose inner rows are the targets' and whose rows are the sources'.

    edges : (num_edges,) int64      which of the graph's edges are of this kind
    """

    edge_type = None

    def __init__(self, graph: Any, source: Table, target: Table, edges: torch.Tensor, ends: torch.Tensor,
                 columns: slice):
        self.source, self.target, self._graph, self.has_half_sums = source, target, graph, graph.has_half_sums
        self.num_rows, self.num_inner, self.num_sources = source.num_rows, target.num_inner, source.num_inner
        self.node_id, self.target_id, self.edges, self.edge_index = source.ids, target.ids, edges, ends
        self.edge_attr = None if graph.edge_attr is None else graph.edge_attr[edges][:, columns]
        if self.edge_attr is not None and not self.edge_attr.shape[1]:
            self.edge_attr = None

    def share(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective: constant rows of the own sources, (num_sources, dim), then halo rows."""
        own = rows.new_zeros((self._graph.num_inner, rows.shape[1]))
        own[self.source.inner] = rows
        return self._graph.share(own)[self.source.rows]

    @cached_property
    def whole_rows(self) -> torch.Tensor:
        """(num_rows,) int64, numbers of a step's sources in the whole graph's table."""
        nodes = self._graph.whole_rows[self.source.rows]
        whole = self._graph.whole[0].node_id
        return torch.from_numpy(np.searchsorted(
            np.flatnonzero((whole >= self.source.nodes.start) & (whole < self.source.nodes.stop)),
            nodes.cpu().numpy())).to(nodes.device)


class TypedEdges:
    """The tables of a graph with types on one rank, and its edges by kind.

    Parameters
    ----------
    edge_weight : (num_edges,) float32 or None
    whole : TypedEdges or None                  of the whole graph, where `graph` is of one step
    """

    def __init__(self, graph: LocalGraph, types: NodeTypes, edge_weight: torch.Tensor | None,
                 whole: TypedEdges | None = None):
        self.graph, self.types, self.edge_weight = graph, types, edge_weight
        self.edge_type, self.edge_attr, self.edge_index, self.sealed = None, graph.edge_attr, None, None
        self.tables = {name: Table(graph, name, nodes) for name, nodes in types.nodes.items()}
        place = torch.empty(graph.num_rows, dtype=torch.int64, device=graph.x.device)
        for table in self.tables.values():
            place[table.rows] = torch.arange(table.num_rows, device=place.device)
        ends, relation = graph.edge_index, graph.edge_type
        if graph.is_trial:      # its edges join any nodes, so that each takes a kind that fits
            relation = self._fitting(ends)
        self.kinds: dict[Kind, GraphEdges] = {}
        for number, kind in enumerate(types.kinds):
            own = (relation == number).nonzero().view(-1)
            view = KindGraph(graph, self.tables[kind[0]], self.tables[kind[2]], own, place[ends[:, own]],
                             types.kind_columns[number])
            self.kinds[kind] = GraphEdges(view, None if edge_weight is None else edge_weight[own],
                                          None if whole is None else whole.kinds[kind])

    @property
    def within_types(self) -> list[GraphEdges]:
        """The kinds whose sources and targets are of one type."""
        return [edges for (source, _, target), edges in self.kinds.items() if source == target]

    def __deepcopy__(self, memo: dict) -> TypedEdges:
        return self

    def __reduce__(self):
        return type(None), ()      # a file holds no graph

    def _fitting(self, ends: torch.Tensor) -> torch.Tensor:
        # A kind between the types of an edge's ends, one after another; -1 if there is none.
        names, count = list(self.types.nodes), len(self.types.nodes)
        last = np.array([nodes.stop for nodes in self.types.nodes.values()])
        types = torch.from_numpy(np.searchsorted(last, self.graph.node_id, side="right")).to(ends.device)
        pair, found = types[ends[0]] * count + types[ends[1]], torch.full_like(ends[0], -1)
        for source in range(count):
            for target in range(count):
                fit = [number for number, (first, _, second) in enumerate(self.types.kinds)
                       if (first, second) == (names[source], names[target])]
                here = (pair == source * count + target).nonzero().view(-1)
                if fit:
                    found[here] = torch.tensor(fit, device=ends.device)[ends[:, here].sum(0) % len(fit)]
        return found


class TypedPassing(ForwardPassing):
    """`ForwardPassing` of a model with a table for each type."""

    edges: TypedEdges

    def __init__(self, graph: LocalGraph, x: torch.Tensor, edges: TypedEdges, *more: Any):
        super().__init__(graph, x, edges, *more)
        self._may_miss = graph.halo_present(None) is not None
        self._inputs: dict[int, tuple[torch.Tensor, int, Table]] = {}
        self.answered: list[str] = []

    # The tables of the forward

    def inputs(self) -> dict[str, torch.Tensor]:
        """Own input rows of each type, in its columns; their halo rows are known."""
        found = {}
        for name, table in self.edges.tables.items():
            rows = found[name] = owned(self._input[table.inner][:, self.edges.types.columns[name]], table)
            self._inputs[id(rows)] = rows, rows._version, table
        return found

    def _know_input(self, rows: torch.Tensor) -> None:
        found = self._inputs.get(id(rows))
        if found is None or id(rows) in self._constant or rows._version != found[1]:
            return
        table = found[2]
        all_rows = self.graph.x_all[table.rows][:, self.edges.types.columns[table.name]].to(rows.dtype)
        self.keep_constant(rows, owned(all_rows, table))

    def answers(self, out: Any, model: str) -> torch.Tensor:
        """(num_inner, num_outputs): the rows of a type, or a dict of rows by type, at their nodes; other rows are zero.

        Raises ConfigError for anything else.
        """
        if isinstance(out, torch.Tensor) and out.dim() == 2:
            table = getattr(out, OWNER, None) or self._table_of_length(len(out), "its answers", model)
            out = {} if table is None or table.num_inner != len(out) else {table.name: out}
        rows = {name: values for name, values in out.items() if values is not None} if isinstance(out, dict) else {}
        if not rows or not rows.keys() <= self.edges.tables.keys() or any(
                not isinstance(values, torch.Tensor) or values.dim() != 2
                or len(values) != self.edges.tables[name].num_inner for name, values in rows.items()):
            raise ConfigError(f"{model} must return one row per node of a type, such as out_dict['paper'], or a dict "
                              "of these")
        if len({values.shape[1] for values in rows.values()}) > 1:
            raise ConfigError(f"{model} returns rows of other widths for other types; return the rows of the type "
                              "with labels only, such as out_dict['paper']")
        self.answered = list(rows)
        return _ToNodes.apply(self.graph.num_inner, [self.edges.tables[name].inner for name in rows], *rows.values())

    # Which rows a tensor has

    def note(self, args: Any, out: Any) -> None:
        """Pass on to what a function returns of which type or kind its rows are, if they are as many as it was given.
        """
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if type(one) is not torch.Tensor or not one.dim() or hasattr(one, OWNER):
                continue
            for given in _tensors(args):
                if hasattr(given, OWNER) and len(given) == len(one):
                    owned(one, getattr(given, OWNER))
                    break
                # Tables of one type that are stacked, and then summed, say.
                if hasattr(given, OWNER) and one.dim() > 2 and len(given) == one.shape[1]:
                    setattr(one, STACKED, getattr(given, OWNER))
                elif hasattr(given, STACKED) and given.shape[1] == len(one):
                    owned(one, getattr(given, STACKED))
                    break

    def _table_of_length(self, length: int, what: str, model: str = "the model") -> Table | None:
        found = [table for table in self.edges.tables.values() if length == table.num_inner]
        if len(found) > 1:
            raise ConfigError(f"{model} has types {' and '.join(table.name for table in found)} with {length} rows "
                              f"each on a rank, so that {what} don't tell their type; return a dict of types, and "
                              "compute rows from the rows of their type only")
        return found[0] if found else None

    def _ids_of_nodes(self, rows: torch.Tensor) -> np.ndarray | None:
        owner = getattr(rows, OWNER, None) or self._table_of_length(len(rows), "rows to draw for")
        if isinstance(owner, GraphEdges):
            return owner.draw_ids(owner.edge_index).cpu().numpy() if len(rows) == len(owner.edge_index[0]) else None
        return None if owner is None else owner.draw_ids(len(rows))

    def is_of_nodes(self, rows: torch.Tensor) -> bool:
        owner = getattr(rows, OWNER, None)
        return any(len(rows) == table.num_inner for table in self.edges.tables.values() if owner in (None, table))

    def is_of_edges(self, rows: torch.Tensor) -> bool:
        if self.passed is not None:
            return len(rows) == self.passed.shape[1]
        owner = getattr(rows, OWNER, None)
        return isinstance(owner, GraphEdges) and len(rows) == owner.edge_index.shape[1]

    # Tables with a row for each node of a type

    def number_of(self, table: Any) -> torch.Tensor:
        found = [one for one in self.edges.tables.values() if len(one.nodes) == len(table)]
        if len(found) != 1:
            raise ConfigError(f"the model reads all {len(table)} rows of {self.tables.get(id(table), 'a table')}, and "
                              f"{len(found) or 'no'} types have as many nodes; look its rows up by n_id_dict")
        return found[0].number

    @property
    def lengths(self) -> tuple[int | None, ...]:
        return tuple(length for table in self.edges.tables.values() for length in (table.num_inner, len(table.nodes)))

    # Halo rows

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as ended:
            for conv in self.ways:
                ended.callback(conv.register_forward_hook(self._after_call).remove)
            if HAN in sys.modules:
                ended.enter_context(replaced(sys.modules[HAN], group=self._weighed))
            ended.enter_context(super().attached())
            yield

    def _weighed(self, xs: list[torch.Tensor], q: torch.Tensor, k_lin: nn.Module) -> tuple:
        """Collective: HANConv's sum of the rows (n, dim) of several kinds, weighed by attention to their means over all
        nodes of the type; and the weights, (num_kinds,).

        Reference: Wang et al., "Heterogeneous graph attention network", WWW 2019, Eq. (7)-(9).
        """
        if not xs:
            return None, None
        out = torch.stack(xs)
        rows = torch.tanh(k_lin(out))
        # A trial asks whether rows mix outside of convolutions, and is of a few rows.
        mean = rows.new_zeros(rows[:, 0].shape) if self.graph.is_trial else _MeanOfRanks.apply(rows, self.graph)
        attention = torch.softmax((q * mean).sum(-1), dim=0)
        return (attention.view(-1, 1, 1) * out).sum(0), attention

    def _key(self, rows: torch.Tensor, way: Way) -> tuple[int, int, bool]:
        return id(rows), rows._version, way.is_linear or not self._may_miss

    def complete(self, rows: torch.Tensor, way: Way) -> torch.Tensor:
        self._check_sources(rows, way)
        return owned(super().complete(rows, way), self.at.graph.source)

    def _check_sources(self, source: torch.Tensor, way: Way) -> None:
        table = self.at.graph.source
        if len(source) != table.num_inner or getattr(source, OWNER, table) is not table:
            raise ConfigError(f"{way.place} was given {len(source)} source rows for edges from {table.name}, of which "
                              f"this rank has {table.num_inner}; pass it the rows of the types that its edges join, "
                              f"(x_dict['{table.name}'], x_dict['{self.at.graph.target.name}'])")

    def _fetched(self, flat: torch.Tensor, way: Way) -> tuple[torch.Tensor, ExchangeSite]:
        table = self.at.graph.source
        site = replace(self.graph.next_site(is_scaled=way.is_linear), nodes=table.nodes)
        return _HaloOfType.apply(flat, None, self.graph, table, site), site

    def _fetched_before(self, flat: torch.Tensor, halo: torch.Tensor, site: ExchangeSite) -> torch.Tensor:
        return _HaloOfType.apply(flat, halo, self.graph, self.at.graph.source, site)

    @property
    def _is_within_type(self) -> bool:
        return self.at.graph.source is self.at.graph.target

    def _present(self, rows: torch.Tensor) -> np.ndarray | None:
        present = self.graph.halo_present(None)
        return None if present is None else present[self.at.graph.source.rows.cpu().numpy()]

    def _has(self, edges: Any) -> bool:
        return edges in self.edges.kinds.values()

    # Convolutions

    def _before_call(self, conv: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        way = self.ways[conv]
        if way.kind != "tables":
            return super()._before_call(conv, args, kwargs)
        x_dict, edges, *rest = (*args, *kwargs.values())
        tables, given = dict(x_dict), {}
        for kind in filter(edges.__contains__, conv.edge_types if way.name == "HGTConv" else edges):
            # HGTConv needs its own order.
            self._enter(edges[kind], way)
            rows = self.own_rows(x_dict[kind[0]])
            tables[kind[0]], ends = self.complete(rows, way), plain_edges(edges[kind])
            keep = self._present_edges(rows, way, ends)
            ends = ends if keep is None else ends[:, keep]
            given[kind] = ends if way.name == "HGTConv" else self.at.seal(ends)
        return (tables, given, *rest), {}

    def _before_propagate(self, conv: nn.Module, inputs: tuple) -> tuple | None:
        if self.ways[conv].name == "HGTConv":      # its rows and edges are of all types at once, and complete
            self.passed = None
            return None
        return super()._before_propagate(conv, inputs)

    def _after_call(self, conv: nn.Module, args: Any, out: Any) -> Any:
        if self.ways[conv].kind == "tables":
            out, *rest = out if isinstance(out, tuple) else (out,)
            tables = self.edges.tables
            out = {name: rows if rows is None else owned(rows[:tables[name].num_inner], tables[name])
                   for name, rows in out.items()}
            return (out, *rest) if rest else out
        if isinstance(out, torch.Tensor) and len(out) == self.at.graph.num_inner:
            owned(out, self.at.graph.target)
        return out

    def _takes_sums(self, conv: nn.Module, rows: Any, given: dict) -> bool:
        source = rows[0] if isinstance(rows, (tuple, list)) else rows
        return (conv in self._summing and source.dim() == 2 and source.dtype in STORAGE_NUMBER
                and given.get("edge_weight") is None and len(source) == self.at.graph.num_sources)

    def _sums_of(self, rows: torch.Tensor, way: Way, reduction: str) -> torch.Tensor:
        edges, kind = self.at, (reduction, False)      # kept beside the weights of normalizing convolutions
        if kind not in edges._normalized:
            target = edges.edge_index[1]
            degree = torch.bincount(target, minlength=edges.graph.num_inner).float()
            edges._normalized[kind] = edges.edge_index, (1 / degree if reduction == "mean" else torch.ones_like(
                degree))[target]
        return aggregate(self.complete(rows, way), *edges.matrices(*kind))


def call_with_tables(model: nn.Module, signature: Signature, x_dict: dict[str, torch.Tensor],
                     edge_index_dict: dict[Kind, torch.Tensor], named: dict[str, dict]) -> Any:
    """Call a forward that takes tables of types; `named` are further tables by their names without _dict."""
    if signature.takes_data:
        data = sys.modules["torch_geometric.data"].HeteroData()
        held: dict[str, dict] = {"x": x_dict, "edge_index": edge_index_dict, **named}
        for name, of_each in held.items():
            for key, values in of_each.items():
                data[key][name] = values
        return model(data)
    taken = {name + signature.dicts: of_each for name, of_each in named.items()
             if name in signature.edge_names + signature.index_names}
    return model(x_dict, edge_index_dict, **taken) if signature.takes_edges else model(x_dict, **taken)


def make_weights(model: nn.Module, signature: Signature, types: NodeTypes | None, info: Any) -> None:
    """Call a plain model on a node of each type with an edge of each kind, so that its layers get their sizes."""
    edge = torch.zeros(2, 1, dtype=torch.int64)
    weight = {"edge_weight": torch.ones(1), "edge_attr": torch.zeros(1, info.num_edge_features or 1)}
    if types is not None:
        x = torch.zeros(1, info.num_features)
        tables: dict[str, dict] = {"edge_weight": dict.fromkeys(types.kinds, weight["edge_weight"])}
        tables["edge_attr"] = {kind: values for kind, columns in zip(types.kinds, types.kind_columns, strict=True)
                               if (values := weight["edge_attr"][:, columns]).shape[1]}
        tables |= {name: dict.fromkeys(types.nodes, edge[0]) for name in INDEX_NAMES}
        call_with_tables(model, signature, {name: x[:, columns] for name, columns in types.columns.items()},
                         dict.fromkeys(types.kinds, edge), tables)
        return
    named = {**weight, "edge_type": edge[0], **dict.fromkeys(INDEX_NAMES, edge[0])}
    x = torch.zeros(1, info.num_features)
    if signature.takes_data:
        model(sys.modules["torch_geometric.data"].Data(x=x, edge_index=edge, **named))
        return
    taken = {name: values for name, values in named.items() if name in signature.edge_names + signature.index_names}
    model(x, edge, **taken) if signature.takes_edges else model(x, **taken)


def owned(rows: torch.Tensor, owner: Table | GraphEdges) -> torch.Tensor:
    """The same tensor, with a note of which table's or edges' rows it has."""
    setattr(rows, OWNER, owner)
    return rows


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    for one in args:
        if isinstance(one, torch.Tensor):
            yield one
        elif type(one) in (tuple, list):
            yield from _tensors(one)


class _ToNodes(torch.autograd.Function):
    """Rows of types at their nodes, (num_inner, dim); other rows are zero."""

    @staticmethod
    def forward(ctx, num_inner: int, places: list[torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
        ctx.places = places
        out = rows[0].new_zeros((num_inner, rows[0].shape[1]))
        for place, values in zip(places, rows, strict=True):
            out[place] = values
        return out

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return None, None, *(gradient[place] for place in ctx.places)


class _MeanOfRanks(torch.autograd.Function):
    """The mean of rows (num_kinds, n, dim) over the n rows of all ranks, (num_kinds, dim)."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, graph: LocalGraph) -> torch.Tensor:
        ctx.graph, ctx.shape = graph, rows.shape
        ctx.count = graph.sum_of_pass(rows.new_full((1,), rows.shape[1], dtype=torch.float32)).clamp_(min=1)
        return (graph.sum_of_pass(rows.float().sum(1)) / ctx.count).to(rows.dtype)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        of_all = (ctx.graph.sum_of_pass(gradient.float()) / ctx.count).to(gradient.dtype)
        return of_all[:, None].expand(ctx.shape), None


class _HaloOfType(torch.autograd.Function):
    """Append to the own rows of a type, (num_inner, dim), their halo rows; `came` are these if they are known."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, came: torch.Tensor | None, graph: LocalGraph, table: Table,
                site: ExchangeSite) -> torch.Tensor:
        ctx.graph, ctx.table, ctx.site = graph, table, site
        if came is None:
            # The exchange knows all rows of the graph; of these, only the type's travel.
            own, halo = (rows.new_zeros((num_rows, rows.shape[1])) for num_rows in (graph.num_inner, graph.num_halo))
            own[table.inner] = rows
            graph.exchange.start_fetch(own, site).finish(halo)
            came = halo[table.halo]
        return torch.cat([rows, came])

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        graph, table = ctx.graph, ctx.table
        own, halo = (gradient.new_zeros((num_rows, gradient.shape[1]))
                     for num_rows in (graph.num_inner, graph.num_halo))
        halo[table.halo] = gradient[table.num_inner:]
        graph.exchange.start_take_home(halo, ctx.site).finish(own)
        return gradient[:table.num_inner] + own[table.inner], None, None, None, None
