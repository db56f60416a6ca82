"""What a program's own model is called inside the one that computes it on a graph in parts."""

from __future__ import annotations

from torch import nn


class Distributed(nn.Module):
    """A model that computes `module`, a program's own, on a graph in parts, with its weights under its names."""

    module: nn.Module


def plain(model: nn.Module) -> nn.Module:
    """The program's own model, where `model` computes it on a graph in parts."""
    return model.module if isinstance(model, Distributed) else model


def is_of_hpcgnn(model: nn.Module) -> bool:
    return type(model).__module__.startswith("hpcgnn.nn.")
