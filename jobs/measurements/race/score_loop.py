"""Training loop of the drivers of a race: the same stack, loss, optimizer and clock around a peer's batches.

A driver prints one line of JSON: its evaluations, and peak bytes.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from measurements.race.contestants import PeerSettings
from measurements.race.curve import Point, reaches
from measurements.race.together import Alone, join

from hpcgnn.bench.peers.epoch_loop import ConvolutionMaker, PeerStack, evaluate, peak_bytes


class BlockStack(PeerStack):
    """The same layers over a batch, where every layer has its own graph."""

    def forward_batch(self, blocks: list, h: torch.Tensor) -> torch.Tensor:
        """Map rows of a batch's inputs to logits; `blocks` begins at the input's layer."""
        return self.run(blocks, h)


@dataclass(frozen=True)
class PeerGraph:
    """The arrays of a driver."""

    indptr: np.ndarray
    indices: np.ndarray
    rows: torch.Tensor                # (num_nodes, num_features) float32
    labels: torch.Tensor              # (num_nodes,) int64
    masks: dict[str, torch.Tensor]    # dict split -> (num_nodes,) bool
    num_classes: int

    @property
    def train_nodes(self) -> torch.Tensor:
        return self.masks["train"].nonzero()[:, 0]


EVALUATIONS = 4      # evaluations within an epoch of batches
LEAST_GAP = 0.01     # least time between two evaluations, as a share of the seconds that training may take, if limited
# Yields the loss of every batch of an epoch; the model is in training mode.
Losses = Callable[[BlockStack], Iterator[torch.Tensor]]


def read_graph(path: str) -> PeerGraph:
    """Read what `epoch_work.export_arrays` has written."""
    with np.load(path) as archive:
        arrays = dict(archive)
    return PeerGraph(arrays["indptr"], arrays["indices"], torch.from_numpy(arrays["features"]),
                     torch.from_numpy(arrays["labels"]).long(),
                     {split: torch.from_numpy(arrays[f"{split}_mask"]) for split in ("train", "val", "test")},
                     int(arrays["num_classes"]))


def drive(make_graph: Callable, make_convolution: ConvolutionMaker,
          make_losses: Callable[[PeerGraph, object, PeerSettings, Alone], Losses],
          join: Callable[[PeerSettings], Alone] = join) -> None:
    """Train as the command line says, ARRAYS.npz SETTINGS.json, and print the result.

    Parameters
    ----------
    make_graph : callable(indptr, indices, model) -> graph      the whole graph, for evaluations
    make_losses : callable(arrays, graph, settings, processes) -> Losses
    join : callable(settings) -> processes
    """
    settings = PeerSettings(**json.loads(sys.argv[2]))
    processes = join(settings)
    set_seeds(settings.seed)
    arrays = read_graph(sys.argv[1])
    graph = make_graph(arrays.indptr, arrays.indices, settings.model)
    dims = [arrays.rows.shape[1], *[settings.hidden] * (settings.layers - 1), arrays.num_classes]
    model = BlockStack(settings, dims, make_convolution)      # the same in all processes; later draws differ
    set_seeds(processes.seed(settings.seed))
    losses = make_losses(arrays, graph, settings, processes)
    points, peak = train(model, graph, arrays, losses, settings, processes)
    if processes.rank == 0:
        print(json.dumps({"points": [asdict(point) for point in points], "peak_bytes": peak}))
    processes.leave()


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of (n, num_classes) logits and (n,) labels; 0 if n is 0."""
    return F.cross_entropy(logits, labels, reduction="sum") / max(1, len(labels))


def set_seeds(seed: int) -> None:
    """Seed torch and NumPy, from which loaders draw."""
    torch.manual_seed(seed)
    np.random.seed(seed)      # noqa: NPY002


def train(model: BlockStack, graph, arrays: PeerGraph, losses: Losses, settings: PeerSettings,
          processes: Alone) -> tuple[list[Point], int]:
    """Collective: the evaluations, and the peak bytes of the largest process in training.

    Training ends at the limit of epochs or seconds, or with a sufficient score. An epoch of batches is long, so
    EVALUATIONS evaluations are spread over it; short epochs have fewer, since evaluations take most of a race's time
    then. The clock starts in all processes together. It is stopped while the
    first process evaluates the whole graph and the others wait. Peak bytes are taken before the first evaluation.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    clock, points, updates, peak = Clock(processes), list[Point](), 0, 0
    is_enough, least_gap = False, LEAST_GAP * settings.seconds if math.isfinite(settings.seconds) else 0.0
    num_batches = max(1, -(-len(processes.share(arrays.train_nodes)) // settings.batch))
    within = {num_batches * number // EVALUATIONS for number in range(1, EVALUATIONS)} - {0}

    def note(epoch: float) -> None:
        nonlocal peak, is_enough
        peak = peak if points else int(processes.agree(peak_bytes()))
        scores = processes.ask_first(lambda: evaluate(model, graph, arrays.rows, arrays.labels, arrays.masks))
        points.append(Point(epoch, updates, clock.seconds, processes.sent_bytes(), *scores))
        is_enough = reaches(points[-1], settings.enough)
        model.train()

    def is_due() -> bool:
        return not points or clock.seconds - points[-1].seconds >= least_gap

    def is_over() -> bool:
        return is_enough or clock.seconds > settings.seconds

    for epoch in range(1, settings.epochs + 1):
        model.train()
        clock.start()
        for number, loss in enumerate(losses(model), start=1):
            optimizer.zero_grad()
            loss.backward()
            processes.average_gradients(model)
            optimizer.step()
            updates += 1
            if number in within:
                clock.stop()
                if is_due():
                    note(round(epoch - 1 + number / num_batches, 2))
                if is_over():
                    return points, peak
                clock.start()
        clock.stop()
        if is_due() or epoch == settings.epochs or is_over():
            note(epoch)
        if is_over():
            break
    return points, peak


class Clock:
    """Adds up the seconds that the slowest process trains."""

    def __init__(self, processes: Alone):
        self._processes, self._started, self.seconds = processes, 0.0, 0.0

    def start(self) -> None:
        """Collective: go on, in all processes together."""
        self._processes.meet()
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Collective: stand still."""
        self.seconds += self._processes.agree(time.perf_counter() - self._started)
