"""Training on a device whose memory is apart from the host's, without a GPU: what lies on the wrong side is found.

Kernels compute nothing where nothing else is said: a run of each setting takes well under a second.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import long_but
from cuda.conftest import need_compiler
from cuda.emulation import EmulatedBackend
from cuda.separate_memory import separate_memory
from mpi4py import MPI
from reference_partition import with_relations
from stand_in_device import WatchedComm
from training_setup import easy_graph, losses, shards_of, train, write_once

import hpcgnn
from hpcgnn.config import MODELS
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import KernelError
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.ops.aggregation import add_product, from_csr
from hpcgnn.steps import history
from hpcgnn.training.checkpoint import read_checkpoint

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
ON_DEVICES = [model for model in MODELS if model not in RELATIONAL]
GRAPH = "synthetic:nodes=240,mean_degree=4,classes=3,features=6,signal=2"     # two clusters on each of two ranks
SHORT = {"epochs": 2, "eval_every": 2, "hidden": 8, "heads": 2, "checkpoint_every": 2}
ALONE = [{"model": "gcn", "precision": "bf16"}, {"model": "gat", "steps": "2", "history": "8"},
         {"steps": "2", "history": "4", "store_activations": 2},
         {"clusters": 6, "between_clusters": True, "batch_size": 2}, {"quantize": "degree-aware", "model": "gin"},
         {"steps": "rows:2", "average": 0.5}]
# Each model, method, precision, number of steps and kind of history, and pairs that keep something of their own.
SETTINGS = [
    *(pytest.param({"model": model, "precision": precision, "steps": steps},
                   marks=() if model == "gcn" else pytest.mark.long) for model, precision, steps in zip(
        ON_DEVICES, ("fp32", "bf16", "fp16", "bf16", "fp32", "fp16", "fp32", "bf16", "fp16", "fp32", "bf16"),
        ("2", "1", "2", "rows:2", "1", "2", "2", "1", "2", "2", "1"), strict=False)),
    *long_but((0, 1, 3, 4, 5, 6, 9, 10, 11, 13, 15, 16), [
    {"model": "gcn", "precision": "fp16", "sums": "half"}, {"method": "bns", "share": 0.4, "precision": "auto"},
    {"model": "gat", "method": "sancus"},
    {"method": "sylvie", "epochs": 3, "descent_window": 1, "most_motion": 9.0, "model": "gat"},
    {"method": "adaqp", "period": 1}, {"method": "pipegcn", "smoothing": 0.5, "precision": "bf16"},
    {"method": "uniform", "bits": 2, "predict": "previous", "exchange": "alltoallv", "send_share": 0.4,
     "code": "rotated"},
    {"method": "uniform", "bits": 1, "code": "rotated"}, {"model": "gat", "rematerialize": True},
    {"method": "uniform", "bits": 8, "steps": "2", "history": "8", "model": "gat"},
    {"steps": "2", "history": "4", "precision": "bf16", "store_activations": 8},
    {"steps": "auto", "history": "bf16"}, {"model": "gcn", "store_activations": 2, "repeat": 2},
    {"quantize": "uniform", "model": "gat"},
    {"quantize": "degree-quant", "model": "gin"}, {"quantize": "degree-aware", "model": "sage", "epoch_rows": "all"},
    {"clusters": 6, "early_stop": 1, "eval_every": 1}]),
]


shards = shards_of(lambda: easy_graph(spec=GRAPH))


@pytest.fixture(autouse=True)
def _compiler():
    need_compiler()


def train_apart(shards, out, backend=None, **settings):
    """Collective: train on the device; metrics, the run, and the device."""
    with separate_memory(backend) as device:
        comm = WatchedComm(MPI.COMM_WORLD, device.streams)
        _, metrics, run = train(comm, shards, out, device="cuda", **{**SHORT, **settings})
    return metrics, run, device


def test_what_lies_on_the_wrong_side_is_found():
    with separate_memory():
        rows, index = torch.zeros(3, 2, device="cuda"), torch.arange(3)
        assert (str(rows.device), str((rows + 1).device), str(rows.cpu().device)) == ("cuda:0", "cuda:0", "cpu")
        assert torch.equal((rows + torch.tensor(2.0)).cpu(), torch.full((3, 2), 2.0))      # a number may come from here
        for wrong in (lambda: rows.index_copy_(0, index, rows), lambda: rows + torch.ones(2),
                      lambda: torch.cat([rows, torch.ones(3, 2)]), lambda: rows.index_select(0, index),
                      lambda: torch.mm(rows, torch.ones(2, 2)), lambda: torch.ones(3, 2).add_(rows)):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                wrong()
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            rows.numpy()
        with pytest.raises(KernelError, match="found a tensor on cpu, while kernels run on cuda"):
            add_product(from_csr(np.array([0, 1]), np.zeros(1, np.int32), 1), rows[:1], None,
                        torch.zeros(1, 2))


def test_values_gradients_and_waits_are_those_of_a_device():
    with separate_memory() as device:
        layer = torch.nn.Linear(3, 2).to("cuda")
        expected = torch.nn.Linear(3, 2)
        expected.load_state_dict({name: value.cpu() for name, value in layer.state_dict().items()})
        rows = torch.arange(12.0).view(4, 3)
        layer(rows.to("cuda")).square().sum().backward()
        expected(rows).square().sum().backward()
        assert isinstance(layer.weight, torch.nn.Parameter) and str(layer.weight.grad.device) == "cuda:0"
        assert torch.equal(layer.weight.grad.cpu(), expected.weight.grad)
        device.waits.clear()
        layer.weight.sum().item()
        assert list(device.waits.values()) == [1]


def test_a_backward_of_the_host_may_have_been_first():
    torch.ones(2, requires_grad=True).sum().backward()      # torch's engine counts the devices once
    with separate_memory(), torch.inference_mode(False):
        rows = torch.ones(2, device="cuda").requires_grad_()
        rows.sum().backward()
        assert str(rows.grad.device) == "cuda:0"


@pytest.mark.parallel([2])
@pytest.mark.parametrize("settings", SETTINGS, ids=json.dumps)
def test_no_training_of_two_ranks_mixes_the_memories(shards, shared_path, settings):
    check_training(shards, shared_path, settings)


@pytest.mark.parametrize("settings", long_but((1, 3, 4), ALONE), ids=json.dumps)
def test_no_training_of_one_rank_mixes_the_memories(shards, shared_path, settings):
    check_training(shards, shared_path, settings)


def check_training(shards, shared_path, settings):
    metrics, _, device = train_apart(shards, shared_path / "run", **settings)
    assert metrics and np.isfinite(losses(metrics)).all() and device.backend.launches
    assert not device.unordered      # sums that differ from run to run


def test_an_index_that_stays_on_the_host_is_found(shards, shared_path, monkeypatch):
    monkeypatch.setattr(history, "on_device", lambda index, rows: torch.from_numpy(np.asarray(index)))
    with pytest.raises(RuntimeError, match="index_copy_"):
        train_apart(shards, shared_path / "run", steps="2")


def assert_trains_as_the_host(shards, folder, settings, rtol=1e-5, names=("loss",)):
    """Collective: the device has the host's numbers, and no sum that differs from run to run; the metrics of both."""
    _, expected, _ = train(MPI.COMM_WORLD, shards, folder / "host", **{**SHORT, **settings})
    found, _, device = train_apart(shards, folder / "device", EmulatedBackend(device_type="cuda"), **settings)
    for name in names:
        mine, others = ([one[name] for one in metrics if name in one] for metrics in (found, expected))
        np.testing.assert_allclose(mine, others, rtol=rtol, atol=0)
        assert mine
    assert not device.unordered
    return found, expected


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [{"model": "gcn", "steps": "2"},
                                      {"steps": "2", "history": "8", "store_activations": 8}], ids=json.dumps)
def test_steps_on_a_device_train_as_on_the_host(shards, shared_path, settings):
    assert_trains_as_the_host(shards, shared_path, settings)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [
    {"num_bases": 2, "method": "uniform", "bits": 2}, {"num_bases": 0, "steps": "2"}, {"num_blocks": 1, "layers": 3},
    {"num_bases": 3, "precision": "bf16", "hidden": 16}], ids=json.dumps)
def test_relations_train_on_a_device_as_on_the_host(shared_path, settings):
    shards = write_once(MPI.COMM_WORLD, with_relations(easy_graph(spec=GRAPH)), shared_path / "typed")
    assert_trains_as_the_host(shards, shared_path, {"model": "rgcn", **settings},
                              2e-3 if "precision" in settings else 1e-5)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings", [
    {"model": "rgcn", "decoder": "complex", "link_loss": "bce", "adversarial_temperature": 1.0}, {"decoder": "mlp"},
    {"model": "gcn", "decoder": "dot"}, {"model": "rgcn", "steps": "2"}], ids=json.dumps)
def test_links_train_on_a_device_as_on_the_host(shared_path, settings):
    graph = load_source(GRAPH, SourceOptions(hold_out=(0.1, 0.1)))
    held_out = np.column_stack([graph.held_out, np.arange(len(graph.held_out)) % 5])      # asks by a relation
    graph = replace(with_relations(graph), held_out=held_out).check()
    shards = write_once(MPI.COMM_WORLD, graph, shared_path / "typed")
    assert_trains_as_the_host(shards, shared_path, {"task": "links", "negatives": 32, **settings}, 1e-4,
                              ("loss", "val_score"))


@pytest.mark.parallel([2])
@pytest.mark.parametrize("settings", [
    {"model": "gcn"}, {"model": "sage", "method": "uniform", "bits": 2}, {"model": "sage", "epoch_rows": "all"},
    {"model": "gcn", "method": "pipegcn", "precision": "bf16"}], ids=json.dumps)
def test_sums_before_sending_train_on_a_device_as_on_the_host(shards, shared_path, settings):
    found, expected = assert_trains_as_the_host(shards, shared_path, {"pre_aggregation": "on", **settings},
                                                2e-3 if "precision" in settings else 1e-5)
    assert [record["sent_bytes_payload"] for record in found] == [record["sent_bytes_payload"] for record in expected]


@pytest.mark.parallel([2])
@pytest.mark.parametrize("settings", [{"steps": "2", "history": "8"}, {"method": "pipegcn", "steps": "1"},
                                      {"quantize": "degree-aware"}], ids=json.dumps)
def test_a_run_goes_on_from_its_checkpoint(shards, shared_path, settings):
    whole, _, _ = train_apart(shards, shared_path / "whole", **settings)
    _, run, _ = train_apart(shards, shared_path / "run", epochs=1, **settings)
    resumed = read_checkpoint(run.folder.checkpoint)
    found, _, _ = train_apart(shards, shared_path / "run", resumed=resumed, **settings)
    assert losses(found).tolist() == losses(whole).tolist()


class OfPyG(torch.nn.Module):
    def __init__(self, convolution):
        super().__init__()
        self.first, self.norm, self.last = convolution(6, 8), torch.nn.BatchNorm1d(8), convolution(8, 3)

    def forward(self, x, edge_index):
        h = torch.nn.functional.dropout(self.norm(self.first(x, edge_index)).relu(), 0.3, self.training)
        return self.last(h, edge_index)


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(12, 8), torch.nn.Linear(16, 3)

    def forward(self, graph, x):
        h = torch.relu(self.first(torch.cat([x, graph.aggregate(graph.halo(x), "mean")], dim=1)))
        return self.last(torch.cat([h, graph.aggregate(graph.halo(h), "mean")], dim=1))


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "own", "own steps"])
def test_models_of_ones_own_train_and_answer(shards, shared_path, name):
    settings = {"steps": "rows:2"} if name == "own steps" else {}
    with separate_memory() as device:
        graph = hpcgnn.open(shards, MPI.COMM_WORLD)
        model = Own() if name.startswith("own") else hpcgnn.distribute(OfPyG(getattr(pyg, name)))
        run = hpcgnn.fit(model, graph, out=shared_path / "run", epochs=2, eval_every=1, device="cuda",
                         optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), **settings)
        run.evaluate()
    assert device.backend.launches
