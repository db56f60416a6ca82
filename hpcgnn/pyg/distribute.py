"""A stand-in until the room is built: no model is of PyTorch Geometric's kind."""

from __future__ import annotations

from torch import nn


def is_pyg(model: nn.Module) -> bool:
    """Tell whether a model is of PyTorch Geometric's kind."""
    return False


def distribute(model: nn.Module, graph=None) -> nn.Module:
    """Return the model."""
    return model
