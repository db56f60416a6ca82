"""Distributed: the base of wrappers that compute a user's own model on a graph in parts."""

from __future__ import annotations

from torch import nn


class Distributed(nn.Module):
    """Computes a user's own `module` on a graph in parts, with the module's weights under their names."""

    module: nn.Module


def plain(model: nn.Module) -> nn.Module:
    """The user's own model inside a Distributed model; any other model unchanged."""
    return model.module if isinstance(model, Distributed) else model


def is_of_hpcgnn(model: nn.Module) -> bool:
    return type(model).__module__.startswith("hpcgnn.nn.")
