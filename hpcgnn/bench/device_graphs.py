"""A large graph drawn in seconds, on the device whose kernels it is for. Files are read by `hpcgnn.bench.graphs`."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.bench.graphs import SYNTHETIC_DEGREE, Topology

BYTES_A_ARC = 400      # of the rows of 256 columns that products read and write, and of drawing


def arcs_that_fit(num_edges: float, free_bytes: int) -> int:
    """Return `num_edges`, or the most arcs that can be drawn and multiplied in the free memory."""
    return min(round(num_edges), free_bytes // BYTES_A_ARC)


def draw_power_law(num_edges: int, place: str) -> Topology:
    """A directed graph of 20 arcs a node, both of whose degrees follow a power law of exponent 3.

    Each end of an arc is node floor(n u^2) of a random order, u uniform: no communities, so neighbors' rows lie far
    apart. An arc may be drawn twice. Columns ascend within a row.

    Parameters
    ----------
    num_edges : int, 20 at least
    place : str      torch's name of the device that draws
    """
    num_nodes = num_edges // SYNTHETIC_DEGREE
    rng = torch.Generator(place).manual_seed(0)
    order = torch.randperm(num_nodes, generator=rng, device=place)

    def ends() -> torch.Tensor:
        uniform = torch.rand(num_edges, generator=rng, device=place, dtype=torch.float64)
        return order[(uniform.square() * num_nodes).long().clamp_(max=num_nodes - 1)]

    arcs = ends().mul_(num_nodes).add_(ends()).sort().values
    indices = (arcs % num_nodes).to(torch.int32).cpu().numpy()
    degree = torch.bincount(arcs // num_nodes, minlength=num_nodes).cpu().numpy()
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return Topology(f"power-law-{num_edges / 1e6:.3g}M", indptr, indices)
