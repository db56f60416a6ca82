"""Peers' batches in a race: the clock around them, and that a batch of everything has the loss of the whole graph."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "jobs"))

from measurements.race import score_loop
from measurements.race.contestants import PeerSettings
from measurements.race.score_loop import BlockStack, PeerGraph
from measurements.race.together import Alone, Together

EVERYTHING = PeerSettings("sage", 1, 1.0, batch=12, fanout=(50, 50, 50))     # every neighbor, and one batch


class OneWeight(torch.nn.Module):
    """A model whose logits are a multiple of its rows, whatever the batch."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, graph, rows):
        return rows * self.scale


@pytest.fixture
def any_gap(monkeypatch):
    monkeypatch.setattr(score_loop, "LEAST_GAP", 0.0)


@pytest.mark.parametrize("limit, epochs", [(60.0, [1, 2, 3, 4, 5]), (0.0, [1])])
def test_a_peers_clock_counts_batches_and_ends_it_after_the_limit(limit, epochs, any_gap):
    rows, labels, mask = torch.eye(2), torch.tensor([0, 1]), torch.tensor([True, True])
    arrays = PeerGraph(None, None, rows, labels, {"train": mask, "val": mask, "test": mask}, 2)
    settings = PeerSettings("sage", 5, limit, batch=2)

    def losses(model):
        for _ in range(3):
            yield torch.nn.functional.cross_entropy(model(None, rows), labels)

    points, peak = score_loop.train(OneWeight(), None, arrays, losses, settings, Alone())
    assert [point.epoch for point in points] == epochs and points[-1].updates == 3 * epochs[-1]
    assert points[-1].val_score == 1.0 and points[-1].sent_bytes == 0 and peak > 0


@pytest.mark.parametrize("batch, within", [(1, [(0.25, 2), (0.5, 4), (0.75, 6)]), (3, [(0.33, 1), (0.67, 2)]),
                                           (8, [])])
def test_an_epoch_of_batches_is_evaluated_within_too(batch, within, any_gap):
    rows, labels = torch.eye(2).repeat(4, 1), torch.arange(2).repeat(4)
    every = torch.ones(8, dtype=torch.bool)
    arrays = PeerGraph(None, None, rows, labels, {"train": every, "val": every, "test": every}, 2)
    num_batches = -(-8 // batch)

    def losses(model):
        for _ in range(num_batches):
            assert model.training
            yield torch.nn.functional.cross_entropy(model(None, rows), labels)

    points, _ = score_loop.train(OneWeight(), None, arrays, losses, PeerSettings("sage", 2, 60.0, batch=batch),
                                 Alone())
    assert [(point.epoch, point.updates) for point in points] == [
        *within, (1, num_batches), *((1 + epoch, num_batches + updates) for epoch, updates in within),
        (2, 2 * num_batches)]
    assert [point.seconds for point in points] == sorted(point.seconds for point in points)


@pytest.mark.parametrize("limit, epochs", [(60.0, [0.25, 0.75, 1.25, 1.75, 2]), (300.0, [0.25, 2]),
                                           (1.0, [0.25, 0.5, 0.75]),
                                           (float("inf"), [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2])])
def test_short_epochs_are_evaluated_less_often_but_at_the_end_of_a_training(monkeypatch, limit, epochs):
    """A quarter of an epoch takes 0.4 seconds, and evaluations are at least a hundredth of a finite limit apart."""
    rows, labels, every = torch.eye(2).repeat(4, 1), torch.arange(2).repeat(4), torch.ones(8, dtype=torch.bool)
    arrays = PeerGraph(None, None, rows, labels, {"train": every, "val": every, "test": every}, 2)

    class Clock:
        seconds = 0.0

        def __init__(self, processes):
            pass

        def start(self):
            pass

        def stop(self):
            self.seconds += 0.4

    def losses(model):
        for _ in range(4):
            yield torch.nn.functional.cross_entropy(model(None, rows), labels)

    monkeypatch.setattr(score_loop, "Clock", Clock)
    points, _ = score_loop.train(OneWeight(), None, arrays, losses, PeerSettings("sage", 2, limit, batch=2), Alone())
    assert [point.epoch for point in points] == epochs


def test_a_peer_ends_with_a_score_that_is_enough_within_an_epoch_too(any_gap):
    rows, labels, every = torch.eye(2).repeat(4, 1), torch.arange(2).repeat(4), torch.ones(8, dtype=torch.bool)
    arrays = PeerGraph(None, None, rows, labels, {"train": every, "val": every, "test": every}, 2)

    def losses(model):
        for _ in range(8):
            yield torch.nn.functional.cross_entropy(model(None, rows), labels)

    for enough, epochs in ((1.0, [0.25]), (1.1, [0.25, 0.5, 0.75, 1])):
        settings = PeerSettings("sage", 1, 60.0, batch=1, enough=enough)
        points, _ = score_loop.train(OneWeight(), None, arrays, losses, settings, Alone())
        assert [point.epoch for point in points] == epochs


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_a_trimmed_batch_of_pyg_gives_its_nodes_the_logits_of_the_untrimmed_one(model):
    if importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    from measurements.race import pyg_batches

    # Node 0 is the batch; 1 and 2 are its neighbors, 3 is one of 1, and 4 one of 3.
    edges = torch.tensor([[1, 2, 3, 4], [0, 0, 1, 3]])

    class Batch:
        edge_index, num_nodes, num_sampled_nodes, num_sampled_edges = edges, 5, [1, 2, 1, 1], [2, 1, 1]

    stack = BlockStack(PeerSettings("sage", 1, 1.0), [4, 8, 8, 3], lambda kind, *dims:
                       pyg_batches.make_convolution(model, *dims)).eval()
    rows, graphs = torch.randn(5, 4), pyg_batches.layer_graphs(Batch, 3)
    assert [graph.num_rows for graph in graphs] == [5, 4, 3]
    if model == "sage":      # GCN's degrees are those of the batch, as in PyTorch Geometric's own trimming
        torch.testing.assert_close(stack.forward_batch(graphs, rows)[0], stack(edges, rows)[0])
    del Batch.num_sampled_nodes      # as torch-sparse samples
    torch.testing.assert_close(stack.forward_batch(pyg_batches.layer_graphs(Batch, 3), rows), stack(edges, rows))


def small_graph():
    """20 nodes with three in-neighbors each, of which a dozen is for training."""
    rng = np.random.default_rng(0)
    return PeerGraph(np.arange(0, 61, 3), rng.integers(0, 20, 60).astype(np.int32), torch.randn(20, 4),
                     torch.from_numpy(rng.integers(0, 3, 20)), {"train": torch.arange(20) < 12}, 3)


def whole_loss(stack, graph, arrays):
    """The loss of full-graph training."""
    mask = arrays.masks["train"]
    return torch.nn.functional.cross_entropy(stack(graph, arrays.rows)[mask], arrays.labels[mask])


def parts_of(size):
    """The processes that share the training nodes out, as loaders see them."""
    return [Alone()] if size == 1 else [Together(rank, size) for rank in range(size)]


def mean_of_losses(make_losses, arrays, graph, stack, num_processes, settings=EVERYTHING):
    """The mean over the processes of the loss of the one batch that each has."""
    settings = replace(settings, batch=settings.batch // num_processes)
    losses = [loss for part in parts_of(num_processes) for loss in make_losses(arrays, graph, settings, part)(stack)]
    assert len(losses) == num_processes
    return torch.stack(losses).mean()


def sample_everything(sampler, seed, *unused, **none):
    """Return all in-neighbors of all hops, as pyg-lib would where it draws more than there are."""
    from torch_geometric.sampler import SamplerOutput

    node, arcs, hop, counts = seed.tolist(), [], seed.tolist(), ([len(seed)], [])
    for _ in sampler.num_neighbors.get_mapped_values():
        found = [(source, target) for target in hop
                 for source in sampler.row[sampler.colptr[target]:sampler.colptr[target + 1]].tolist()]
        hop = [source for source in dict.fromkeys(source for source, _ in found) if source not in node]
        node, arcs = node + hop, arcs + found
        counts[0].append(len(hop))
        counts[1].append(len(found))
    place = {one: index for index, one in enumerate(node)}
    row, col = (torch.tensor([place[arc[side]] for arc in arcs]) for side in (0, 1))
    return SamplerOutput(torch.tensor(node), row, col, None, None, *counts)


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_a_batch_of_pygs_sampler_that_draws_everything_has_the_loss_of_the_whole_graph(num_processes, monkeypatch):
    if importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    from measurements.race import pyg_batches, pyg_sampler
    from torch_geometric.sampler import NeighborSampler

    from hpcgnn.bench.peers import pyg_epoch

    monkeypatch.setattr(NeighborSampler, "_sample", sample_everything)
    arrays = small_graph()
    stack = BlockStack(EVERYTHING, [4, 8, 8, 3], pyg_batches.make_convolution).eval()
    loss = mean_of_losses(pyg_sampler.make_losses, arrays, None, stack, num_processes)
    graph = pyg_epoch.make_graph(arrays.indptr, arrays.indices, "sage")
    torch.testing.assert_close(loss, whole_loss(stack, graph, arrays))


@pytest.mark.parametrize("kind", ["sampler", "labor"])
@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_a_batch_of_dgl_that_draws_everything_has_the_loss_of_the_whole_graph(num_processes, model, kind):
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("dgl is not installed")
    from measurements.race import dgl_sampler

    from hpcgnn.bench.peers import dgl_epoch

    arrays = small_graph()
    settings = replace(EVERYTHING, model=model, kind=kind)
    graph = dgl_sampler.make_graph(arrays.indptr, arrays.indices, model)
    stack = BlockStack(settings, [4, 8, 8, 3], dgl_epoch.make_convolution).eval()
    loss = mean_of_losses(dgl_sampler.make_losses, arrays, graph, stack, num_processes, settings)
    torch.testing.assert_close(loss, whole_loss(stack, graph, arrays))


def test_one_step_of_all_nodes_has_the_loss_of_the_whole_graph_and_steps_hold_each_node_once():
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("dgl is not installed")
    from measurements.race import dgl_uniform

    from hpcgnn.bench.peers import dgl_epoch

    arrays = small_graph()
    graph = dgl_uniform.make_graph(arrays.indptr, arrays.indices, "sage")
    stack = BlockStack(EVERYTHING, [4, 8, 8, 3], dgl_epoch.make_convolution).eval()
    loss = mean_of_losses(dgl_uniform.make_losses, arrays, graph, stack, 1)
    torch.testing.assert_close(loss, whole_loss(stack, graph, arrays))
    model = Seeing()
    losses = list(dgl_uniform.make_losses(arrays, graph, replace(EVERYTHING, batch=3), Alone())(model))
    assert len(losses) == 4 and sorted(model.seen) == sorted(arrays.rows[:, 0].tolist())


def test_dropout_of_the_input_rows_is_apart_from_that_of_hidden_rows():
    rows, kept = torch.ones(200, 4), []

    class Looking(torch.nn.Module):
        def forward(self, graph, h):
            kept.append((h != 0).float().mean().item())
            return torch.ones_like(h)

    stack = BlockStack(replace(EVERYTHING, dropout=0.5, input_dropout=0.0), [4, 4, 4], lambda *_: Looking()).train()
    stack.norms[0] = torch.nn.Identity()
    stack(None, rows)
    assert kept[0] == 1.0 and 0.3 < kept[1] < 0.7


class Seeing(torch.nn.Module):
    """A stack that keeps the first columns of the batches that it sees."""

    def __init__(self):
        super().__init__()
        self.map, self.seen = torch.nn.Linear(4, 3), []

    def forward_batch(self, blocks, h):
        self.seen += h[:, 0].tolist()
        return self.map(h)


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_clusters_are_shared_out_and_every_process_takes_every_step(num_processes, monkeypatch):
    if importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed")
    from measurements.race import pyg_clusters

    monkeypatch.setattr(pyg_clusters, "ROWS_A_CLUSTER", 4)
    arrays, settings, model = small_graph(), replace(EVERYTHING, batch=1), Seeing()      # one cluster a batch
    arrays.masks["train"] = torch.arange(20) < 5        # most clusters have no training node
    losses = [list(pyg_clusters.make_losses(arrays, None, settings, part)(model)) for part in parts_of(num_processes)]
    assert all(torch.isfinite(loss) for part in losses for loss in part)
    if num_processes == 1:
        assert all(loss > 0 for loss in losses[0]) and set(model.seen) < set(arrays.rows[:, 0].tolist())
    else:
        assert len({len(part) for part in losses}) == 1 and any(loss == 0 for part in losses for loss in part)
        assert set(model.seen) == set(arrays.rows[:, 0].tolist())
