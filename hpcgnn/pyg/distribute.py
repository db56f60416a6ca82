"""`distribute`: an unmodified PyTorch Geometric model becomes one that hpcgnn trains on a graph in parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.graph.hop import AloneExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.nn.heads import Outputs, check_entries
from hpcgnn.nn.models import Distributed
from hpcgnn.nn.node_embedding import NodeEmbedding, own_tables
from hpcgnn.pyg.convolutions import PYG, is_lazy, is_normalizing, loop_weight, needs_relations, num_edge_columns
from hpcgnn.pyg.edges import GraphEdges
from hpcgnn.pyg.fitting import INDEX_NAMES, signature_of, ways_of
from hpcgnn.pyg.fitting import is_pyg as is_pyg
from hpcgnn.pyg.passing import ForwardPassing, UnfitEdges
from hpcgnn.pyg.recomputation import Region, checkpoints
from hpcgnn.pyg.row_functions import RowFunctions
from hpcgnn.pyg.typed import NodeTypes, TypedEdges, TypedPassing, call_with_tables, check_kinds, make_weights, owned


class DistributedModel(Distributed):
    """A PyTorch Geometric model on the parts of a graph, with the answers and gradients of one process.

    Its state has the plain model's names, so that it loads into the plain model. The module's forward takes (x,
    edge_index), and edge_weight, edge_attr or edge_type if it uses them; or (x_dict, edge_index_dict), see
    `hpcgnn.pyg.typed`. `reduction`, `attends` and `num_exchanges` are traits for methods, see
    `hpcgnn.nn.models.ModelTraits`.

    info : GraphInfo or None      facts of the graph, for a model with tables of types, or with input columns of -1

    Raises ConfigError for a part that can't be distributed, by name, with the reason.
    """

    def __init__(self, module: nn.Module, ignores_edge_weights: bool = False, info: Any = None):
        super().__init__()
        self._ways, self._signature = ways_of(module), signature_of(module)
        self._ignores_edge_weights = ignores_edge_weights
        self.module, self._types = module, None
        of_tables = next((way.place for way in self._ways.values() if way.kind == "tables"), None)
        if self._signature.dicts is None and of_tables is not None:
            raise ConfigError(f"{of_tables} can't be distributed in a forward of one table of rows: it takes a table "
                              "for each type of nodes; let the forward take (x_dict, edge_index_dict)")
        if self._signature.dicts is not None:
            if info is None:
                raise ConfigError(f"{self._name} takes a table for each type of nodes; name the graph, "
                                  "hpcgnn.distribute(model, graph)")
            self._types = NodeTypes.of(info, self._name)
            check_kinds(module, self._types)
        self._make_weights(info)
        _fill_unset(module)
        # GPSConv takes batch; PerformerProjection sums over nodes.
        self._global = [place for place, part in module.named_modules() if type(part).__module__.startswith(PYG)
                        and type(part).__name__ in ("GPSConv", "PerformerProjection")]
        self.reduction = next(iter(self._ways.values())).reduction if self._ways else "mean"
        self.takes_relations = "edge_type" in self._signature.edge_names
        self.takes_attributes = "edge_attr" in self._signature.edge_names
        self.takes_tables = self._signature.dicts is not None
        self.attends = any(way.attends for way in self._ways.values())
        self.num_exchanges = sum(way.num_exchanges for way in self._ways.values())
        self._edges: Any = None      # GraphEdges, or TypedEdges
        self._shared: set[int] = set()
        self._answered: list[str] = []      # types whose rows the last forward returned

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Weights under the names of the unmodified model, as `torch.nn.Module.state_dict`."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Take the weights of the unmodified model, as `torch.nn.Module.load_state_dict`."""
        return self.module.load_state_dict(state_dict, strict, assign)

    def forward(self, graph: LocalGraph, x: torch.Tensor) -> Outputs:
        """Collective: map the graph's input rows (num_inner, num_features) to (num_inner, num_outputs), or to several
        heads, see `hpcgnn.nn.heads`.

        Raises ConfigError if the model reads edge_index, changes its input, or returns anything but one row per node.
        """
        edges = self._edges_of(graph)
        ways = {self.module.get_submodule(place): way for place, way in self._ways.items()}
        rows = x.to(next(self.module.parameters(), x).dtype)
        version = graph.x._version     # the whole graph's x is part of x_all; a step's x_all is made if it is read
        embeddings = own_tables(self.module)
        tables = self._tables(graph.num_nodes) | {id(own.weight): name for name, own in embeddings.items()}
        passing: Any = (ForwardPassing if self._types is None else TypedPassing)(
            graph, rows, edges, ways, tables, {id(own.weight): own for own in embeddings.values()}, self._shared,
            [self.module.get_submodule(place) for place in self._global])
        with passing.attached(), RowFunctions(passing), checkpoints(
                lambda function: Region(graph, function, passing, lambda: self._again(passing))):
            out = self._called(rows, edges) if self._types is None else self._called_with_tables(passing)
        if graph.x._version != version:
            raise ConfigError(f"{self._name} changes its input in place, which is needed again in the next epoch; "
                              "write its first operations without inplace=True")
        if self._types is not None:
            out = passing.answers(out, self._name)
            self._answered = passing.answered
            return out
        check_entries(out, graph.num_inner, self._name)
        return out

    @property
    def _name(self) -> str:
        return type(self.module).__name__

    @contextmanager
    def _again(self, passing: ForwardPassing) -> Iterator[None]:
        # torch.utils.checkpoint runs this part a second time, which must not count batches again.
        counts = [buffer for name, buffer in self.module.named_buffers() if name.endswith("num_batches_tracked")]
        kept = [count.clone() for count in counts]
        try:
            with passing.attached(), RowFunctions(passing):
                yield
        finally:
            for count, before in zip(counts, kept, strict=True):
                count.copy_(before)

    def _tables(self, num_nodes: int | None) -> dict[int, str]:
        # Tensors with one row per node of the whole graph, found by identity: embeddings, and what the user's own
        # modules hold.
        if self._types is not None:
            counts = {len(nodes) for nodes in self._types.nodes.values()}
            return {id(part.weight): f"{place}.weight" for place, part in self.module.named_modules()
                    if isinstance(part, nn.Embedding) and len(part.weight) in counts}
        tables = {}
        for place, module in self.module.named_modules() if num_nodes is not None else ():
            held = {**module._parameters, **module._buffers, **{
                name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}}
            is_known = isinstance(module, NodeEmbedding) or (
                type(module).__module__.startswith(("torch.", PYG)) and not isinstance(module, nn.Embedding))
            for name, value in held.items() if not is_known else ():
                if value is not None and value.dim() and len(value) == num_nodes:
                    tables[id(value)] = f"{place}.{name}" if place else name
        return tables

    def _called(self, rows: torch.Tensor, edges: GraphEdges) -> Outputs:
        signature = self._signature
        named = {name: edges.graph.node_index for name in signature.index_names}
        named |= {name: value for name, value in self._of_edges(edges, rows.dtype).items()
                  if name in signature.edge_names and value is not None}
        if signature.takes_data:
            data, index = sys.modules["torch_geometric.data"].Data, edges.graph.node_index
            given = data(x=rows, edge_index=edges.sealed, **named, **dict.fromkeys(INDEX_NAMES, index))
            try:
                return self.module(given)
            except AttributeError as error:      # of the data alone; others are the user's own errors
                if type(error.obj).__name__ != "GlobalStorage":
                    raise
                raise ConfigError(f"{self._name}'s forward reads data.{error.name}, which shards do not give it; it "
                                  "gets x, edge_index, n_id, and edge_weight, edge_attr and edge_type if the graph has "
                                  "them; masks and labels are for the loss") from error
        return self.module(rows, edges.sealed, **named) if signature.takes_edges else self.module(rows, **named)

    def _called_with_tables(self, passing: TypedPassing) -> Any:
        signature, edges, x_dict = self._signature, passing.edges, passing.inputs()
        dtype, tables = x_dict[next(iter(x_dict))].dtype, edges.tables.items()
        named: dict[str, dict] = {"n_id": {name: table.number for name, table in tables},
                                  "node_index": {name: table.node_index for name, table in tables}}
        for kind, of_kind in edges.kinds.items():
            for name, values in self._of_edges(of_kind, dtype).items():
                if name in signature.edge_names and values is not None:
                    named.setdefault(name, {})[kind] = owned(values, of_kind)
        edge_index = {kind: of_kind.sealed for kind, of_kind in edges.kinds.items()}
        return call_with_tables(self.module, signature, x_dict, edge_index, named)

    def _make_weights(self, info: Any) -> None:
        """Run the plain model once on a node of each type, where layers of -1 input columns have no weights yet."""
        lazy = [name for name, weight in self.module.named_parameters() if is_lazy(weight)]
        if not lazy:
            return
        if info is None:
            raise ConfigError(f"{lazy[0]} of the model has no size yet; give its layer the number of its input columns "
                              "in place of -1, or name the graph, hpcgnn.distribute(model, graph)")
        with _evaluating(self.module):
            make_weights(self.module, self._signature, self._types, info)
        unused = [name for name, weight in self.module.named_parameters() if is_lazy(weight)]
        if unused:
            raise ConfigError(f"{unused[0]} of the model has no size after a forward, which does not use its layer; "
                              "leave the layer out")

    def _of_edges(self, edges: GraphEdges, dtype: torch.dtype) -> dict[str, torch.Tensor | None]:
        weight, values = edges.edge_weight, edges.edge_attr
        if values is None and weight is not None and self._signature.weighs_by_attribute:
            values = weight[:, None]
        return {"edge_weight": weight, "edge_attr": None if values is None else values.to(dtype),
                "edge_type": edges.edge_type}

    def _edges_of(self, graph: LocalGraph) -> Any:
        """Collective for a new graph: return its edges, with normalized weights where convolutions need them."""
        whole, rows = graph.whole
        if self._edges is None or self._edges.graph is not whole:
            weight = self._weight_of(whole)
            self._check_graph(weight is not None, getattr(whole, "edge_attr", None) is not None,
                              getattr(whole, "edge_type", None) is not None)
            self._edges = self._normalized(self._new_edges(whole, weight))
        if rows is None:
            return self._edges
        return self._normalized(self._new_edges(graph, self._weight_of(graph), self._edges))

    def _new_edges(self, graph: LocalGraph, weight: torch.Tensor | None, whole: Any = None) -> Any:
        if self._types is None:
            return GraphEdges(graph, weight, whole)
        return TypedEdges(graph, self._types, weight, whole)

    def _weight_of(self, graph: LocalGraph) -> torch.Tensor | None:
        return None if self._ignores_edge_weights else getattr(graph, "edge_weight", None)

    def _normalized(self, edges: Any) -> Any:
        for place, way in self._ways.items():
            conv = self.module.get_submodule(place)
            if way.kind == "normalized" and is_normalizing(conv):
                for one in edges.within_types if isinstance(edges, TypedEdges) else (edges,):
                    one.normalize(loop_weight(conv))
        return edges

    def _check_graph(self, has_weights: bool, has_attributes: bool, has_relations: bool) -> None:
        signature = self._signature
        has_columns = has_attributes or (has_weights and signature.weighs_by_attribute)
        for name, is_there, what in (("edge_weight", has_weights, "edge weights"),
                                     ("edge_attr", has_columns, "attributes of edges"),
                                     ("edge_type", has_relations, "relations")):
            if name in signature.needed and not is_there:
                raise ConfigError(f"{self._name}.forward needs {name}, and the graph has no {what}; write {name}=None, "
                                  f"or preprocess the graph with {what}")
        takes_weights = "edge_weight" in signature.edge_names or (signature.weighs_by_attribute and not has_attributes)
        if has_weights and not takes_weights:
            raise ConfigError(f"the graph has edge weights and {self._name} takes none; let its forward take "
                              "edge_weight and pass it to the convolutions, or leave them out by "
                              "hpcgnn.distribute(model, graph, ignore_edge_weights=True)")

    def order_of_trial(self, node_id: np.ndarray) -> np.ndarray:
        """The order in which a trial takes nodes, (n,) int64: of each type in turn, else as they come."""
        place = np.arange(len(node_id))
        for nodes in () if self._types is None else self._types.nodes.values():
            is_of_type = (node_id >= nodes.start) & (node_id < nodes.stop)
            place[is_of_type] = np.arange(is_of_type.sum())
        return np.argsort(place, kind="stable")

    def check_answered(self, node_id: np.ndarray) -> None:
        """Raise ConfigError if the last forward left out a type of these nodes with labels, (n,) int64."""
        for name, nodes in () if self._types is None else self._types.nodes.items():
            if name not in self._answered and bool(((node_id >= nodes.start) & (node_id < nodes.stop)).any()):
                raise ConfigError(f"{self._name} returns rows of type {', '.join(self._answered)}, and nodes of type "
                                  f"{name} have the labels; return the rows of {name}, such as out_dict[{name!r}]")

    def remarks(self, info: Any) -> list[str]:
        """Return what a user should know about training this model on the edges of a graph, see GraphInfo."""
        taken, num_columns, num_relations = self._signature.edge_names, info.num_edge_features, len(info.relation_names)
        unused = [f"{name} ({number} {what}{'s' * (number > 1)})" for name, number, what in (
            ("edge_attr", num_columns, "column"), ("edge_type", 0 if self._types else num_relations, "relation"))
                  if number and name not in taken]
        if unused:
            return [f"the graph's edges have {' and '.join(unused)}, and {self._name}.forward does not take "
                    f"{'it' if len(unused) == 1 else 'them'}: it trains without"]
        is_given = num_columns or num_relations or (info.has_edge_weights and not self._ignores_edge_weights)
        made_for = [] if is_given else [
            (way.place, columns) for place, way in self._ways.items()
            if (columns := num_edge_columns(self.module.get_submodule(place)))]
        reason = "edge weights are ignored" if info.has_edge_weights else "the graph has no attributes of edges"
        return [f"{place} is made for edge_attr of {columns} column{'s' * (columns > 1)}, and {reason}: it trains "
                "without" for place, columns in made_for[:1]]

    def check_fits(self, graph: Any) -> None:
        """Check the model's columns, and what it takes of edges, against a graph; ConfigError if they differ."""
        for name, found, what in (("in_channels", graph.num_features, "features"),
                                  ("out_channels", graph.num_classes, "outputs")) if self._types is None else ():
            stated = getattr(self.module, name, None)
            if isinstance(stated, int) and stated != found:
                raise ConfigError(f"{self._name} has {name}={stated}, and the graph has {found} {what}; make the model "
                                  f"with {name}={found}")
        info = graph.info
        self._check_graph(info.has_edge_weights and not self._ignores_edge_weights, info.num_edge_features > 0,
                          len(info.relation_names) > 0)
        convolutions = [(self.module.get_submodule(place), way.name) for place, way in self._ways.items()]
        if self._types is None and any(num_edge_columns(conv) is not None or needs_relations(conv, name)
                                       for conv, name in convolutions):
            self._try_edges(info)

    def _try_edges(self, info: Any) -> None:
        """Raise UnfitEdges if a convolution can't compute on such edges, as a forward on three nodes in a ring shows.
        """
        numbers, ones, last = np.arange(3), np.ones(3, np.float32), len(info.relation_names) - 1
        device = next(self.module.parameters(), torch.empty(0)).device
        rows = LocalRows(
            np.arange(4), np.roll(numbers, 1).astype(np.int32), numbers, np.ones(3, np.int32),
            torch.zeros(3, info.num_features, device=device), info.num_nodes,
            *((ones, ones) if info.has_edge_weights else (None, None)),
            edge_type=np.full(3, last, np.int32) if info.relation_names else None,
            edge_attr=np.zeros((3, info.num_edge_features), np.float32) if info.num_edge_features else None)
        graph = LocalGraph(rows, AloneExchange(), is_trial=True)
        graph.begin_forward(seed=0, epoch=0, is_training=False)
        try:
            with _evaluating(self.module), torch.random.fork_rng([]):
                DistributedModel(self.module, self._ignores_edge_weights)(graph, graph.x)
        except UnfitEdges:
            raise
        except Exception:      # three nodes are too few, or the user's code fails: the trial before training says so
            return


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _fill_unset(module: nn.Module) -> None:
    """Fill RGATConv's `l2`, which PyTorch Geometric leaves as memory was, with the value that it computes for it."""
    for part in module.modules():
        is_rgat = type(part).__name__ == "RGATConv" and type(part).__module__.startswith(PYG)
        if is_rgat and not part.l2.isfinite().all():
            nn.init.constant_(part.l2, 1 / part.out_channels)


def distribute(model: nn.Module, graph: Any = None, *, ignore_edge_weights: bool = False) -> DistributedModel:
    """Return an unmodified model of PyTorch Geometric as one that trains on a graph in parts.

    Each convolution gets the rows of neighbors on other ranks, packed as the training method says. Degrees, batch
    statistics and dropout are as on the whole graph, so answers and gradients equal one process's.

    Parameters
    ----------
    model : nn.Module               forward(x, edge_index), with edge_weight, edge_attr or edge_type;
                                    forward(x_dict, edge_index_dict), with edge_weight_dict or edge_attr_dict; or
                                    forward(data)
    graph : hpcgnn.Graph or None    check that the model fits it; needed for a forward (x_dict, edge_index_dict), and
                                    for layers with -1 input columns
    ignore_edge_weights : bool      train without the graph's edge weights; else a model that takes none is refused

    Raises
    ------
    ConfigError      a part that can't be distributed, by name, with the reason; a model that does not fit the graph

    Examples
    --------
    >>> graph = hpcgnn.open("shards/cora-p2")
    >>> model = hpcgnn.distribute(torch_geometric.nn.GraphSAGE(graph.num_features, 64, 2, graph.num_classes), graph)
    """
    distributed = DistributedModel(model, ignore_edge_weights, getattr(graph, "info", None))
    if graph is not None:
        distributed.check_fits(graph)
    return distributed
