"""Models of PyTorch Geometric with a table for each type of nodes equal the unmodified model on the whole HeteroData,
in answers and in the gradient of every weight, and each type's rows cross once a layer.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from training_setup import losses, random_owner, write_once

import hpcgnn
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.tables import Choices
from hpcgnn.errors import ConfigError, HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.training.trial import try_model

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")
from torch_geometric.data import HeteroData  # noqa: E402

COMM = MPI.COMM_WORLD
COUNTS = {"paper": 40, "author": 25, "venue": 6}
KINDS = {("author", "writes", "paper"): 90, ("paper", "rev_writes", "author"): 80, ("paper", "cites", "paper"): 70,
         ("venue", "has", "paper"): 40, ("paper", "in", "venue"): 30, ("author", "knows", "author"): 30}
CLASSES, COLUMNS = 3, 2
COLUMNS_OF_KINDS = dict.fromkeys(KINDS, COLUMNS)


def hetero(is_weighted=False, has_attributes=False, columns=COLUMNS_OF_KINDS):
    """Papers with labels, authors, and venues without features; edges without loops and duplicates."""
    draw, data = np.random.default_rng(3), HeteroData()
    data["paper"].y = torch.from_numpy(draw.integers(0, CLASSES, COUNTS["paper"]))
    data["paper"].x = torch.nn.functional.one_hot(data["paper"].y, 4) + torch.from_numpy(
        draw.normal(size=(COUNTS["paper"], 4)).astype(np.float32))
    data["author"].x = torch.from_numpy(draw.normal(size=(COUNTS["author"], 5)).astype(np.float32))
    data["venue"].num_nodes = COUNTS["venue"]
    for split in range(3):
        data["paper"][f"{('train', 'val', 'test')[split]}_mask"] = torch.arange(COUNTS["paper"]) % 3 == split
    for kind, count in KINDS.items():
        shape = COUNTS[kind[0]], COUNTS[kind[2]]
        ends = np.unravel_index(draw.permutation(shape[0] * shape[1])[:count], shape)
        data[kind].edge_index = torch.from_numpy(np.stack(ends))[:, (ends[0] != ends[1]) | (kind[0] != kind[2])]
        if is_weighted:
            data[kind].edge_weight = torch.from_numpy(draw.uniform(0.5, 2, data[kind].num_edges).astype(np.float32))
        if has_attributes and kind in columns:
            data[kind].edge_attr = torch.from_numpy(draw.normal(size=(data[kind].num_edges, columns[kind]))).float()
    return data


@pytest.fixture
def opened(open_part, tmp_path):
    """Collective: opened(data, comm=COMM_WORLD) -> the graph that `hpcgnn.open` gives, and this rank's LocalGraph."""
    def make(data, comm=COMM):
        dataset = finish_dataset(given_graph(data, Choices(labels="paper")), SourceOptions())
        part = open_part(comm, dataset, random_owner(dataset, comm.size))
        rows = replace(part.graph.rows, edge_attr=part.part.edge_attr, edge_weight=part.part.edge_weight,
                       weighted_degree=None if part.part.edge_weight is None else
                       part.graph.in_degree.astype(np.float32))
        graph = LocalGraph(rows, part.graph.exchange)
        graph.begin_forward(seed=3, epoch=1, is_training=True)
        whole = write_once(MPI.COMM_SELF, dataset, tmp_path / "shards")
        return hpcgnn.open(whole, MPI.COMM_SELF), graph
    return make


def arguments(data, *names):
    """What the unmodified model is given, in float64."""
    x_dict = {name: data[name].x.double() if "x" in data[name] else torch.ones(COUNTS[name], 1, dtype=torch.float64)
              for name in data.node_types}
    return x_dict, data.edge_index_dict, {f"{name}_dict": {kind: data[kind][name].double() for kind in data.edge_types
                                                         if name in data[kind]}
                                          for name in names}


def assert_equals_pyg(opened, model, data, *names, call=lambda model, *args, **named: model(*args, **named)):
    """Collective: answers for papers, and gradients, are those of the plain model on the whole graph to 1e-5; returns
    the number of exchanges of a forward.
    """
    graph, local = opened(data)
    distributed = hpcgnn.distribute(model, graph)
    plain = copy.deepcopy(model).double()
    cotangent = torch.from_numpy(np.random.default_rng(0).normal(size=(COUNTS["paper"], CLASSES)))
    out = distributed(local, local.x)
    ids = local.node_id[:local.num_inner]
    is_paper = ids < COUNTS["paper"]
    (out[is_paper] * cotangent[ids[is_paper]]).sum().backward()
    found = torch.zeros(COUNTS["paper"], CLASSES, dtype=torch.float64)
    for numbers, rows in COMM.allgather((ids[is_paper], out[is_paper].detach().double().numpy())):
        found[numbers] = torch.from_numpy(rows)
    gradients = {name: COMM.allreduce(weight.grad.double().numpy()) for name, weight in model.named_parameters()
                 if weight.grad is not None}
    x_dict, edges, named = arguments(data, *names)
    expected = call(plain, x_dict, edges, **named)
    expected = expected["paper"] if isinstance(expected, dict) else expected
    (expected * cotangent).sum().backward()
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    wanted = {name: weight.grad.numpy() for name, weight in plain.named_parameters() if weight.grad is not None}
    assert gradients.keys() >= wanted.keys()
    largest = max(np.abs(gradient).max() for gradient in wanted.values())
    for name, gradient in gradients.items():
        assert np.abs(gradient - wanted.get(name, 0)).max() <= 1e-5 * largest, name
    return local.current_pass.num_halo_calls


class OfTypes(torch.nn.Module):
    """As PyTorch Geometric's hgt_dblp.py and hetero_conv_dblp.py: lazy maps, layers, and the answer for one type."""

    def __init__(self, layers):
        super().__init__()
        self.maps = torch.nn.ModuleDict({name: pyg.Linear(-1, 8) for name in COUNTS})
        self.layers, self.end = torch.nn.ModuleList(layers), pyg.Linear(-1, CLASSES)

    def forward(self, x_dict, edge_index_dict, **named):
        x_dict = {name: self.maps[name](x).tanh_() for name, x in x_dict.items()}
        for layer in self.layers:
            x_dict = {name: torch.tanh(x) for name, x in layer(x_dict, edge_index_dict, **named).items()
                      if x is not None}
        return self.end(x_dict["paper"])


class OfWeights(OfTypes):
    def forward(self, x_dict, edge_index_dict, edge_weight_dict):
        return super().forward(x_dict, edge_index_dict, edge_weight_dict=edge_weight_dict)


class OfAttributes(OfTypes):
    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        return super().forward(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)


def hetero_conv(make, aggr="sum"):
    return pyg.HeteroConv({kind: make(kind) for kind in KINDS}, aggr=aggr)


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 8))


def mixed(kind):
    """Other convolutions for other kinds, as in the documentation of HeteroConv."""
    return {"cites": lambda: pyg.GCNConv(-1, 8), "writes": lambda: pyg.SAGEConv((-1, -1), 8),
            "knows": lambda: pyg.PNAConv(8, 8, ["mean", "max"], ["identity"], torch.ones(20))}.get(
        kind[1], lambda: pyg.GATConv((-1, -1), 8, add_self_loops=False))()


METADATA = list(COUNTS), list(KINDS)
LAYERS = {
    "HGTConv": lambda: pyg.HGTConv(8, 8, METADATA, heads=2),
    "HGTConv wider": lambda: pyg.HGTConv(-1, 12, METADATA, heads=3),
    "HGTConv in another order": lambda: pyg.HGTConv(8, 8, (METADATA[0], METADATA[1][::-1])),
    "HANConv": lambda: pyg.HANConv(-1, 8, METADATA, heads=2),
    "mixed": lambda: hetero_conv(mixed),
    "SAGEConv": lambda: hetero_conv(lambda kind: pyg.SAGEConv((-1, -1), 8), "mean"),
    "SAGEConv max": lambda: hetero_conv(lambda kind: pyg.SAGEConv((-1, -1), 8, aggr="max"), "max"),
    "GraphConv": lambda: hetero_conv(lambda kind: pyg.GraphConv((-1, -1), 8), "min"),
    "GATConv": lambda: hetero_conv(lambda kind: pyg.GATConv((-1, -1), 4, heads=2, add_self_loops=kind[0] == kind[2])),
    "GATv2Conv": lambda: hetero_conv(lambda kind: pyg.GATv2Conv((-1, -1), 8, add_self_loops=False), "cat"),
    "TransformerConv": lambda: hetero_conv(lambda kind: pyg.TransformerConv((-1, -1), 8, beta=True)),
    "GINConv": lambda: hetero_conv(lambda kind: pyg.GINConv(mlp(), train_eps=True)),
    "ResGatedGraphConv": lambda: hetero_conv(lambda kind: pyg.ResGatedGraphConv((8, 8), 8)),
    "EdgeConv": lambda: hetero_conv(lambda kind: pyg.EdgeConv(torch.nn.Linear(16, 8))),
    "SimpleConv": lambda: hetero_conv(lambda kind: pyg.SimpleConv("mean")),
}


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("name", list(LAYERS))
def test_answers_and_gradients_equal_those_of_one_process(opened, name):
    torch.manual_seed(4)
    num_layers = 2 if name in ("HGTConv", "mixed", "SAGEConv") else 1
    def call(plain, x_dict, edges):      # PyTorch Geometric's HGTConv is right in the order of its own kinds only
        return plain(x_dict, dict(reversed(edges.items())) if "order" in name else edges)

    calls = assert_equals_pyg(opened, OfTypes([LAYERS[name]() for _ in range(num_layers)]), hetero(), call=call)
    assert calls <= len(COUNTS) * num_layers      # one exchange a layer for each type


@pytest.mark.parallel([1, 2, 3])
def test_weights_and_attributes_of_edges_reach_convolutions(opened):
    torch.manual_seed(4)
    assert_equals_pyg(opened, OfWeights([hetero_conv(lambda kind: pyg.GraphConv((8, 8), 8)) for _ in range(2)]),
                      hetero(is_weighted=True), "edge_weight")
    assert_equals_pyg(opened, OfAttributes([hetero_conv(
        lambda kind: pyg.GATv2Conv((8, 8), 8, edge_dim=COLUMNS, add_self_loops=False))]),
        hetero(has_attributes=True), "edge_attr")
    assert_equals_pyg(opened, OfWeights([hetero_conv(lambda kind: pyg.GCNConv(8, 8) if kind[1] == "cites" else
                                                     pyg.GraphConv((8, 8), 8))]),
                      hetero(is_weighted=True), "edge_weight")


@pytest.mark.parallel([1, 2, 3])
def test_a_kind_of_edge_has_its_own_attributes_if_kinds_differ(opened):
    torch.manual_seed(4)
    columns = {("author", "writes", "paper"): 3, ("paper", "cites", "paper"): 1, ("venue", "has", "paper"): 3}
    data = hetero(has_attributes=True, columns=columns)
    assert opened(data)[0].info.relation_columns == (3, 0, 1, 3, 0, 0)
    assert_equals_pyg(opened, OfAttributes([hetero_conv(lambda kind: pyg.GATv2Conv(
        (-1, -1), 8, edge_dim=columns.get(kind), add_self_loops=False)) for _ in range(2)]), data, "edge_attr")


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("number", [1, 2])
def test_a_kind_of_edge_without_attributes_has_a_convolution_that_takes_none(opened, number):
    torch.manual_seed(4)
    columns = dict.fromkeys([("author", "writes", "paper"), ("paper", "cites", "paper")][:number], 3)
    assert_equals_pyg(opened, OfAttributes([hetero_conv(
        lambda kind: pyg.GATv2Conv((-1, -1), 8, edge_dim=3, add_self_loops=False) if kind in columns else
        pyg.SAGEConv((-1, -1), 8)) for _ in range(2)]), hetero(has_attributes=True, columns=columns), "edge_attr")


class Plain(torch.nn.Module):
    """A model for `to_hetero`."""

    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.SAGEConv((-1, -1), 8), pyg.GATConv((-1, -1), CLASSES, add_self_loops=False)
        self.skip, self.norm = pyg.Linear(-1, 8), torch.nn.BatchNorm1d(8)

    def forward(self, x, edge_index):
        return self.last(self.norm(self.first(x, edge_index) + self.skip(x)).relu(), edge_index)


@pytest.mark.filterwarnings("ignore:.*will be duplicated")
@pytest.mark.parallel([1, 2, 3])
def test_a_model_that_to_hetero_makes_is_taken_as_it_is(opened):
    torch.manual_seed(4)
    assert assert_equals_pyg(opened, pyg.to_hetero(Plain(), METADATA), hetero()) == 3      # none for the input


class OfData(OfTypes):
    """Takes HeteroData, and has a learned row for each venue."""

    def __init__(self, layers):
        super().__init__(layers)
        self.venue = torch.nn.Embedding(COUNTS["venue"], 8)

    def forward(self, data):
        x_dict = {**data.x_dict, "venue": self.venue(data["venue"].n_id)}
        return {"paper": super().forward(x_dict, data.edge_index_dict), "author": None}


class WithWeight(OfTypes):
    def __init__(self, layers):
        super().__init__(layers)
        self.venue = torch.nn.Embedding(COUNTS["venue"], 8)

    def forward(self, x_dict, edge_index_dict):
        return super().forward({**x_dict, "venue": self.venue.weight}, edge_index_dict)


@pytest.mark.parallel([1, 2, 3])
def test_a_forward_may_take_hetero_data_and_learn_rows_of_a_type(opened):
    def call(plain, x_dict, edges):
        data = HeteroData({**{name: {"x": x, "n_id": torch.arange(len(x))} for name, x in x_dict.items()},
                           **{kind: {"edge_index": ends} for kind, ends in edges.items()}})
        return plain(data)

    torch.manual_seed(4)
    assert_equals_pyg(opened, OfData([pyg.HGTConv(8, 8, METADATA)]), hetero(), call=call)
    assert_equals_pyg(opened, WithWeight([pyg.HGTConv(8, 8, METADATA)]), hetero())


class Own(pyg.MessagePassing):
    """A user's convolution between two types."""

    def __init__(self):
        super().__init__(aggr="mean")
        self.source, self.target = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, edge_index):
        source, target = (x, x) if isinstance(x, torch.Tensor) else x
        return self.propagate(edge_index, h=(self.source(source), self.target(target)))

    def message(self, h_i, h_j):
        return torch.tanh(h_i + h_j)


@pytest.mark.parallel([1, 2, 3])
def test_a_convolution_of_the_users_gets_rows_of_both_types(opened):
    torch.manual_seed(4)
    assert_equals_pyg(opened, OfTypes([hetero_conv(lambda kind: Own()) for _ in range(2)]), hetero())


class Dropping(OfTypes):
    """Drops input rows, hidden rows and coefficients of attention."""

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: torch.nn.functional.dropout(x, 0.3, self.training) for name, x in x_dict.items()}
        out = super().forward(x_dict, edge_index_dict)
        return torch.nn.functional.dropout(out, 0.3, self.training)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("make", [
    lambda: hetero_conv(lambda kind: pyg.GATConv((8, 8), 8, dropout=0.4, add_self_loops=False)),
    lambda: pyg.HANConv(8, 8, METADATA, dropout=0.4),
], ids=["GATConv", "HANConv"])
def test_what_is_dropped_is_the_same_on_any_number_of_ranks(opened, make):
    torch.manual_seed(4)
    model, found = Dropping([make()]), []
    for comm in (COMM, MPI.COMM_SELF):
        graph, local = opened(hetero(), comm)
        out = hpcgnn.distribute(model, graph)(local, local.x).detach().numpy()
        ids = np.concatenate(comm.allgather(local.node_id[:local.num_inner]))
        found.append(np.concatenate(comm.allgather(out))[np.argsort(ids)])
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[1]).max()
    assert (found[1][:COUNTS["paper"]] == 0).mean() > 0.2


def trained(model, comm, shards, out, **settings):
    return hpcgnn.fit(model, hpcgnn.open(shards, comm), out=out, weight_decay=0.0, **settings)


def hgt(is_lazy=False):
    """A model whose first maps have no weights yet, or have them from a forward of its own."""
    torch.manual_seed(4)
    model = OfTypes([pyg.HGTConv(8, 8, METADATA, heads=2) for _ in range(2)])
    if not is_lazy:
        x_dict, edges, _ = arguments(hetero())
        model({name: x.float() for name, x in x_dict.items()}, edges)
    return model


@pytest.mark.parallel([1, 2, 3])
def test_losses_of_fit_are_those_of_plain_training(shared_path):
    data = hetero()
    dataset = finish_dataset(given_graph(data, Choices(labels="paper")), SourceOptions())
    run = trained(hgt(), COMM, write_once(COMM, dataset, shared_path / "shards"), shared_path / "run",
                  method="vanilla", precision="fp32", epochs=3, lr=0.02)
    x_dict, edges, _ = arguments(data)
    model = hgt().double()
    optimizer, expected, mask = torch.optim.Adam(model.parameters(), 0.02), [], data["paper"].train_mask
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x_dict, edges)[mask], data["paper"].y[mask])
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses(run.metrics), expected, rtol=1e-4)


def test_types_in_another_order_are_refused_where_they_have_places_in_one_table(tmp_path):
    """Their columns would meet the weights of other types. Tables are found by their type."""
    def shards_of(order, widths=()):
        data = hetero()
        for known, width in widths:
            data[known].x = data[known].x[:, :1].repeat(1, width)
        held = {known: data[known] for known in order} | {kind: data[kind] for kind in KINDS}
        dataset = finish_dataset(given_graph({key: dict(store) for key, store in held.items()},
                                             Choices(labels="paper")), SourceOptions())
        return hpcgnn.open(write_once(MPI.COMM_SELF, dataset, tmp_path / "-".join(map(str, (*order, *widths)))))

    def answers(run, graph, **model):
        found = hpcgnn.open_run(tmp_path / run, graph, other_graph=True, **model).predict()
        return dict(zip(map(str, found.name), found.logits[:, 0].tolist(), strict=True))

    graph, others = shards_of(COUNTS), shards_of(["venue", "author", "paper"])
    model = hgt()
    hpcgnn.fit("sage", graph, out=tmp_path / "sage", epochs=2, layers=2, hidden=8)
    hpcgnn.fit(model, graph, out=tmp_path / "hgt", epochs=2)
    expected, found = (answers("hgt", one, model=model) for one in (graph, others))
    papers = [name for name in expected if name.startswith("paper:")]
    assert len(papers) == COUNTS["paper"]
    assert [found[name] for name in papers] == pytest.approx([expected[name] for name in papers], abs=1e-5)
    with pytest.raises(HpcgnnError, match=r"columns of the types paper \(4\), author \(5\), venue \(1\), and .* has "
                                          r"venue \(1\), author \(5\), paper \(4\); .* in this order"):
        answers("sage", others)
    with pytest.raises(HpcgnnError, match=r"has paper \(5\), author \(4\), venue \(1\)"):
        answers("hgt", shards_of(COUNTS, (("paper", 5), ("author", 4))), model=model)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method, settings", long_but((4, 6), [
    ("uniform", {"bits": 4}), ("sylvie", {}), ("adaqp", {"period": 4, "group_size": 20}), ("pipegcn", {}), ("bns", {}),
    ("sancus", {}), ("vanilla", {"steps": "2"})]))
def test_every_method_trains_it(shared_path, method, settings):
    dataset = finish_dataset(given_graph(hetero(), Choices(labels="paper")), SourceOptions())
    run = trained(hgt(is_lazy=True), COMM, write_once(COMM, dataset, shared_path / "shards"), shared_path / "run",
                  method=method, epochs=8, lr=0.05, **settings)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] / 2


class Numbers(OfTypes):
    def forward(self, x_dict, edge_index_dict):
        return super().forward(x_dict, {kind: ends.flip(0) for kind, ends in edge_index_dict.items()})


class Swapped(OfTypes):
    def __init__(self, layers):
        super().__init__(layers)
        self.other = pyg.SAGEConv((4, 4), 8)

    def forward(self, x_dict, edge_index_dict):
        out = super().forward(x_dict, edge_index_dict)
        h = self.other((x_dict["paper"], x_dict["paper"]), edge_index_dict["author", "writes", "paper"])
        return out + h.sum(1, keepdim=True)


class Twice(OfTypes):
    def forward(self, x_dict, edge_index_dict):
        return {"paper": super().forward(x_dict, edge_index_dict), "author": x_dict["author"]}


class OfAuthors(OfTypes):
    def forward(self, x_dict, edge_index_dict):
        super().forward(x_dict, edge_index_dict)
        return self.end(torch.tanh(self.maps["author"](x_dict["author"])))


def test_answers_for_another_type_than_the_labels_are_refused(opened):
    graph, local = opened(hetero(), MPI.COMM_SELF)
    model = hpcgnn.distribute(OfAuthors([pyg.HGTConv(8, 8, METADATA)]), graph)
    papers = np.flatnonzero(local.node_id < COUNTS["paper"])
    with pytest.raises(ConfigError, match="OfAuthors returns rows of type author, and nodes of type paper have the"):
        try_model(model, local, papers, 1)


@pytest.mark.parametrize("make, complaint", [
    (lambda: Numbers([pyg.HGTConv(8, 8, METADATA)]), "the model reads or changes edge_index itself"),
    (lambda: OfTypes([pyg.HGTConv(8, 8, (METADATA[0], METADATA[1][:5]))]),
     r"HGTConv at model.layers.0 is made without the edges \('author', 'knows', 'author'\), and the graph's are"),
    (lambda: OfTypes([pyg.HeteroConv({("venue", "of", "venue"): pyg.SAGEConv(8, 8)})]),
     r"HeteroConv at model.layers.0 has a convolution for the edges \('venue', 'of', 'venue'\), and the graph's are"),
    (lambda: Swapped([pyg.HGTConv(8, 8, METADATA)]), r"SAGEConv at model.other was given 40 source rows for edges from "
     r"author, of which this rank has 25; pass it the rows of the types that its edges join, \(x_dict\['author'\]"),
    (lambda: Twice([pyg.HGTConv(8, 8, METADATA)]), "Twice returns rows of other widths for other types; return the"),
])
def test_what_one_rank_can_not_compute_is_refused(opened, make, complaint):
    graph, local = opened(hetero(), MPI.COMM_SELF)
    model = make()
    with pytest.raises(ConfigError, match=complaint):
        hpcgnn.distribute(model, graph)(local, local.x)
