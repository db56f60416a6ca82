"""Weights of built-in models under PyTorch Geometric's names, for its models that compute the same.

Only dropout in training differs: PyTorch Geometric has none on the input features, as with `input_dropout` 0.
"""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.errors import CheckpointError

Weights = dict[str, torch.Tensor]
# Names within a convolution: hpcgnn's to PyTorch Geometric's.
CONVOLUTION_NAMES = {
    "gcn": {"weight_neighbor": "lin.weight", "bias": "bias"},
    "sage": {"weight_neighbor": "lin_l.weight", "bias": "lin_l.bias", "weight_self": "lin_r.weight"},
    "sage-max": {"neighbor.weight": "lin_l.weight", "neighbor.bias": "lin_l.bias", "own.weight": "lin_r.weight"},
    "gin": {"epsilon": "eps", "first.weight": "nn.lins.0.weight", "first.bias": "nn.lins.0.bias",
            "second.weight": "nn.lins.1.weight", "second.bias": "nn.lins.1.bias"},
    "gat": {"weight": "lin.weight", "bias": "bias"},
}
CONVOLUTION_NAMES["jknet"] = CONVOLUTION_NAMES["gcn"]
CLASSES = {"gcn": "GCN", "sage": "GraphSAGE", "sage-max": "GraphSAGE", "gat": "GAT", "gin": "GIN", "jknet": "GCN",
           "sgc": "SGConv"}
WEIGH_ALIKE = ("gcn", "jknet", "sgc")      # models that take edge weights as PyTorch Geometric's do
# Why other models have no class; a model that is not named here is refused without a reason of its own.
LACKING = {"rgcn": "it has RGCNConv, but no model of such convolutions",
           "gcnii": "it has GCN2Conv, but no model of such convolutions",
           "dagnn": "it has no DAGNN", "appnp": "its APPNP is the propagation alone, without the perceptron"}


def pyg_weights(model: str, arguments: dict[str, Any], weights: Weights) -> tuple[str, dict[str, Any], Weights]:
    """The class of torch_geometric.nn that computes the same as a built-in `model` made with `arguments`.

    Returns its name, its arguments, and its weights. Raises CheckpointError: PyTorch Geometric has none.
    """
    if model not in CLASSES:
        reason = LACKING.get(model, "none of its models is known to compute the same")
        raise CheckpointError(f"PyTorch Geometric can't load a {model}: {reason}; export it without --format "
                              "pyg, and read it with hpcgnn.load_model")
    if model == "sgc":
        sizes = {"in_channels": arguments["in_dim"], "out_channels": arguments["out_dim"], "K": arguments["num_layers"]}
        return "SGConv", sizes, {f"lin.{name.removeprefix('linear.')}": tensor for name, tensor in weights.items()}
    if arguments.get("residual"):
        raise CheckpointError(f"PyTorch Geometric can't load this {model}: its models have no residual sums; export it "
                              "without --format pyg, and read it with hpcgnn.load_model")
    _check_sums(model, arguments)
    renamed: Weights = {}
    for name, tensor in weights.items():
        renamed.update(_renamed(model, arguments, name, tensor))
    return CLASSES[model], _arguments(model, arguments), renamed


def _check_sums(model: str, arguments: dict[str, Any]) -> None:
    if model == "gin" and arguments["norm"] != "none" and arguments["num_layers"] > 1:
        raise CheckpointError("PyTorch Geometric can't load this gin: its GIN normalizes between the two maps of a "
                              "convolution too; train with --norm none, or export it without --format pyg")
    if model == "gin" and not arguments["has_wide_sums"]:
        raise CheckpointError("PyTorch Geometric can't load this gin: it was trained in 16 bits and averages its "
                              "neighbors; train with --precision fp32, or export it without --format pyg")


def _arguments(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    own = {"in_channels": arguments["in_dim"], "hidden_channels": arguments["hidden_dim"],
           "num_layers": arguments["num_layers"], "out_channels": arguments["out_dim"],
           "dropout": arguments["dropout"]}
    if arguments["norm"] == "layer" and model != "gin":
        own |= {"norm": "LayerNorm", "norm_kwargs": {"mode": "node"}}     # normalize each row, not the whole graph
    if arguments["norm"] == "batch" and model != "gin":
        own |= {"norm": "BatchNorm"}
    of_model: dict[str, dict[str, Any]] = {"sage-max": {"aggr": "max"}, "gin": {"train_eps": True}}
    more = of_model.get(model, {})
    if model == "gat":
        # Its dropout also masks attention weights; hpcgnn's does not.
        more = {"heads": arguments["heads"], "dropout": 0.0}
    if model == "jknet":
        more = {"jk": {"concat": "cat", "max": "max"}[arguments["jump"]]}
    return {**own, **more}


def _renamed(model: str, arguments: dict[str, Any], name: str, tensor: torch.Tensor) -> Weights:
    """One weight under its new name; the two rows of an attention become two weights."""
    place, _, rest = name.partition(".")
    if place == "last":
        return {f"lin.{rest}": tensor}
    if place == "norms" and arguments["norm"] == "batch":
        number, _, own = rest.partition(".")
        return {f"norms.{number}.module.{own}": tensor}      # it wraps torch's
    if place == "norms":
        return {name: tensor}
    number, _, own = rest.partition(".")
    if model == "gat" and own == "attention":
        heads = arguments["heads"]
        target, source = tensor.reshape(2, 1, heads, -1)
        return {f"convs.{number}.att_dst": target.contiguous(), f"convs.{number}.att_src": source.contiguous()}
    return {f"convs.{number}.{CONVOLUTION_NAMES[model][own]}": tensor}
