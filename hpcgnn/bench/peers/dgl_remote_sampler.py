"""Trains on batches of DGL's NeighborSampler as DistDGL does: each process owns a part of the nodes and their features,
draws batches of its own training nodes, and fetches the features of the others that they need.

    RANK=.. WORLD_SIZE=2 MASTER_ADDR=.. MASTER_PORT=.. GLOO_SOCKET_IFNAME=..
        python -m hpcgnn.bench.peers.dgl_remote_sampler ARRAYS.npz SETTINGS.json OWNER.npy

Reference: Zheng et al., "DistDGL", IA3 2020. Kinder to the peer than the original: every process holds all arcs, so
that drawing neighbors costs no message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hpcgnn.bench.peers import dgl_epoch
from hpcgnn.bench.peers.dgl_sampler import DataLoader, NeighborSampler, dgl, make_graph
from hpcgnn.bench.peers.score_loop import BlockStack, Losses, PeerGraph, drive
from hpcgnn.bench.peers.together import Together
from hpcgnn.bench.race.settings import PeerSettings


def main() -> None:
    """See the module."""
    dist.init_process_group("gloo")
    together = Together(torch.from_numpy(np.load(sys.argv[3]).astype(np.int64)))
    register_optimizer_step_pre_hook(together.sum_gradients)

    def make_losses(arrays: PeerGraph, graph, settings: PeerSettings) -> Losses:
        dgl.seed(settings.seed + together.rank)
        torch.manual_seed(settings.seed)      # all begin with the same weights
        counts = torch.bincount(together.owner[arrays.train_nodes], minlength=together.size)
        own = arrays.train_nodes[together.owner[arrays.train_nodes] == together.rank]
        loader = DataLoader(graph, own[:int(counts.min())].to(graph.idtype), NeighborSampler(list(settings.fanout)),
                            batch_size=settings.batch, shuffle=True)

        def losses(model: BlockStack) -> Iterator[torch.Tensor]:
            for inputs, nodes, blocks in loader:
                logits = model.forward_batch(blocks, together.fetch(arrays.rows, inputs))
                yield F.cross_entropy(logits, arrays.labels[nodes])

        return losses

    drive(make_graph, dgl_epoch.make_convolution, make_losses, together)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)      # gloo's threads may wait for each other at the end
