"""GraphEdges: the edges of a part in PyTorch Geometric's form, with weights normalized by degrees of the whole graph.

A model's forward gets `SealedEdges` instead, which it may pass on, and select from as in `edge_index[:, edge_type ==
1]`, but not read. A step of an epoch has the edges into its own rows, and takes their factors from the edges of the
whole graph.
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.ops.aggregation import SparseRows, from_csr
from hpcgnn.ops.resident import resident
from hpcgnn.pyg.convolutions import is_convolution

READABLE = (torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point,
            *(getattr(torch.Tensor, name).__get__ for name in (
                "shape", "device", "dtype", "layout", "is_cuda", "is_sparse", "ndim", "requires_grad")))
# These give the same edges where they change neither device nor type.
KEEPING = (torch.Tensor.to, torch.Tensor.contiguous, torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.long,
           torch.Tensor.cpu, torch.clone, torch.detach)
REPEATED = 0x1E3779B97F4A7C15      # an odd number, so that ids of repeated edges collide with others by chance only


class SealedEdges(torch.Tensor):
    """Edges that may be passed to a convolution but not read: their node numbers hold on one rank only.

    A selection of whole edges, by a mask or by their places, is sealed, too.
    """

    owner: GraphEdges

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in READABLE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func in KEEPING and type(args[0]) is SealedEdges:
            with torch._C.DisableTorchFunctionSubclass():
                edges = func(*args, **(kwargs or {}))
            if (edges.dtype, edges.device) == (args[0].dtype, args[0].device):
                return args[0]
        if func is torch.Tensor.__getitem__ and _selects_edges(*args):
            return args[0].owner.seal(plain_edges(args[0])[args[1]])
        name = getattr(func, "__name__", str(func))
        conv = _unknown_convolution()
        if conv is not None:
            raise ConfigError(f"the model calls a {conv} that is none of its modules, so it would get no rows of other "
                              "ranks and its weights no training; assign it to an attribute of the model, or put it "
                              "into a ModuleList")
        raise ConfigError(f"the model reads or changes edge_index itself, by {name}, which can't be distributed: "
                          "a rank holds the edges into its own nodes only; pass edge_index to the convolutions as it "
                          "comes, and leave self-loops and normalization to them")


def _selects_edges(edges: Any, index: Any) -> bool:
    """Whether an index keeps both rows and takes some columns: edges[:, mask] or edges[:, places]."""
    return (type(edges) is SealedEdges and isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None)
            and type(index[1]) is torch.Tensor and index[1].dim() == 1
            and index[1].dtype in (torch.bool, torch.int64, torch.int32))


def _unknown_convolution() -> str | None:
    """Name of the convolution that runs now, if it is not in the model: its calls of propagate are not hooked."""
    frame = sys._getframe(1)
    while frame is not None:
        conv = frame.f_locals.get("self")
        if isinstance(conv, nn.Module) and is_convolution(conv):
            return None if conv._propagate_forward_pre_hooks else type(conv).__name__
        frame = frame.f_back
    return None


def plain_edges(edges: torch.Tensor) -> torch.Tensor:
    """(2, n) int64 local node numbers of edges, sealed or not."""
    with torch._C.DisableTorchFunctionSubclass():
        return edges.as_subclass(torch.Tensor)


class GraphEdges:
    """The edges into one rank's nodes; copies of a model share them.

    Parameters
    ----------
    edge_weight : (num_edges,) float32 or None
    whole : GraphEdges or None              of the whole graph, where `graph` is of one step

    Attributes
    ----------
    edge_index : (2, num_edges) int64       local sources and destinations
    sealed : SealedEdges                    given to a model's forward
    edge_type : (num_edges,) int64 or None
    edge_attr : (num_edges, num_edge_features) float32 or None
    """

    def __init__(self, graph: Any, edge_weight: torch.Tensor | None, whole: GraphEdges | None = None):
        self.graph, self.edge_weight, self._whole = graph, edge_weight, whole
        self.edge_index = graph.edge_index
        self.edge_type, self.edge_attr = getattr(graph, "edge_type", None), getattr(graph, "edge_attr", None)
        self.sealed = self.seal(self.edge_index)
        self._normalized: dict[tuple[float | None, bool], tuple[torch.Tensor, torch.Tensor]] = {}
        self._matrices: dict[tuple[float | None, bool], tuple[SparseRows, SparseRows]] = {}
        self._factors: dict[tuple[float | None, bool], torch.Tensor] = {}      # (num_rows,), D^-1/2

    def __deepcopy__(self, memo: dict) -> GraphEdges:
        return self

    def __reduce__(self):
        return type(None), ()      # a file holds no graph

    @cached_property
    def largest_relation(self) -> int:
        """The largest number in edge_type; -1 without edges."""
        return int(self.edge_type.max()) if len(self.edge_type) else -1

    def seal(self, edge_index: torch.Tensor) -> SealedEdges:
        """Return edges of this graph, (2, n) local node numbers, so that a model can't read them."""
        sealed = edge_index.as_subclass(SealedEdges)
        sealed.owner = self
        return sealed

    def normalize(self, loop_weight: float | None) -> None:
        """Collective: prepare `normalized` for a loop weight, with and without edge weights.

        Degrees of halo rows of the whole graph cross once, as input rows do; a step sends none.
        """
        if (loop_weight, False) not in self._normalized:
            ones = torch.ones(self.edge_index.shape[1], device=self.edge_index.device)
            # Without edge weights PyTorch Geometric gives a loop weight 1, even with improved=True, which asks for 2.
            self._normalize((loop_weight, False), ones, None if loop_weight is None else 1.0)
            if self.edge_weight is not None:
                self._normalize((loop_weight, True), self.edge_weight, loop_weight)

    def normalized(self, loop_weight: float | None, is_weighted: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the edges of D^-1/2 A D^-1/2, with self-loops if they have a weight; `normalize` prepared them.

        Returns
        -------
        edge_index : (2, n) int64
        edge_weight : (n,) float32
        """
        return self._normalized[loop_weight, is_weighted]

    def matrices(self, loop_weight: float | None, is_weighted: bool) -> tuple[SparseRows, SparseRows]:
        """Return `normalized` as a matrix (num_inner, num_rows) and its transpose."""
        kind = loop_weight, is_weighted
        if kind not in self._matrices:
            (source, target), weight = (values.cpu().numpy() for values in self._normalized[kind])
            by_target = scipy.sparse.csr_matrix((weight, (target, source)), (self.graph.num_inner, self.graph.num_rows))
            has_half_sums = self.graph.has_half_sums
            self._matrices[kind] = (_rows_of(by_target, has_half_sums), _rows_of(by_target.T.tocsr(), has_half_sums))
        return self._matrices[kind]

    def _normalize(self, kind: tuple[float | None, bool], weight: torch.Tensor, loop_weight: float | None) -> None:
        edge_index, num_inner = self.edge_index, self.graph.num_inner
        if loop_weight is not None:
            # A loop of the graph keeps its weight, as in PyTorch Geometric.
            source, target = edge_index
            is_loop = source == target
            loops = weight.new_full((num_inner,), loop_weight)
            loops[target[is_loop]] = weight[is_loop]
            own = torch.arange(num_inner, device=source.device)
            edge_index = torch.cat([edge_index[:, ~is_loop], torch.stack([own, own])], dim=1)
            weight = torch.cat([weight[~is_loop], loops])
        source, target = edge_index
        if self._whole is None:
            # On the host: a device adds in another order in every run.
            degree = torch.zeros(num_inner).index_add_(0, target.cpu(), weight.cpu()).to(weight.device)
            factor = degree.pow(-0.5)
            factor[factor.isinf()] = 0.0
            self._factors[kind] = self.graph.share(factor[:, None])[:, 0]
        else:
            self._factors[kind] = self._whole._factors[kind][self.graph.whole_rows]
        factors = self._factors[kind]
        self._normalized[kind] = edge_index, factors[source] * weight * factors[target]

    def draw_ids(self, edge_index: torch.Tensor) -> torch.Tensor:
        """Return (n,) int64 ids of edges, the same on any number of ranks: both ends' global ids, 31 bits each.

        Edges between the same two nodes, which differ in relation or attributes, follow each other; the second one's id
        has REPEATED added, and so on.
        """
        of_sources, of_targets = (torch.from_numpy(ids).to(edge_index.device) for ids in (
            self.graph.node_id, getattr(self.graph, "target_id", self.graph.node_id)))
        ids = of_targets[edge_index[1]] << 31 | of_sources[edge_index[0]]
        if self.edge_type is None and self.edge_attr is None:
            return ids
        place = torch.arange(len(ids), device=ids.device)
        is_first = torch.ones_like(ids, dtype=torch.bool)
        is_first[1:] = ids[1:] != ids[:-1]
        return ids + (place - torch.cummax(place * is_first, 0).values) * REPEATED & (1 << 63) - 1


def _rows_of(matrix: scipy.sparse.csr_matrix, has_half_sums: bool) -> SparseRows:
    return from_csr(resident(matrix.indptr.astype(np.int64)), resident(matrix.indices.astype(np.int32)),
                    matrix.shape[1], entry_scale=resident(matrix.data), has_half_sums=has_half_sums)
