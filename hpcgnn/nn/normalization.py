"""Normalizations of hidden rows by name. How they are computed is the business of `LocalGraph.activate`."""

from __future__ import annotations

from torch import nn

NORMS: dict[str, type[nn.Module]] = {"none": nn.Identity, "layer": nn.LayerNorm}


def layer_norm_of(norm: nn.Module) -> nn.LayerNorm | None:
    """What `LocalGraph.activate` takes for an entry of NORMS."""
    return norm if isinstance(norm, nn.LayerNorm) else None
