"""Print how far logits and first gradients of every model are from PyTorch Geometric's in float64: run with mpirun.

    PYTHONPATH=tests mpirun -n 3 python tests/nn/model_table.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from mpi4py import MPI
from reference_models import mean_loss, peer_logits
from reference_partition import random_dataset
from rich.console import Console
from rich.table import Table

from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.nn.models import MODELS, ModelShape, build_model
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.partition.build import build_partition

NUM_NODES, NUM_EDGES, IN, HIDDEN, OUT, NUM_LAYERS = 400, 2000, 32, 16, 5, 4


def open_graph(comm: MPI.Comm, dataset) -> LocalGraph:
    """Collective: this rank's part, nodes dealt out in turn."""
    owner = (np.arange(dataset.num_nodes) % comm.size).astype(np.int32)
    part = build_partition(dataset, owner, comm.rank, comm.size)
    exchange = HaloExchange(comm, ExchangePlan.build(part), UniformBits(32))
    features = exchange.input_rows(torch.from_numpy(part.features))
    return LocalGraph(LocalRows(part.indptr, part.indices, part.node_id, part.in_degree, features), exchange)


def differences(comm: MPI.Comm, dataset, graph: LocalGraph, shape: ModelShape) -> tuple[float, float]:
    """Collective: largest difference of logits, and of gradients, over the largest magnitude of each."""
    torch.manual_seed(1)
    model = build_model(shape)
    reference = build_model(shape)
    reference.load_state_dict(model.state_dict())
    labels, mask = torch.from_numpy(dataset.labels % OUT), torch.from_numpy(dataset.train_mask)
    expected = peer_logits(reference.double(), shape, dataset)
    mean_loss(expected, labels, mask, mask.sum()).backward()

    inner_id = graph.node_id[:graph.num_inner]
    graph.begin_forward(seed=0, epoch=0, is_training=True)
    logits = model(graph, graph.x)
    mean_loss(logits, labels[inner_id], mask[inner_id], mask.sum()).backward()
    off = comm.allreduce((logits - expected[inner_id]).abs().max().item(), MPI.MAX)
    pairs = [(torch.from_numpy(comm.allreduce(mine.grad.double().numpy())), peer.grad)
             for mine, peer in zip(model.parameters(), reference.parameters(), strict=True)]
    largest = max(peer.abs().max().item() for _, peer in pairs)
    return off / expected.abs().max().item(), max((mine - peer).abs().max().item() for mine, peer in pairs) / largest


def main() -> None:
    """Collective: one row a model, printed by rank 0."""
    comm = MPI.COMM_WORLD
    dataset = random_dataset(NUM_NODES, NUM_EDGES, seed=0, directed=True)
    features = np.random.default_rng(0).normal(size=(dataset.num_nodes, IN)).astype(np.float32)
    dataset = replace(dataset, features=features)
    graph, table = open_graph(comm, dataset), Table("model", "logits", "gradients", title=f"ranks: {comm.size}")
    for name in (name for name in MODELS if name not in RELATIONAL):
        off, gradient_off = differences(comm, dataset, graph, ModelShape(name, IN, HIDDEN, OUT, NUM_LAYERS, 0.0))
        table.add_row(name, f"{off:.1e}", f"{gradient_off:.1e}")
    if comm.rank == 0:
        Console().print(table)


if __name__ == "__main__":
    main()
