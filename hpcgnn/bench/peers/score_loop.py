"""This module trains for all peers' drivers of a race: the same stack, loss, optimizer and clock around a peer's own
batches. A driver prints one line of JSON: its evaluations, and peak bytes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.bench.peers.epoch_loop import ConvolutionMaker, PeerStack, evaluate, peak_bytes
from hpcgnn.bench.race.curve import Point
from hpcgnn.bench.race.settings import PeerSettings


class BlockStack(PeerStack):
    """Stacks the same layers over a batch, whose every layer has a graph of its own."""

    def forward_batch(self, blocks: list, h: torch.Tensor) -> torch.Tensor:
        """Map rows of a batch's inputs to logits; blocks are those of the layers, the input's first."""
        for layer, (convolution, block) in enumerate(zip(self.convolutions, blocks, strict=True)):
            h = convolution(block, F.dropout(h, self.dropout, self.training))
            if layer < len(self.norms):
                h = torch.relu(self.norms[layer](h))
        return h


@dataclass(frozen=True)
class PeerGraph:
    """Holds the arrays of a driver.

    Attributes
    ----------
    indptr, indices : CSR by destination, (num_nodes + 1,) int64, (num_edges,) int32
    rows : (num_nodes, num_features) float32
    labels : (num_nodes,) int64
    masks : dict split -> (num_nodes,) bool
    num_classes : int
    """

    indptr: np.ndarray
    indices: np.ndarray
    rows: torch.Tensor
    labels: torch.Tensor
    masks: dict[str, torch.Tensor]
    num_classes: int

    @property
    def train_nodes(self) -> torch.Tensor:
        """Return the ids of the training nodes, int64."""
        return self.masks["train"].nonzero()[:, 0]


# Yields the loss of every batch of an epoch; the model is in training.
Losses = Callable[[BlockStack], Iterator[torch.Tensor]]


def read_graph(path: str) -> PeerGraph:
    """Read what `epoch_work.export_arrays` has written."""
    with np.load(path) as archive:
        arrays = dict(archive)
    return PeerGraph(arrays["indptr"], arrays["indices"], torch.from_numpy(arrays["features"]),
                     torch.from_numpy(arrays["labels"]).long(),
                     {split: torch.from_numpy(arrays[f"{split}_mask"]) for split in ("train", "val", "test")},
                     int(arrays["num_classes"]))


class Alone:
    """Serves as the processes of a training, where there is one."""

    rank = 0

    def agree(self, seconds: float) -> float:
        """Return the most that any process has measured."""
        return seconds

    def sent_bytes(self) -> int:
        """Return the bytes that all processes have sent in training."""
        return 0


ALONE = Alone()

def drive(make_graph: Callable, make_convolution: ConvolutionMaker,
          make_losses: Callable[[PeerGraph, object, PeerSettings], Losses], processes: Alone = ALONE) -> None:
    """Train as the command line says, ARRAYS.npz SETTINGS.json, and print the result.

    Parameters
    ----------
    make_graph : callable(indptr, indices, model) -> graph      the whole one, for evaluations
    make_losses : callable(arrays, graph, settings) -> Losses
    processes : Alone, or what knows the others
    """
    settings = PeerSettings(**json.loads(sys.argv[2]))
    torch.manual_seed(settings.seed)
    np.random.seed(settings.seed)      # noqa: NPY002  (loaders draw from it)
    arrays = read_graph(sys.argv[1])
    graph = make_graph(arrays.indptr, arrays.indices, settings.model)
    dims = [arrays.rows.shape[1], *[settings.hidden] * (settings.layers - 1), arrays.num_classes]
    model = BlockStack(settings, dims, make_convolution)
    points, peak = train(model, graph, arrays, make_losses(arrays, graph, settings), settings, processes)
    if processes.rank == 0:
        print(json.dumps({"points": [asdict(point) for point in points], "peak_bytes": peak}))


def train(model: BlockStack, graph, arrays: PeerGraph, losses: Losses, settings: PeerSettings,
          processes: Alone = ALONE) -> tuple[list[Point], int]:
    """Return the evaluations, and the peak bytes of training.

    The clock stands still in evaluations, which compute the whole graph; peak bytes are those before the first one.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    points, seconds, updates, peak = [], 0.0, 0, 0
    for epoch in range(1, settings.epochs + 1):
        model.train()
        started = time.perf_counter()
        for loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
        seconds += processes.agree(time.perf_counter() - started)
        peak = peak if points else peak_bytes()
        if settings.is_evaluated(epoch) or seconds > settings.seconds:
            scores = evaluate(model, graph, arrays.rows, arrays.labels, arrays.masks)
            points.append(Point(epoch, updates, seconds, processes.sent_bytes(), *scores))
        if seconds > settings.seconds:
            break
    return points, peak
