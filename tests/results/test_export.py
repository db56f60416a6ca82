"""An exported model gives the answers of the run on one process without MPI, as PyG computes them, or is refused."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from fork_server import served
from mpi4py import MPI
from parallel_run import clean_environment
from reference_models import edge_index_of, peer_logits
from safetensors.torch import load_file, save_file
from torch import nn
from training_setup import easy_graph, train, write_once

import hpcgnn
from hpcgnn.errors import CheckpointError, ConfigError
from hpcgnn.nn.models import MODELS, ModelShape, build_model, settings_of
from hpcgnn.nn.names import RELATIONAL
from hpcgnn.results.export import exported, find_sizes, write_exported
from hpcgnn.results.plain import BUILT_IN, ModelRecord
from hpcgnn.results.pyg_weights import CLASSES, LACKING, pyg_weights

NAMES = [*(name for name in MODELS if name not in RELATIONAL), "jknet max", "gcn of 1", "gat of 1"]


def random_model(name, norm="layer"):
    """A built-in model with random weights, its shape and its record."""
    model, _, more = name.partition(" ")
    shape = ModelShape(model, 12, 8, 4, 1 if more == "of 1" else 3, 0.5, norm, heads=2,
                       jump="max" if more == "max" else "concat", num_relations=5)
    torch.manual_seed(5)
    made = build_model(shape)
    with torch.no_grad():
        for own in made.parameters():
            own.add_(0.1 * torch.randn_like(own))
        for place, own in made.named_buffers():
            own.copy_(torch.rand_like(own) + 0.5 if place.endswith("var") else own)
    arguments = {own: getattr(shape, own) for own in settings_of(MODELS[model])}
    return made, shape, ModelRecord(BUILT_IN, model, arguments, "easy", {})


def answers_of(model, dataset, *weight):
    weight = [None if one is None else torch.from_numpy(one) for one in weight]
    with torch.no_grad():
        return model(torch.from_numpy(dataset.features), edge_index_of(dataset), *weight).numpy()


@pytest.mark.parametrize("name, norm", [*((name, "layer") for name in NAMES),
                                        *((name, "batch") for name in NAMES if name != "sgc")])
def test_a_plain_model_answers_as_pyg_does(tmp_path, name, norm):
    model, shape, record = random_model(name, norm)
    model.eval()
    dataset, path = easy_graph(), tmp_path / "m.safetensors"
    write_exported(path, record, model.state_dict())
    plain, exact = hpcgnn.load_model(path), model.double()
    weight = np.random.default_rng(0).uniform(0.1, 3, dataset.num_edges).astype(np.float32)
    for own in (None, weight) if getattr(model, "takes_edge_weights", True) else (None,):
        with torch.no_grad():
            expected = peer_logits(exact, shape, dataset, edge_weight=own).numpy()
        np.testing.assert_allclose(answers_of(plain, dataset, own), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name, norm", [(name, norm) for name in NAMES if name.split()[0] in CLASSES
                                        for norm in (("none",) if name == "gin" else ("layer", "batch"))
                                        if (name, norm) != ("sgc", "batch")])
def test_pygs_own_model_loads_the_weights_and_answers_alike(tmp_path, name, norm):
    model, _, record = random_model(name, norm)
    dataset, path = easy_graph(), tmp_path / "m.safetensors"
    expected = answers_of(hpcgnn.results.plain.PlainModel(model).eval(), dataset)
    kind, arguments, weights = pyg_weights(record.model, record.arguments, model.state_dict())
    peer = getattr(pyg, kind)(**arguments)
    peer.load_state_dict(weights, strict=True)
    np.testing.assert_allclose(answers_of(peer.eval(), dataset), expected, atol=1e-5, rtol=1e-4)
    write_exported(path, replace(record, kind="pyg", model=kind, arguments=arguments), weights)
    read = hpcgnn.load_model(path)
    assert type(read) is getattr(pyg, kind) and not read.training
    np.testing.assert_array_equal(answers_of(read, dataset), answers_of(peer, dataset))


@pytest.mark.parametrize("name", [*(name for name in MODELS if name not in CLASSES), "gin"])
def test_a_model_that_pyg_does_not_have_is_refused_with_the_reason(name):
    model, _, record = random_model(name)
    reason = LACKING.get(name, "normalizes between the two maps")
    with pytest.raises(CheckpointError, match=f"PyTorch Geometric can't load .*{reason[:20]}"):
        pyg_weights(name, record.arguments, model.state_dict())


def test_residual_sums_are_refused_for_pyg():
    model, _, record = random_model("sage")
    with pytest.raises(CheckpointError, match="can't load this sage: its models have no residual sums"):
        pyg_weights("sage", {**record.arguments, "residual": True}, model.state_dict())


def test_a_new_model_is_refused_until_a_class_is_named():
    with pytest.raises(CheckpointError, match="can't load a newest: none of its models is known to compute the same;"):
        pyg_weights("newest", {}, {})


def test_gradients_and_loops_and_repeated_arcs_are_those_of_the_cleaned_graph():
    model, _, _ = random_model("gcn")
    plain, x = hpcgnn.results.plain.PlainModel(model).eval(), torch.randn(5, 12, requires_grad=True)
    edges = torch.tensor([[0, 1, 2, 4, 1], [1, 2, 2, 0, 2]])
    plain(x, edges).square().sum().backward()
    again = x.detach().clone().requires_grad_()
    kind, arguments, weights = pyg_weights("gcn", random_model("gcn")[2].arguments, model.state_dict())
    peer = getattr(pyg, kind)(**arguments).eval()
    peer.load_state_dict(weights)
    peer(again, torch.tensor([[0, 1, 4], [1, 2, 0]])).square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad, atol=1e-5, rtol=1e-4)
    for edges, words in ((torch.tensor([[0], [5]]), "nodes from 0 to 5, and x has rows 0 to 4"),
                         (torch.zeros(3, 2).long(), "expected")):
        with pytest.raises(ConfigError, match=words):
            plain(x, edges)


def test_weights_of_arcs_count_and_those_of_repeated_arcs_add_up():
    torch.manual_seed(1)
    x, edges = torch.randn(6, 12), torch.tensor([[0, 1, 0, 4, 1, 5, 2], [1, 2, 1, 0, 0, 3, 2]])
    weight = torch.tensor([0.5, 2.0, 1.5, 3.0, 0.25, 0.0, 9.0])
    model, shape, record = random_model("gcn")
    kind, arguments, weights = pyg_weights("gcn", record.arguments, model.state_dict())
    peer = getattr(pyg, kind)(**arguments).eval()
    peer.load_state_dict(weights)
    plain = hpcgnn.results.plain.PlainModel(model).eval()
    torch.testing.assert_close(plain(x, edges, weight), peer(x, edges[:, :-1], weight[:-1]), atol=1e-5, rtol=1e-4)
    sage = build_model(replace(shape, model="sage", num_layers=1))
    matrix = np.zeros((6, 6))
    np.add.at(matrix, (edges[1, :-1], edges[0, :-1]), weight[:-1])
    mean = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1e-30)
    own = sage.convolutions[0]
    with torch.no_grad():
        expected = torch.from_numpy(mean).float() @ x @ own.weight_neighbor.T + x @ own.weight_self.T + own.bias
        found = hpcgnn.results.plain.PlainModel(sage).eval()(x, edges, weight)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(ConfigError, match="takes no edge weights"):
        hpcgnn.results.plain.PlainModel(random_model("sage-max")[0])(x, edges, weight)
    with pytest.raises(ConfigError, match=r"edge_weight has shape \(3,\), expected \(7,\)"):
        plain(x, edges, weight[:3])


class ReadsEdges(nn.Module):
    """Sums, over the edges into a node, a weight of the relation times an attribute times the source's row."""

    def forward(self, graph, x):
        source, target = graph.edge_index
        factor = torch.tensor([1.0, 10.0])[graph.edge_type] * graph.edge_attr[:, 1]
        return torch.zeros_like(x).index_add_(0, target, factor[:, None] * x[source])


def test_edges_with_another_relation_or_attribute_are_not_repeated_ones():
    x, edges = torch.randn(4, 2), torch.tensor([[0, 1, 1, 1, 1, 3], [2, 0, 0, 0, 0, 3]])
    attr = torch.tensor([[1.0, 2.0], [3.0, 4.0], [3.0, 4.0], [3.0, 5.0], [3.0, 4.0], [0.0, 9.0]])
    relation = torch.tensor([1, 0, 1, 0, 0, 1])      # the fifth edge is the second one again, the sixth a loop
    plain = hpcgnn.results.plain.PlainModel(ReadsEdges())
    expected = torch.zeros(4, 2)
    expected[2], expected[0] = 20 * x[0], (4 + 40 + 5) * x[1]
    torch.testing.assert_close(plain(x, edges, edge_attr=attr, edge_type=relation), expected)
    graph = hpcgnn.results.plain.graph_of(x, edges, torch.arange(1.0, 7.0), attr, relation)
    assert sorted(graph.edge_weight.tolist()) == [1, 3, 4, 2 + 5]
    for named, complaint in [({"edge_attr": attr[:, 0]}, r"edge_attr has shape \(6,\), expected \(6, num_edge"),
                             ({"edge_type": relation[1:]}, r"edge_type has shape \(5,\), expected \(6,\)"),
                             ({"edge_type": relation.float()}, "edge_type has type torch.float32, expected integers")]:
        with pytest.raises(ConfigError, match=complaint):
            plain(x, edges, **named)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_found_in_the_weights(name):
    _, shape, _ = random_model(name)
    odd = replace(shape, in_dim=13, out_dim=6)
    weights = build_model(odd).state_dict()
    assert find_sizes(lambda a, b: build_model(replace(shape, in_dim=a, out_dim=b)), weights) == (13, 6)
    assert find_sizes(lambda a, b: build_model(replace(shape, in_dim=a, out_dim=b, hidden_dim=16)), weights) == (
        None if "hidden_dim" in settings_of(MODELS[name]) else (13, 6))


@pytest.fixture
def run(shared_path):
    """A small run of two layers."""
    shards = write_once(MPI.COMM_SELF, easy_graph(), shared_path / "shards")
    train(MPI.COMM_SELF, shards, shared_path / "run", epochs=12)
    return shared_path / "run"


def test_a_runs_record_says_what_was_trained(run, tmp_path):
    record, weights = exported(run)
    assert (record.model, record.dataset, record.seed, record.kind) == ("gcn", "synthetic", 0, BUILT_IN)
    assert record.arguments == {"in_dim": 12, "hidden_dim": 8, "out_dim": 4, "num_layers": 2, "dropout": 0.5,
                                "norm": "layer", "input_dropout": -1.0, "residual": False}
    assert record.score["val_score"] > 0.5 and record.settings["epochs"] == 12
    path = tmp_path / "m.safetensors"
    write_exported(path, record, weights)
    assert hpcgnn.load_model(path).record == record
    assert load_file(path).keys() == weights.keys()


def test_loading_needs_no_mpi(run, tmp_path):
    path = tmp_path / "m.safetensors"
    write_exported(path, *exported(run))
    program = (f"import hpcgnn, sys, torch\nmodel = hpcgnn.load_model({str(path)!r})\n"
               "model(torch.zeros(3, 12), torch.tensor([[0], [1]]))\n"
               "assert 'mpi4py' not in sys.modules and 'torch_geometric' not in sys.modules")
    ended = subprocess.run(served(["-c", program]), capture_output=True, text=True, env=clean_environment())
    assert ended.returncode == 0, ended.stderr




class Plain(nn.Module):
    """A model of a user's own, on a LocalGraph."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 5), nn.Linear(5, 4)

    def forward(self, graph, x):
        return self.last(graph.aggregate(graph.halo(self.first(x)), "mean"))


def test_own_models_are_loaded_into_what_is_given(tmp_path):
    path, dataset = tmp_path / "m.safetensors", easy_graph()
    for kind, model in (("own", Plain()), ("pyg", pyg.GraphSAGE(12, 8, 2, 4))):
        record = ModelRecord("own", f"mine:{type(model).__name__}", None, "easy", {})
        write_exported(path, record, model.state_dict())
        with pytest.raises(ConfigError, match=r"a model of your own; make it and pass it"):
            hpcgnn.load_model(path)
        again = type(model)() if kind == "own" else pyg.GraphSAGE(12, 8, 2, 4)
        expected = model.eval() if kind == "pyg" else hpcgnn.results.plain.PlainModel(model).eval()
        np.testing.assert_array_equal(answers_of(hpcgnn.load_model(path, model=again), dataset),
                                      answers_of(expected, dataset))
        with pytest.raises(CheckpointError, match="does not fit the Linear"):
            hpcgnn.load_model(path, model=nn.Linear(2, 2))


def test_files_that_are_no_exports_are_refused(tmp_path):
    path, weights = tmp_path / "m.safetensors", {"a": torch.zeros(2)}
    record = asdict(ModelRecord("own", "a:B", None, "easy", {}))
    cases = [(None, "that hpcgnn export has not written; read it with"), ({"hpcgnn": "{"}, "has a record that"),
             ({"hpcgnn": json.dumps({**record, "version": 9})}, "has version 9"),
             ({"hpcgnn": json.dumps({**record, "model": 3})}, "with a model that is no str"),
             ({"hpcgnn": json.dumps({**record, "kind": "pyg", "model": "Sequential"})}, "a model of your own")]
    for metadata, words in cases:
        save_file(weights, path, metadata)
        with pytest.raises((CheckpointError, ConfigError), match=words):
            hpcgnn.load_model(path)
    path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match="can't be read as a safetensors file"):
        hpcgnn.load_model(path)
    with pytest.raises(CheckpointError, match="can't be read"):
        hpcgnn.load_model(tmp_path / "none.safetensors")


def test_a_quantized_run_is_not_exported_as_floats(shared_path):
    shards = write_once(MPI.COMM_SELF, easy_graph(), shared_path / "shards")
    train(MPI.COMM_SELF, shards, shared_path / "run", quantize="uniform", epochs=2)
    with pytest.raises(CheckpointError, match="write its integers with hpcgnn quantize"):
        exported(shared_path / "run")
