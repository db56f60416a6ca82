"""Layers that are run again in the backward pass, instead of keeping the halo rows that they read.

How halo rows come is not known here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from hpcgnn.graph.local_graph import LocalGraph


def rematerialized(graph: LocalGraph, layer: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    """Collective: return layer(h), of which a rematerializing graph's training pass keeps h only.

    Backward calls the layer again where it stood in the pass, so that the same rows come, with the same draws of
    rounding and dropout. Its halo rows cross twice.

    Parameters
    ----------
    layer : function       from inner rows to inner rows, by `graph.halo` and any step that autograd knows
    h : (num_inner, dim)

    Reference: Mostafa, MLSys 2022 (SAR: sequential aggregation and rematerialization).
    """
    if graph.halo_spans is None or not torch.is_grad_enabled():
        return layer(h)
    position = graph.current_pass

    def run(rows: torch.Tensor) -> torch.Tensor:
        graph.go_back(position)
        return layer(rows)

    # Draws are keyed by their meaning, so torch's generator has no part in them.
    return checkpoint(run, h, use_reentrant=False, preserve_rng_state=False)
