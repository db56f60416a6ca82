"""Driver of the race: batches of PyTorch Geometric's NeighborLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from measurements.race.contestants import PeerSettings
from measurements.race.pyg_batches import edge_index_of, layer_graphs, make_convolution, make_graph
from measurements.race.score_loop import BlockStack, Losses, PeerGraph, drive
from measurements.race.together import Alone
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader


def make_losses(arrays: PeerGraph, graph, settings: PeerSettings, processes: Alone) -> Losses:
    """The loader over this process's training nodes, shuffled again every epoch."""
    # NeighborLoader's list of neighbors begins at the batch, the list in the settings at the input.
    data = Data(x=arrays.rows, y=arrays.labels, edge_index=edge_index_of(arrays))
    loader = NeighborLoader(data, list(settings.fanout[::-1]), input_nodes=processes.share(arrays.train_nodes),
                            batch_size=settings.batch, shuffle=True)

    def losses(model: BlockStack) -> Iterator[torch.Tensor]:
        for batch in loader:
            logits = model.forward_batch(layer_graphs(batch, settings.layers), batch.x)[:batch.batch_size]
            yield F.cross_entropy(logits, batch.y[:batch.batch_size])

    return losses


if __name__ == "__main__":
    drive(make_graph, make_convolution, make_losses)
