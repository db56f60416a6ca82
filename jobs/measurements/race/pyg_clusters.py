"""Driver of the race: batches of PyTorch Geometric's ClusterLoader."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy.sparse
import torch
from measurements.race.contestants import PeerSettings
from measurements.race.pyg_batches import edge_index_of, make_convolution, make_graph
from measurements.race.score_loop import BlockStack, Losses, PeerGraph, drive, mean_loss
from measurements.race.together import Alone
from torch.utils.data import SubsetRandomSampler
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader

from hpcgnn.partition.order import cluster_rows

ROWS_A_CLUSTER = 100


class MetisClusters(ClusterData):
    """Clusters from hpcgnn's METIS; PyTorch Geometric's own METIS comes with other packages."""

    def __init__(self, data: Data, cluster: torch.Tensor):
        self._cluster = cluster
        super().__init__(data, int(cluster.max()) + 1, log=False)

    def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
        return self._cluster


def make_losses(arrays: PeerGraph, graph, settings: PeerSettings, processes: Alone) -> Losses:
    """The loader over this process's clusters; a batch has about `settings.batch` training nodes."""
    num_nodes = len(arrays.labels)
    arcs = scipy.sparse.csr_matrix((np.ones(len(arrays.indices), np.int8), arrays.indices, arrays.indptr),
                                   shape=(num_nodes, num_nodes))
    cluster = torch.from_numpy(cluster_rows(arcs, ROWS_A_CLUSTER, settings.seed, "the graph")).long()
    data = Data(x=arrays.rows, y=arrays.labels, is_train=arrays.masks["train"], edge_index=edge_index_of(arrays))
    clusters = MetisClusters(data, cluster)
    train_share = float(arrays.masks["train"].float().mean())
    loader = ClusterLoader(clusters, batch_size=max(1, math.ceil(settings.batch / (train_share * ROWS_A_CLUSTER))),
                           sampler=SubsetRandomSampler(processes.share(torch.arange(len(clusters))).tolist()))

    def losses(model: BlockStack) -> Iterator[torch.Tensor]:
        for batch in loader:
            if batch.is_train.any() or processes.size > 1:      # all processes take part in every step
                logits = model.forward_batch([batch.edge_index] * settings.layers, batch.x)
                yield mean_loss(logits[batch.is_train], batch.y[batch.is_train])

    return losses


if __name__ == "__main__":
    drive(make_graph, make_convolution, make_losses)
