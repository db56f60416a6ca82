"""What is known of PyTorch Geometric's convolutions: by which way each gets halo rows, and which are refused and why.

Nothing here runs a model.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hpcgnn.errors import ConfigError

# Their forward takes a pair (source rows, destination rows).
PAIRED = ("SAGEConv", "GraphConv", "GATConv", "GATv2Conv", "TransformerConv", "GINConv", "GINEConv",
          "ResGatedGraphConv", "LEConv", "GeneralConv", "EdgeConv", "GENConv", "CGConv", "FiLMConv", "SimpleConv")
# They take one table of rows, and read sources nowhere but in `propagate`.
PLAIN = ("PNAConv", "ClusterGCNConv", "GatedGraphConv")
# They weigh edges by D^-1/2 (A + I) D^-1/2 and take one table of rows.
NORMALIZED = ("GCNConv", "SGConv", "TAGConv", "SSGConv", "APPNP", "GCN2Conv", "LGConv", "MixHopConv")
SUPPORTED = PAIRED + PLAIN + NORMALIZED
ATTENDING = ("GATConv", "GATv2Conv", "TransformerConv")
# Their sums are linear in the source rows, so that rows scaled by their share keep them unbiased.
LINEAR = ("SAGEConv", "GraphConv", "GINConv", "SimpleConv", "ClusterGCNConv", "GatedGraphConv", *NORMALIZED)

REFUSED = {
    "ChebConv": "its Laplacian needs degrees of both directions of every neighbor; use TAGConv",
    "ARMAConv": "it stacks rows along another dimension; use TAGConv",
    "DynamicEdgeConv": "it looks for neighbors among all nodes anew in every pass; use EdgeConv on a fixed graph",
    "DynamicPointConv": "it looks for neighbors among all nodes anew in every pass",
    "GravNetConv": "it looks for neighbors among all nodes anew in every pass",
    "XConv": "it looks for neighbors among all nodes anew in every pass",
    "SuperGATConv": "it draws edges that are not there among all nodes; use GATv2Conv",
    "GPSConv": "its attention is over all nodes of the graph; use TransformerConv",
    "FusedGATConv": "it takes a sparse matrix in both directions; use GATConv, which has the same weights",
    "CuGraphSAGEConv": "it takes a sparse matrix of one process; use SAGEConv",
    "CuGraphGATConv": "it takes a sparse matrix of one process; use GATConv",
    "RGCNConv": "it needs a type of every edge, which shards don't hold",
    "FastRGCNConv": "it needs a type of every edge, which shards don't hold",
    "RGATConv": "it needs a type of every edge, which shards don't hold",
    "HGTConv": "it needs types of nodes and edges, which shards don't hold",
    "HANConv": "it needs types of nodes and edges, which shards don't hold",
    "HeteroConv": "it needs types of nodes and edges, which shards don't hold",
    "HypergraphConv": "shards hold a graph and no hypergraph",
}
AGGREGATIONS = ("SumAggregation", "MeanAggregation", "MaxAggregation", "MinAggregation", "MulAggregation",
                "VarAggregation", "StdAggregation", "SoftmaxAggregation", "PowerMeanAggregation", "MultiAggregation",
                "DegreeScalerAggregation", "FusedAggregation")
PYG = "torch_geometric."


@dataclass(frozen=True)
class Way:
    """Say how a convolution gets halo rows.

    Attributes
    ----------
    kind : {"pair", "plain", "normalized", "own"}
        at the call, as a pair; in `propagate`; in `propagate`, with normalized edge weights; in `propagate`, for a
        class of the user's
    name : str                          the class that it counts as
    reduction : {"gcn", "mean", "sum"}  how it sums, as methods weigh messages; attention and others count as means
    attends : bool                      it weighs rows by a softmax over them
    is_linear : bool                    its sums are linear in the source rows
    num_exchanges : int                 exchanges of halo rows a forward
    """

    kind: str
    name: str
    reduction: str
    attends: bool
    is_linear: bool
    num_exchanges: int


def is_convolution(module: nn.Module) -> bool:
    """Tell whether a module is PyTorch Geometric's MessagePassing, without importing it."""
    return any(cls.__name__ == "MessagePassing" and cls.__module__.startswith(PYG) for cls in type(module).__mro__)


def way_of(conv: nn.Module, place: str) -> Way:
    """Return how a convolution gets halo rows.

    A class of PyTorch Geometric is known by its name; a subclass that leaves its `forward` alone counts as it. Any
    other class of the user's gets its rows in `propagate`.

    Parameters
    ----------
    place : str      where in the model, for messages

    Raises
    ------
    ConfigError      a convolution that is not known to be right, or an option of it
    """
    known = next(cls for cls in type(conv).__mro__ if cls.__module__.startswith(PYG))
    name, what = type(conv).__name__, f"{type(conv).__name__} at {place}"
    _check_options(conv, what)
    is_own = known.__name__ == "MessagePassing" or any(
        getattr(type(conv), method, None) is not getattr(known, method, None) for method in ("forward", "edge_update"))
    if is_own:
        _check_own(conv, what)
        return Way("own", name, _reduction(conv), False, _sums(conv), 1)
    if known.__name__ not in SUPPORTED:
        reason = REFUSED.get(known.__name__, "hpcgnn does not know it to be right over several ranks")
        raise ConfigError(f"{what} can't be distributed: {reason}")
    _check_known(conv, known.__name__, what)
    name = known.__name__
    kind = "pair" if name in PAIRED else "plain" if name in PLAIN else "normalized"
    is_linear = name in LINEAR and _sums(conv) and not getattr(conv, "project", False)
    reduction = "gcn" if kind == "normalized" and is_normalizing(conv) else _reduction(conv)
    return Way(kind, name, reduction, name in ATTENDING or _attends(conv), is_linear, _num_exchanges(conv, name))


def is_normalizing(conv: nn.Module) -> bool:
    """Tell whether a convolution of NORMALIZED weighs edges itself, as it does unless told not to."""
    return getattr(conv, "normalize", True)


def loop_weight(conv: nn.Module) -> float | None:
    """Return the weight of the self-loops that a convolution of NORMALIZED adds; None where it adds none."""
    if not getattr(conv, "add_self_loops", False):
        return None
    return 2.0 if getattr(conv, "improved", False) else 1.0


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
    return conv.K if name in ("SGConv", "TAGConv", "SSGConv", "APPNP") else 1


def _check_options(conv: nn.Module, what: str) -> None:
    """Check what every convolution may be asked."""
    if getattr(conv, "cached", False):
        raise ConfigError(f"{what} can't be distributed with cached=True, which keeps what belongs to one part; "
                          "hpcgnn keeps the normalized weights anyway, so leave cached away")
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
    """Tell whether a module is one of PyTorch Geometric's aggregations."""
    return type(module).__module__.startswith(PYG + "nn.aggr")


def _check_known(conv: nn.Module, name: str, what: str) -> None:
    if name == "APPNP" and conv.dropout > 0:
        raise ConfigError(f"{what} can't be distributed with dropout, which it applies to normalized weights; drop "
                          "rows before it instead")
    if name == "SimpleConv" and conv.combine_root == "self_loop":
        raise ConfigError(f"{what} can't be distributed with combine_root='self_loop'; use combine_root='sum'")
    if name == "FiLMConv" and conv.num_relations > 1:
        raise ConfigError(f"{what} can't be distributed with several relations, since shards hold no type of an edge")


def _check_own(conv: nn.Module, what: str) -> None:
    """Check that a class of the user's reads sources in `propagate` only, and by names that can be told apart."""
    taken = set(conv.inspector.get_flat_param_names(["message", "aggregate", "update"]))
    found = sorted(taken & {"edge_index", "edge_index_j", "adj_t"})
    if found:
        raise ConfigError(f"{what} can't be distributed: its message or update takes {found[0]}, whose numbers are "
                          "those of one rank; pass what it needs as rows, and take them as NAME_j")
    twice = sorted(name for name in taken if name + "_j" in taken)
    if twice:
        raise ConfigError(f"{what} can't be distributed: its message or update takes {twice[0]} beside {twice[0]}_j; "
                          "pass the same rows to propagate once more, under another name")
    if conv.inspector.implements("edge_update"):
        raise ConfigError(f"{what} can't be distributed: it has an edge_update of its own; compute in message instead")
