"""Training loop for the libraries that `hpcgnn bench epoch` compares with: DGL and PyG.

Stack, loss and optimizer are the same for all; a driver passes in its library's convolution.

A driver prints one line of JSON: seconds of every epoch, peak bytes, and the test score at the best validation score.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hpcgnn.bench.epoch import EpochSettings
from hpcgnn.bench.timing import wall_seconds

# (model, in, out, whether it is the last layer) -> module with forward(graph, rows).
ConvolutionMaker = Callable[[str, int, int, bool], nn.Module]
HEADS = 4      # of GAT; hidden layers concatenate them, the last one averages them


class PeerStack(nn.Module):
    """Dropout → convolution → LayerNorm → ReLU, as in hpcgnn; the last convolution gives the logits.

    The input rows have a dropout of their own where the settings have `input_dropout`.
    """

    def __init__(self, settings: Any, dims: list[int], make: ConvolutionMaker):
        super().__init__()
        self.dropout, self.input_dropout = settings.dropout, getattr(settings, "input_dropout", settings.dropout)
        self.convolutions = nn.ModuleList(make(settings.model, left, right, layer == len(dims) - 2)
                                          for layer, (left, right) in enumerate(pairwise(dims)))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for dim in dims[1:-1])

    def forward(self, graph, h: torch.Tensor) -> torch.Tensor:
        """Map (num_nodes, num_features) rows to (num_nodes, num_classes) logits."""
        return self.run([graph] * len(self.convolutions), h)

    def run(self, graphs: list, h: torch.Tensor) -> torch.Tensor:
        for layer, (convolution, graph) in enumerate(zip(self.convolutions, graphs, strict=True)):
            h = convolution(graph, F.dropout(h, self.dropout if layer else self.input_dropout, self.training))
            if layer < len(self.norms):
                h = torch.relu(self.norms[layer](h))
        return h


def drive(make_graph: Callable, make_convolution: ConvolutionMaker) -> None:
    """Train on the graph in the file sys.argv[1] (.npz) with the settings in sys.argv[2] (JSON), and print the result.

    `make_graph(indptr, indices, model)` takes a CSR by destination.
    """
    settings = EpochSettings(**json.loads(sys.argv[2]))
    with np.load(sys.argv[1]) as archive:
        arrays = dict(archive)
    torch.manual_seed(settings.seed)
    graph = make_graph(arrays["indptr"], arrays["indices"], settings.model)
    rows, labels = torch.from_numpy(arrays["features"]), torch.from_numpy(arrays["labels"])
    masks = {split: torch.from_numpy(arrays[f"{split}_mask"]) for split in ("train", "val", "test")}
    dims = [rows.shape[1], *[settings.hidden] * (settings.layers - 1), int(arrays["num_classes"])]
    model = PeerStack(settings, dims, make_convolution)
    seconds, test_score = train(model, graph, rows, labels, masks, settings)
    print(json.dumps({"epoch_seconds": seconds, "peak_bytes": peak_bytes(), "test_score": test_score}))


def train(model: nn.Module, graph, rows: torch.Tensor, labels: torch.Tensor, masks: dict[str, torch.Tensor],
          settings: EpochSettings) -> tuple[list[float], float]:
    optimizer, mask = torch.optim.Adam(model.parameters(), lr=settings.lr), masks["train"]
    seconds, scores = [], []

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(graph, rows)[mask], labels[mask]).backward()
        optimizer.step()

    for epoch in range(1, settings.epochs + 1):
        seconds.append(wall_seconds(step))
        if settings.is_evaluated(epoch):
            scores.append(evaluate(model, graph, rows, labels, masks))
    return seconds, max(scores, key=lambda score: score[0])[1]


def evaluate(model: nn.Module, graph, rows: torch.Tensor, labels: torch.Tensor,
             masks: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Validation and test score; 0 where a split is empty."""
    model.eval()
    with torch.no_grad():
        is_right = (model(graph, rows).argmax(1) == labels).float()
    return tuple(is_right[masks[split]].mean().nan_to_num().item() for split in ("val", "test"))


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
