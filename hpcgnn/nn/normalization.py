"""Normalizations of hidden rows by name. How they are computed is the business of `LocalGraph.activate`."""

from __future__ import annotations

from torch import nn

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm}


def layer_norm_of(norm: nn.Module) -> nn.LayerNorm | None:
    """Return the LayerNorm that `LocalGraph.activate` takes for a module of NORMS, None for the identity."""
    return norm if isinstance(norm, nn.LayerNorm) else None
