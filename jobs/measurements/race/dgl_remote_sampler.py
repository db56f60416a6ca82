"""Driver that trains on batches of DGL's NeighborSampler over a network, as DistDGL does.

Each process owns a part of the nodes and their features, draws batches of its own training nodes, and fetches the
features of other nodes that they need.

    PYTHONPATH=jobs RANK=.. WORLD_SIZE=2 MASTER_ADDR=.. MASTER_PORT=.. GLOO_SOCKET_IFNAME=..
        python -m measurements.race.dgl_remote_sampler ARRAYS.npz SETTINGS.json OWNER.npy

Reference: Zheng et al., "DistDGL", IA3 2020. This favors the peer: every process holds all edges, so drawing neighbors
costs no message.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from measurements.race import dgl_sampler
from measurements.race.contestants import PeerSettings
from measurements.race.score_loop import drive
from measurements.race.together import Remote

from hpcgnn.bench.peers import dgl_epoch


def join_hosts(settings: PeerSettings) -> Remote:
    """Collective: the processes that the environment describes."""
    dist.init_process_group("gloo")
    owner = torch.from_numpy(np.load(sys.argv[3]).astype(np.int64))
    return Remote(owner, dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    drive(dgl_sampler.make_graph, dgl_epoch.make_convolution, dgl_sampler.make_losses, join_hosts)
    sys.stdout.flush()
    os._exit(0)      # gloo's threads may wait for each other at the end
