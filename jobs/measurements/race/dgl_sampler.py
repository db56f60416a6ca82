"""Driver of the race: batches of DGL's NeighborSampler, or of its LaborSampler.

LABOR draws neighbors of a batch's nodes together, so that fewer different ones are read (Balin and Catalyurek, 2023).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from measurements.race.contestants import PeerSettings
from measurements.race.score_loop import BlockStack, Losses, PeerGraph, drive
from measurements.race.together import Alone

from hpcgnn.bench.peers import dgl_epoch
from hpcgnn.bench.peers.dgl_import import import_dgl

dgl = import_dgl()
from dgl.dataloading import DataLoader, LaborSampler, NeighborSampler  # noqa: E402  (needs what import_dgl prepares)


def make_graph(indptr: np.ndarray, indices: np.ndarray, model: str):
    # 64-bit ids: with 32-bit ids, DGL 2.1 fails to make a CSR of a block on several threads.
    return dgl_epoch.make_graph(indptr, indices, model).long()


def make_losses(arrays: PeerGraph, graph, settings: PeerSettings, processes: Alone) -> Losses:
    """The loader over this process's training nodes, shuffled again every epoch; the loader draws in its threads."""
    dgl.seed(processes.seed(settings.seed))
    sampler = (LaborSampler if settings.kind == "labor" else NeighborSampler)(list(settings.fanout))
    loader = DataLoader(graph, processes.share(arrays.train_nodes).to(graph.idtype), sampler,
                        batch_size=settings.batch, shuffle=True)

    def losses(model: BlockStack) -> Iterator[torch.Tensor]:
        for inputs, outputs, blocks in loader:
            logits = model.forward_batch(blocks, processes.fetch(arrays.rows, inputs))
            yield F.cross_entropy(logits, arrays.labels[outputs])

    return losses


if __name__ == "__main__":
    drive(make_graph, dgl_epoch.make_convolution, make_losses)
