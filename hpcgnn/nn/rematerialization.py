"""Layers that run again in the backward pass instead of keeping the halo rows they read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from hpcgnn.graph.local_graph import LocalGraph


def rematerialized(graph: LocalGraph, layer: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    """Collective: run `layer`, storing only `h` (num_inner, dim); backward recomputes the rest.

    Backward runs the layer at the same place in the pass, so that the same rows arrive, with the same random draws.
    Halo rows are sent twice. Reference: Mostafa, MLSys 2022 (SAR: sequential aggregation and rematerialization).
    """
    if graph.halo_spans is None or not torch.is_grad_enabled():
        return layer(h)
    position = graph.current_pass

    def run(rows: torch.Tensor) -> torch.Tensor:
        graph.go_back(position)
        return layer(rows)

    # Draws are keyed by their place in the pass, so torch's generator needs no saving.
    return checkpoint(run, h, use_reentrant=False, preserve_rng_state=False)
