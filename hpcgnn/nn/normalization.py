"""Normalizations of hidden rows by name."""

from __future__ import annotations

from torch import nn

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm}


def layer_norm_of(norm: nn.Module) -> nn.LayerNorm | None:
    return norm if isinstance(norm, nn.LayerNorm) else None
