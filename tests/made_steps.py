"""Trainings in steps whose clusters are the same on any number of ranks: consecutive ids."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from hpcgnn.steps.clusters import Clusters

NODES_A_CLUSTER = 10


def share_clusters(monkeypatch, nodes_a_cluster: int = NODES_A_CLUSTER, inside: float = 1.0) -> None:
    """Have sessions take clusters of global ids, which are said to hold a share of all arcs."""
    def cut(comm, graph, stored, exchange, seed):
        count = comm.allreduce(graph.node_id.max() // nodes_a_cluster + 1, MPI.MAX)
        inner, halo = np.split(graph.node_id // nodes_a_cluster, [graph.num_inner])
        return Clusters(inner, halo, count, inside)

    monkeypatch.setattr("hpcgnn.steps.clusters.Clusters.cut", cut)
    monkeypatch.setattr("hpcgnn.steps.clusters.ROWS_A_CLUSTER", nodes_a_cluster)


def dense_gradients(dataset, model, weights, is_batch, num_steps, layers, kept=None):
    """Return loss and gradients in float64 of a step whose other rows are constants: a dense product a layer, in which
    rows outside of the batch carry no gradient. With `kept`, a dict that this updates, no neighbor does, and layers
    read their neighbors there as steps before this one have left them, at first zeros.
    """
    import torch

    target = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    adjacency = torch.zeros(dataset.num_nodes, dataset.num_nodes, dtype=torch.float64)
    adjacency[target, dataset.indices] = 1
    degree = adjacency.sum(1)
    if model == "gcn":
        adjacency += torch.eye(dataset.num_nodes, dtype=torch.float64)
        factor = (degree + 1) ** -0.5
        adjacency = factor[:, None] * adjacency * factor
    else:
        adjacency /= degree.clamp(min=1)[:, None]
    weights = {name: value.detach().double().requires_grad_() for name, value in weights.items()}
    inside = torch.from_numpy(is_batch)[:, None]
    h = torch.from_numpy(np.asarray(dataset.features, np.float64))
    for layer in range(layers):
        if layer:
            h = torch.where(inside, torch.relu(h), torch.relu(h).detach())
        own = adjacency.diagonal()[:, None] if model == "gcn" else 0.0
        read = h
        if layer and kept is not None:
            kept[layer] = torch.where(inside, h.detach(), kept.get(layer, torch.zeros_like(h)))
            read = kept[layer]
        summed = adjacency @ read + (0 if kept is None else own * (h - h.detach()))
        z = summed @ weights[f"convolutions.{layer}.weight_neighbor"].T
        if model == "sage":
            z = z + h @ weights[f"convolutions.{layer}.weight_self"].T
        h = z + weights[f"convolutions.{layer}.bias"]
    chosen = is_batch & dataset.train_mask
    loss = torch.nn.functional.cross_entropy(h[chosen], torch.from_numpy(dataset.labels[chosen].astype(np.int64)),
                                             reduction="sum") * num_steps / dataset.train_mask.sum()
    loss.backward()
    return loss.item(), {name: value.grad for name, value in weights.items()}
