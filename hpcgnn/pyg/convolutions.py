"""PyTorch Geometric's convolutions: how each gets halo rows, or why it is refused.

Example: SAGEConv takes a pair (source rows, destination rows) at its call, so halo rows are appended to the sources
there. GCNConv takes one table of rows and normalizes edges itself, so it gets halo rows and normalized edges inside
`propagate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from hpcgnn.errors import ConfigError

# Their forward takes a pair (source rows, destination rows).
PAIRED = ("SAGEConv", "GraphConv", "GATConv", "GATv2Conv", "TransformerConv", "GINConv", "GINEConv",
          "ResGatedGraphConv", "LEConv", "GeneralConv", "EdgeConv", "GENConv", "CGConv", "FiLMConv", "SimpleConv",
          "NNConv", "GMMConv", "SplineConv", "RGCNConv", "FastRGCNConv")
# They take one table of rows, and read sources only in `propagate`.
PLAIN = ("PNAConv", "ClusterGCNConv", "GatedGraphConv", "RGATConv", "HEATConv", "PDNConv")
# They weigh edges by D^-1/2 (A + I) D^-1/2 and take one table of rows.
NORMALIZED = ("GCNConv", "SGConv", "TAGConv", "SSGConv", "APPNP", "GCN2Conv", "LGConv", "MixHopConv")
# They take a table of rows for each type of nodes.
OF_TABLES = ("HGTConv", "HANConv")
SUPPORTED = PAIRED + PLAIN + NORMALIZED + OF_TABLES
ATTENDING = ("GATConv", "GATv2Conv", "TransformerConv", "RGATConv", "HEATConv", *OF_TABLES)
# They choose weights by the relation of an edge; FiLMConv does if it has several.
TYPED = ("RGCNConv", "FastRGCNConv", "RGATConv", "HEATConv", "FiLMConv")
# They can't do without edge_attr; those of the second line only if they were made for its columns.
NEEDS_ATTRIBUTES = ("GINEConv", "NNConv", "GMMConv", "SplineConv", "HEATConv", "PDNConv",
                    "TransformerConv", "ResGatedGraphConv", "PNAConv", "CGConv")
# What passes along an edge is the neighbor's row, or that row times the edge's weight.
SUMMING = ("SAGEConv", "GraphConv", "GINConv", "SimpleConv", "GatedGraphConv", *NORMALIZED)
# They read the sums once, so that these may be kept.
READS_SUMS_ONCE = ("SAGEConv", "GraphConv", "GINConv")
# Their sums are linear in the source rows, so a sum over sampled rows stays unbiased if the rows are divided by the
# sampled share.
LINEAR = ("SAGEConv", "GraphConv", "GINConv", "SimpleConv", "ClusterGCNConv", "GatedGraphConv", "NNConv", "GMMConv",
          "SplineConv", "RGCNConv", "FastRGCNConv", "PDNConv", *NORMALIZED)

REFUSED = {
    "ChebConv": "its Laplacian needs degrees of both directions of every neighbor; use TAGConv",
    "ARMAConv": "it stacks rows along another dimension; use TAGConv",
    "DynamicEdgeConv": "it looks for neighbors among all nodes anew in every pass; use EdgeConv on a fixed graph",
    "DynamicPointConv": "it looks for neighbors among all nodes anew in every pass",
    "GravNetConv": "it looks for neighbors among all nodes anew in every pass",
    "XConv": "it looks for neighbors among all nodes anew in every pass",
    "SuperGATConv": "it draws negative edges among all nodes; use GATv2Conv",
    "FusedGATConv": "it takes a sparse matrix in both directions; use GATConv, which has the same weights",
    "CuGraphSAGEConv": "it takes a sparse matrix of one process; use SAGEConv",
    "CuGraphGATConv": "it takes a sparse matrix of one process; use GATConv",
    "HypergraphConv": "shards hold a graph, not a hypergraph",
}
AGGREGATIONS = ("SumAggregation", "MeanAggregation", "MaxAggregation", "MinAggregation", "MulAggregation",
                "VarAggregation", "StdAggregation", "SoftmaxAggregation", "PowerMeanAggregation", "MultiAggregation",
                "DegreeScalerAggregation", "FusedAggregation")
PYG = "torch_geometric."


@dataclass(frozen=True)
class Way:
    """How a convolution gets halo rows."""

    # "pair": as a pair at the call; "plain": in `propagate`; "normalized": in `propagate`, with normalized edge
    # weights; "tables": as tables of all types at the call; "own": in `propagate`, for a user's class
    kind: str
    name: str           # the class that it counts as
    reduction: str      # {"gcn", "mean", "sum"}, how it sums; attention and others count as means
    attends: bool       # a softmax weights the rows
    is_linear: bool     # sums are linear in the source rows
    num_exchanges: int  # exchanges of halo rows per forward
    place: str          # "SAGEConv at model.conv", for messages


def is_convolution(module: nn.Module) -> bool:
    """Whether a module is PyTorch Geometric's MessagePassing, without importing it."""
    return any(cls.__name__ == "MessagePassing" and cls.__module__.startswith(PYG) for cls in type(module).__mro__)


def way_of(conv: nn.Module, place: str) -> Way:
    """Return how a convolution gets halo rows.

    A class of PyTorch Geometric is known by its name, and a subclass with the same `forward` counts as it. Any other
    class of the user's gets its rows in `propagate`.

    Parameters
    ----------
    place : str      where in the model, for messages

    Raises
    ------
    ConfigError      a convolution, or an option of it, that can't be distributed
    """
    known = next(cls for cls in type(conv).__mro__ if cls.__module__.startswith(PYG))
    name, what = type(conv).__name__, f"{type(conv).__name__} at {place}"
    _check_options(conv, what)
    is_own = known.__name__ == "MessagePassing" or any(
        getattr(type(conv), method, None) is not getattr(known, method, None) for method in ("forward", "edge_update"))
    if is_own:
        _check_own(conv, what)
        return Way("own", name, _reduction(conv), False, _sums(conv), 1, what)
    if known.__name__ not in SUPPORTED:
        reason = REFUSED.get(known.__name__, "hpcgnn does not know it to be right over several ranks")
        raise ConfigError(f"{what} can't be distributed: {reason}")
    _check_known(conv, known.__name__, what)
    name = known.__name__
    kind = "pair" if name in PAIRED else "plain" if name in PLAIN else "tables" if name in OF_TABLES else "normalized"
    is_linear = name in LINEAR and _sums(conv) and not getattr(conv, "project", False)
    reduction = "gcn" if kind == "normalized" and is_normalizing(conv) else _reduction(conv)
    return Way(kind, name, reduction, name in ATTENDING or _attends(conv), is_linear, _num_exchanges(conv, name), what)


def only_sums(conv: nn.Module, way: Way) -> bool:
    """Whether `propagate` sums the neighbors' rows, by edge weights or not, and nothing else hangs on it."""
    if way.kind == "own" or way.name not in SUMMING or not way.is_linear:
        return False
    known = next(cls for cls in type(conv).__mro__ if cls.__module__.startswith(PYG))
    parts = ("propagate", "message", "aggregate", "update")
    has_own = any(getattr(type(conv), part) is not getattr(known, part) or part in vars(conv) for part in parts)
    has_hooks = any(value for name, value in vars(conv).items()
                    if name.endswith("_hooks") and name.startswith(("_propagate", "_message", "_aggregate")))
    return not has_own and not has_hooks and isinstance(conv.aggr, str) and type(conv.aggr_module).__name__ in (
        "SumAggregation", "MeanAggregation")


def is_normalizing(conv: nn.Module) -> bool:
    """Whether a convolution of NORMALIZED weighs edges itself, which is its default."""
    return getattr(conv, "normalize", True)


def loop_weight(conv: nn.Module) -> float | None:
    """Return the weight of the self-loops that a convolution of NORMALIZED adds; None without them."""
    if not getattr(conv, "add_self_loops", False):
        return None
    return 2.0 if getattr(conv, "improved", False) else 1.0


def num_edge_columns(conv: nn.Module) -> int | None:
    """Return the columns of edge_attr that a convolution expects; 0 if any number fits, None if it takes none."""
    for name in ("edge_dim", "in_edge_channels"):
        if isinstance(getattr(conv, name, None), int):
            return getattr(conv, name)
    kind = type(conv).__name__
    if kind in ("CGConv", "GMMConv", "SplineConv"):
        return conv.dim or None
    inside = {"GINEConv": "lin", "NNConv": "nn", "HEATConv": "edge_attr_emb"}.get(kind, "lin_edge")
    if isinstance(getattr(conv, inside, None), nn.Module):
        weights = (getattr(part, "weight", None) for part in getattr(conv, inside).modules())
        first = next((weight for weight in weights if isinstance(weight, torch.Tensor)), None)
        return 0 if first is None or is_lazy(first) or first.dim() != 2 else first.shape[1]
    is_taken = "edge_attr" in conv.inspector.get_flat_param_names(["message"]) and not hasattr(conv, "lin_edge")
    is_known = type(conv).__module__.startswith(PYG) and kind != "GINEConv"
    return 0 if is_taken and not is_known else None


def is_lazy(weight: Any) -> bool:
    """Whether a weight has no size before the first forward, as those of layers with -1 input columns."""
    return isinstance(weight, UninitializedParameter)


def names_taken(conv: nn.Module) -> list[str]:
    """Names that message, aggregate and update take; one may have a type in one of them and none in another."""
    return [param.name for method in ("message", "aggregate", "update") for param in conv.inspector.get_params(method)]


def needs_relations(conv: nn.Module, name: str) -> bool:
    return name in TYPED and getattr(conv, "num_relations", 2) > 1


def needs_attributes(conv: nn.Module, name: str) -> bool:
    return name in NEEDS_ATTRIBUTES and num_edge_columns(conv) is not None


def _reduction(conv: nn.Module) -> str:
    return "sum" if conv.aggr in ("add", "sum") else "mean"


def _sums(conv: nn.Module) -> bool:
    return conv.aggr in ("add", "sum", "mean")


def _attends(conv: nn.Module) -> bool:
    return any(type(part).__name__ == "SoftmaxAggregation" for part in conv.modules()) or bool(
        getattr(conv, "attention", False))


def _num_exchanges(conv: nn.Module, name: str) -> int:
    if name == "MixHopConv":
        return max(conv.powers)
    if name == "GatedGraphConv":
        return conv.num_layers
    if name in OF_TABLES:
        return len(conv.in_channels)
    return conv.K if name in ("SGConv", "TAGConv", "SSGConv", "APPNP") else 1


def _check_options(conv: nn.Module, what: str) -> None:
    if conv.flow != "source_to_target":
        raise ConfigError(f"{what} can't be distributed with flow={conv.flow!r}: a rank holds the edges into its "
                          "nodes; reverse the edges and use source_to_target")
    if conv.decomposed_layers > 1 or conv.explain:
        raise ConfigError(f"{what} can't be distributed while it is decomposed or explained; switch that off")
    for part in conv.modules():
        if is_aggregation(part) and type(part).__name__ not in AGGREGATIONS:
            raise ConfigError(f"{what} can't be distributed with {type(part).__name__}, which is not known to give "
                              f"the same for neighbors in any order; use one of {', '.join(AGGREGATIONS)}")


def is_aggregation(module: nn.Module) -> bool:
    return type(module).__module__.startswith(PYG + "nn.aggr")


def _check_known(conv: nn.Module, name: str, what: str) -> None:
    if name == "APPNP" and conv.dropout > 0:
        raise ConfigError(f"{what} can't be distributed with dropout, which it applies to normalized weights; "
                          "apply dropout to the rows before it instead")
    if name == "SimpleConv" and conv.combine_root == "self_loop":
        raise ConfigError(f"{what} can't be distributed with combine_root='self_loop'; use combine_root='sum'")


def _check_own(conv: nn.Module, what: str) -> None:
    # A user's class must read sources only in `propagate`, by names that distinguish sources from destinations.
    taken = set(names_taken(conv))
    found = sorted(taken & {"edge_index", "edge_index_j", "adj_t"})
    if found:
        raise ConfigError(f"{what} can't be distributed: its message or update takes {found[0]}, and its numbers "
                          "are valid on one rank only; pass what it needs as rows, and take them as NAME_j")
    in_messages = set(conv.inspector.get_param_names("message")) | set(conv.inspector.get_param_names("aggregate"))
    twice = sorted(name for name in in_messages if name + "_j" in taken)
    if twice:
        raise ConfigError(f"{what} can't be distributed: its message takes both {twice[0]} and {twice[0]}_j; "
                          "pass the same rows to propagate once more, under another name")
    if conv.inspector.implements("edge_update"):
        raise ConfigError(f"{what} can't be distributed: it has an edge_update of its own; compute in message instead")
