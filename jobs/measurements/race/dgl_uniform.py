"""Driver of the race: each step has the subgraph of nodes drawn uniformly, in DGL.

An epoch deals all nodes to its steps. A convolution sums over a node's neighbors inside the step; the number of these
neighbors is the node's degree.

Reference: Wei et al., "Communication-free Sampling and 4D Hybrid Parallelism for Scalable Mini-batch GNN Training"
(ScaleGNN), 2026, draws such steps; its parallel products are not rebuilt here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from measurements.race.contestants import PeerSettings
from measurements.race.dgl_sampler import make_graph
from measurements.race.score_loop import BlockStack, Losses, PeerGraph, drive, mean_loss
from measurements.race.together import Alone

from hpcgnn.bench.peers import dgl_epoch
from hpcgnn.bench.peers.dgl_import import import_dgl

dgl = import_dgl()


def make_losses(arrays: PeerGraph, graph, settings: PeerSettings, processes: Alone) -> Losses:
    """Steps of this process's share of the nodes, which are dealt again every epoch."""
    nodes, is_train = processes.share(torch.arange(len(arrays.labels))), arrays.masks["train"]
    steps = max(1, round(len(processes.share(arrays.train_nodes)) / settings.batch))
    draws = torch.Generator().manual_seed(processes.seed(settings.seed))

    def losses(model: BlockStack) -> Iterator[torch.Tensor]:
        for chosen in nodes[torch.randperm(len(nodes), generator=draws)].chunk(steps):
            step, own = dgl.node_subgraph(graph, chosen), is_train[chosen]
            logits = model.forward_batch([step] * settings.layers, processes.fetch(arrays.rows, chosen))
            yield mean_loss(logits[own], arrays.labels[chosen][own])

    return losses


if __name__ == "__main__":
    drive(make_graph, dgl_epoch.make_convolution, make_losses)
