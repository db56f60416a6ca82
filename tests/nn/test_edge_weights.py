"""Models over weighted arcs against PyTorch Geometric and sums by index in float64, on 1 to 3 ranks; who refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcgnn.errors import CollectiveError, ConfigError, KernelError
from hpcgnn.lowbit.training.models import calibrate
from hpcgnn.nn.models import MODELS, ModelShape, build_model, check_edge_weights

pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed; pip install hpcgnn[test]")

from reference_models import Masks, mean_loss, peer_logits
from reference_weights import draw_weights, open_weighted

SEED, EPOCH = 3, 8
TAKERS = tuple(name for name in MODELS if name not in ("sage-max", "rgcn"))
WAYS = {"all rows": {}, "rows in reach": {"num_hops": 3}, "peer by peer": {"rematerializes": True},
        "in reach, peer by peer": {"num_hops": 3, "rematerializes": True}}


def new_model(shape):
    torch.manual_seed(1)
    return build_model(shape)


@pytest.mark.covering
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("out_dim", [3, 9])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TAKERS)
def test_loss_and_first_gradients_are_those_of_pyg(graph_with, sum_gradients, name, way, out_dim, dropout):
    comm, shape = MPI.COMM_WORLD, ModelShape(name, 6, 8, out_dim, 3, dropout, "layer")
    dataset, owner = graph_with(6, directed=True)
    weight = draw_weights(dataset)
    labels, mask = torch.from_numpy(dataset.labels % out_dim), torch.from_numpy(dataset.train_mask)
    graph, _ = open_weighted(comm, dataset, owner(comm.size), weight, **WAYS[way])
    model, inner_id = new_model(shape), graph.node_id[:graph.num_inner]
    rows = np.flatnonzero(dataset.train_mask[inner_id])
    graph.begin_forward(SEED, EPOCH, is_training=True, num_hops=model.num_hops)
    logits = model(graph, graph.x)
    chosen = logits if len(logits) == len(rows) else logits[rows]
    loss = torch.nn.functional.cross_entropy(chosen, labels[inner_id][rows], reduction="sum") / mask.sum()
    loss.backward()
    total, gradients = comm.allreduce(loss.item()), sum_gradients(comm, model)

    reference = new_model(shape).double()
    expected = mean_loss(peer_logits(reference, shape, dataset, Masks(dropout, SEED, EPOCH), weight), labels, mask,
                         mask.sum())
    expected.backward()
    assert total == pytest.approx(expected.item(), rel=1e-5)
    largest = max(parameter.grad.abs().max() for parameter in reference.parameters())
    for parameter_name, parameter in reference.named_parameters():
        assert (gradients[parameter_name] - parameter.grad).abs().max() <= 1e-5 * largest, parameter_name


@pytest.mark.parallel(2)
@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_messages_of_eight_bits_are_weighed_as_they_are_read(graph_with, gather_rows, name):
    """No mask follows, so that halo rows of the second layer are decoded inside the sum; 1/255 of a row's range off."""
    comm, shape = MPI.COMM_WORLD, ModelShape(name, 6, 8, 4, 2, 0.0)
    dataset, owner = graph_with(6, directed=True)
    weight, found = draw_weights(dataset), {}
    for bits in (8, 32):
        graph, _ = open_weighted(comm, dataset, owner(comm.size), weight, bits=bits)
        graph.begin_forward(SEED, EPOCH, is_training=True)
        found[bits] = gather_rows(comm, new_model(shape)(graph, graph.x), graph.node_id[:graph.num_inner])
    off = (found[8] - found[32]).abs().max() / found[32].abs().max()
    assert 0 < off < 0.03


def test_a_model_that_takes_no_weights_is_refused_by_name():
    models = {name: new_model(ModelShape(name, 6, 8, 4, 2, 0.0, num_relations=3)) for name in MODELS}
    check_edge_weights(models["sage-max"], "sage-max", has_weights=False)
    for name in TAKERS:
        check_edge_weights(models[name], name, has_weights=True)
    for name in ("sage-max", "rgcn"):
        with pytest.raises(ConfigError, match=f"model {name} takes no edge weights, and this graph has them"):
            check_edge_weights(models[name], name, has_weights=True)
    with pytest.raises(ConfigError, match="models of integers take no edge weights"):
        check_edge_weights(models["gcn"], "gcn", has_weights=True, is_quantized=True)


def test_layers_refuse_what_they_would_have_to_leave_out(graph_with):
    dataset, owner = graph_with(6)
    graph, _ = open_weighted(MPI.COMM_SELF, dataset, owner(1), draw_weights(dataset))
    with pytest.raises(CollectiveError, match="models of integers take no edge weights"):
        calibrate(new_model(ModelShape("gcn", 6, 8, 4, 2, 0.0)), graph, MPI.COMM_SELF)
    with pytest.raises(KernelError, match="maximum needs a matrix without scales"):
        new_model(ModelShape("sage-max", 6, 8, 4, 2, 0.0))(graph, graph.x)


def test_weights_of_one_change_no_bit(graph_with, open_part):
    dataset, owner = graph_with(6)
    weighed, _ = open_weighted(MPI.COMM_SELF, dataset, owner(1), np.ones(dataset.num_edges, np.float32))
    plain = open_part(MPI.COMM_SELF, dataset, owner(1)).graph
    for name in TAKERS:
        model = new_model(ModelShape(name, 6, 8, 4, 3, 0.0)).eval()
        assert torch.equal(model(weighed, weighed.x), model(plain, plain.x)), name
