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
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hpcgnn.bench.peers import dgl_epoch, dgl_sampler
from hpcgnn.bench.peers.score_loop import Losses, PeerGraph, drive
from hpcgnn.bench.peers.together import Together
from hpcgnn.bench.race.settings import PeerSettings


def main() -> None:
    """See the module."""
    dist.init_process_group("gloo")
    together = Together(torch.from_numpy(np.load(sys.argv[3]).astype(np.int64)))
    register_optimizer_step_pre_hook(together.sum_gradients)

    def make_losses(arrays: PeerGraph, graph, settings: PeerSettings) -> Losses:
        """Make the loader over this process's training nodes, as many as each has."""
        torch.manual_seed(settings.seed)      # all begin with the same weights
        owner = together.owner[arrays.train_nodes]
        own = arrays.train_nodes[owner == together.rank][:int(torch.bincount(owner, minlength=together.size).min())]
        drawing = replace(settings, seed=settings.seed + together.rank)
        return dgl_sampler.make_losses(arrays, graph, drawing, own, together.fetch)

    drive(dgl_sampler.make_graph, dgl_epoch.make_convolution, make_losses, together)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)      # gloo's threads may wait for each other at the end
