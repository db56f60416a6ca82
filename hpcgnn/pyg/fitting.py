"""Checks whether a PyTorch Geometric model can be distributed as a whole, and how its forward is called."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.errors import ConfigError
from hpcgnn.pyg.convolutions import PYG, Way, is_aggregation, is_convolution, num_edge_columns, way_of

OVER_ALL_NODES = ("it is computed over all nodes of the graph, and a rank has only some of them; use BatchNorm, or "
                  "LayerNorm with mode='node'")
ONE_TABLE = "it takes the rows of all types in one table; make a layer for each type, in a ModuleDict"
REFUSED_MODULES = {
    "GraphNorm": OVER_ALL_NODES, "PairNorm": OVER_ALL_NODES, "InstanceNorm": OVER_ALL_NODES,
    "MeanSubtractionNorm": OVER_ALL_NODES, "GraphSizeNorm": OVER_ALL_NODES, "DiffGroupNorm": OVER_ALL_NODES,
    "HeteroBatchNorm": ONE_TABLE, "HeteroLayerNorm": ONE_TABLE,
    "DataParallel": "hpcgnn shares the graph out itself; give the model inside it",
    "DistributedDataParallel": "hpcgnn sums gradients itself; give the model inside it",
    "OptimizedModule": "hpcgnn must reach the convolutions; give the model before torch.compile",
    "SyncBatchNorm": "hpcgnn sums over its own ranks; use BatchNorm1d, which then has the statistics of all ranks",
    "AlphaDropout": "its draws would differ with the number of ranks; use Dropout",
    "FeatureAlphaDropout": "its draws would differ with the number of ranks; use Dropout",
    "Dropout1d": "its draws would differ with the number of ranks; use Dropout",
    "RReLU": "its draws would differ with the number of ranks; use LeakyReLU",
    "InstanceNorm1d": OVER_ALL_NODES, "LazyInstanceNorm1d": OVER_ALL_NODES,
}
# Modules of PyTorch Geometric without messages, row by row or over all ranks; classes that only join others.
ROW_WISE = ("BatchNorm", "LayerNorm", "MessageNorm", "Linear", "MLP", "JumpingKnowledge", "TrimToLayer",
            "HeteroDictLinear", "HeteroJumpingKnowledge")
# They attend to all nodes by sums over nodes, which ForwardPassing sums over the ranks.
LINEAR_ATTENTION = ("PerformerAttention", "PerformerProjection")
JOINING = ("torch_geometric.nn.models.basic_gnn", "torch_geometric.nn.models.deepgcn",
           "torch_geometric.nn.sequential", "torch_geometric.nn.module_dict", "torch_geometric.nn.parameter_dict",
           "torch_geometric.nn.conv.hetero_conv", "torch_geometric.nn.conv.antisymmetric_conv")
OF_TYPES = ("HGTConv", "HANConv", "HeteroConv", "HeteroDictLinear")      # a model that has one takes tables of types


# Arguments that are given each node's number in the source.
INDEX_NAMES = ("node_index", "n_id")
DATA_NAMES = ["data"], ["batch"], ["graph"], ["g"]      # one argument of these names is a torch_geometric.data.Data
EDGE_NAMES = ("edge_weight", "edge_attr", "edge_type")


@dataclass(frozen=True)
class Signature:
    """How a model's forward is called."""

    takes_data: bool                   # takes one torch_geometric.data.Data
    takes_edges: bool = True           # takes (x, edge_index); else rows alone
    edge_names: tuple[str, ...] = ()   # arguments for what edges have: edge_weight, edge_attr, edge_type
    needed: tuple[str, ...] = ()       # those of them without a default
    index_names: tuple[str, ...] = ()  # arguments for the nodes' numbers in the source
    weighs_by_attribute: bool = False  # takes edge weights as the one column of edge_attr, if edges have no attributes
    # None: takes one table of rows. Else takes a dict of tables by type; this ends the names of all arguments.
    dicts: str | None = None


def is_pyg(model: nn.Module) -> bool:
    """Whether a model is called as PyTorch Geometric's models are: with (x, edge_index), rows alone, or data."""
    named = _named_parameters(model)
    first = next(iter(inspect.signature(model.forward).parameters.values()), None)
    needed, has_convolutions = [p for p in named if p.default is p.empty], any(map(is_convolution, model.modules()))
    is_data = has_convolutions and len(needed) == 1      # a model on LocalGraph takes (graph, x)
    if first is None or (first.name == "graph" and not is_data) or "LocalGraph" in str(first.annotation):
        return False
    return (has_convolutions or len(needed) == 1
            or [p.name for p in named[1:2]] == ["edge_index"])


def takes_types(model: nn.Module) -> bool:
    """Whether a forward takes a table for each type: x_dict, HeteroData, or what to_hetero and HeteroConv take."""
    named = _named_parameters(model)
    if [p.name for p in named[:1]] in DATA_NAMES:
        return "HeteroData" in str(named[0].annotation) or any(
            type(part).__name__ in OF_TYPES and type(part).__module__.startswith(PYG) for part in model.modules())
    return _is_made_typed(model) or any(p.name == "x_dict" for p in named[:1])


def _is_made_typed(model: nn.Module) -> bool:
    # HeteroConv takes dicts of any names; a model that to_hetero has made begins with functions `get_dict`.
    graph = getattr(model, "graph", None)
    return type(model).__name__ == "HeteroConv" or (isinstance(graph, torch.fx.Graph) and any(
        getattr(node.target, "__module__", "").startswith(f"{PYG}nn.to_hetero") for node in graph.nodes))


def _named_parameters(model: nn.Module) -> list[inspect.Parameter]:
    parameters = inspect.signature(model.forward).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def ways_of(model: nn.Module) -> dict[str, Way]:
    """Return how each convolution of a model gets halo rows, by its place in the model.

    Raises
    ------
    ConfigError      a part that can't be distributed, by name, with the reason
    """
    ways = {}
    for place, module in model.named_modules():
        if module._compiled_call_impl is not None:  # by module.compile(), which leaves its class
            raise ConfigError(
                f"{type(module).__name__}{f' at model.{place}' if place else ''} can't be distributed: "
                f"{REFUSED_MODULES['OptimizedModule']} or compile()"
            )
        if is_convolution(module):
            ways[place] = way_of(module, f"model.{place}" if place else "model")
        else:
            _check_module(module, f"{type(module).__name__} at model.{place}" if place else type(module).__name__,
                          is_inside=any(not outer or place.startswith(f"{outer}.") for outer in ways))
    if not ways and not is_pyg(model):
        raise ConfigError(f"{type(model).__name__} has no convolution of PyTorch Geometric to distribute; a model "
                          "with forward(graph, x) is trained as it is")
    return ways


def _check_module(module: nn.Module, what: str, is_inside: bool) -> None:
    name, home = type(module).__name__, type(module).__module__
    if name == "LayerNorm" and home.startswith(PYG) and module.mode != "node":
        raise ConfigError(f"{what} can't be distributed with mode='graph': {OVER_ALL_NODES}")
    if name in REFUSED_MODULES and home.startswith((PYG, "torch.")):
        raise ConfigError(f"{what} can't be distributed: {REFUSED_MODULES[name]}")
    if home.startswith("torch.jit"):
        raise ConfigError(f"{what} can't be distributed: hpcgnn must reach the convolutions; give the model before "
                          "torch.jit")
    if name == "GPSConv" and isinstance(getattr(module, "attn", None), nn.MultiheadAttention):
        raise ConfigError(f"{what} can't be distributed with attn_type='multihead': its softmax compares each node "
                          "with all nodes of the graph, and a rank has only some of them; use attn_type='performer', "
                          "which needs only sums over nodes, or TransformerConv")
    if name in ("GPSConv", *LINEAR_ATTENTION):
        return
    if home.startswith(JOINING) or not home.startswith(PYG) or is_inside or name in ROW_WISE:
        return
    if is_aggregation(module) or ".pool" in home:
        raise ConfigError(f"{what} can't be distributed: pooling is over all nodes of the graph, and a rank has only "
                          "some")
    raise ConfigError(f"{what} can't be distributed: hpcgnn does not know it to be right over several ranks")


def signature_of(model: nn.Module) -> Signature:
    """Return how a model's forward is called.

    Raises
    ------
    ConfigError      it needs what shards don't hold
    """
    name, named = type(model).__name__, _named_parameters(model)
    needed = [p.name for p in named if p.default is p.empty]
    dicts = None if not takes_types(model) else "" if _is_made_typed(model) and named else "_dict"
    known = EDGE_NAMES if dicts is None else EDGE_NAMES[:2]
    if needed in DATA_NAMES:
        return Signature(True, edge_names=known, dicts=dicts)
    if named and named[0].kind is named[0].KEYWORD_ONLY:
        raise ConfigError(f"{name}.forward takes {named[0].name} by keyword only, which can't be distributed; let it "
                          "take its rows and edges by position, without * before them")
    names = [p.name for p in named] if named else ["x", "edge_index"]     # Sequential's forward takes *args
    if dicts:
        names, needed = ([one.removesuffix(dicts) for one in some] for some in (names, needed))
    takes_edges = names[1:2] == ["edge_index"]
    if not takes_edges and any(is_convolution(module) for module in model.modules()):
        raise ConfigError(f"{name}.forward takes ({', '.join(names)}), which can't be distributed; let it take "
                          "(x, edge_index), (x_dict, edge_index_dict) or (data)")
    rest = needed[1 + takes_edges:]
    others = [other + (dicts or "") for other in rest if other not in known + INDEX_NAMES]
    if others:
        raise ConfigError(f"{name}.forward needs {', '.join(others)}, which shards don't hold; give it a default")
    edge_names = tuple(one for one in _edge_names(model, names) if one in known) if takes_edges else ()
    return Signature(False, takes_edges, edge_names, tuple(other for other in rest if other in EDGE_NAMES),
                     tuple(other for other in names if other in INDEX_NAMES),
                     "edge_attr" in edge_names and "edge_weight" not in edge_names and _takes_attributes(model), dicts)


def _edge_names(model: nn.Module, names: list[str]) -> tuple[str, ...]:
    # Models of PyTorch Geometric have arguments that not all of them pass on.
    passes = {"edge_weight": getattr(model, "supports_edge_weight", True),
              "edge_attr": getattr(model, "supports_edge_attr", True)}
    if passes["edge_attr"] and type(model).__module__.startswith(PYG):
        passes["edge_attr"] = _takes_attributes(model)
    return tuple(name for name in EDGE_NAMES if name in names and passes.get(name, True))


def _takes_attributes(model: nn.Module) -> bool:
    return any(num_edge_columns(module) is not None for module in model.modules() if is_convolution(module))
