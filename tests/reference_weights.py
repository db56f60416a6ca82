"""Weights of arcs: drawn, put into a part by global ids, and their dense float64 matrices from the definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.halo import HaloExchange, weighted_degree_of
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import Reach, nearest_first
from hpcgnn.exchange.sender import Wire
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows, Prefixes
from hpcgnn.partition.build import build_partition


def draw_weights(dataset, seed=7) -> np.ndarray:
    """(num_edges,) float32 beside the dataset's indices, some of them 0."""
    weight = np.random.default_rng(seed).uniform(0.1, 3, dataset.num_edges).astype(np.float32)
    weight[::11] = 0
    return weight


def weigh_part(part, dataset, weight):
    """The part with the weights of its rows' arcs, found by their global ids."""
    known = {}
    for v in range(dataset.num_nodes):
        for e in range(dataset.indptr[v], dataset.indptr[v + 1]):
            known[int(dataset.indices[e]), v] = weight[e]
    row_id = part.node_id
    target = np.repeat(part.inner_id, np.diff(part.indptr))
    of_part = [known[int(u), int(v)] for u, v in zip(row_id[part.indices], target, strict=True)]
    return replace(part, edge_weight=np.array(of_part, np.float32))


def dense_weighted(dataset, weight, reduction) -> np.ndarray:
    """(num_nodes, num_nodes) float64. sum: W. mean: W with each row over its sum. gcn: D^-1/2 (W + I) D^-1/2, D = the
    row's sum + 1.
    """
    n = dataset.num_nodes
    matrix = np.zeros((n, n))
    target = np.repeat(np.arange(n), np.diff(dataset.indptr))
    matrix[target, dataset.indices] = weight.astype(np.float64)
    total = matrix.sum(axis=1)
    if reduction == "mean":
        return matrix / np.where(total > 0, total, 1)[:, None]
    if reduction == "gcn":
        return (matrix + np.eye(n)) / np.sqrt(np.outer(total + 1, total + 1))
    return matrix


def open_weighted(comm, dataset, owner, weight, num_hops=None, bits=32, rematerializes=False):
    """Collective: this rank's graph and exchange over weighted arcs, in every way that a session opens them."""
    part, reach = weigh_part(build_partition(dataset, owner, comm.rank, comm.size), dataset, weight), None
    if num_hops is not None:
        part, reach = nearest_first(part, Reach.measure(comm, part, ExchangePlan.build(part), num_hops))
    exchange = HaloExchange(comm, ExchangePlan.build(part), UniformBits(bits), Wire(by_peer=rematerializes),
                            reach=reach)
    features = exchange.input_rows(torch.from_numpy(part.features))
    rows = LocalRows(part.indptr, part.indices, part.node_id, part.in_degree, features, part.num_nodes_global,
                     part.edge_weight, weighted_degree_of(exchange, part))
    return LocalGraph(rows, exchange, Prefixes(reach.num_within) if reach else None), exchange
