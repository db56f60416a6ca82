"""Peers compute what we compute, so that a ratio compares the same work."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from hpcgnn.bench.graphs import Topology, draw_communities, drawn_arcs, read_topology
from hpcgnn.bench.kernels import TorchMessage
from hpcgnn.bench.peers import PEERS, parse_peers
from hpcgnn.bench.peers.spmm import PEER_PRODUCTS
from hpcgnn.errors import ConfigError, DatasetError
from hpcgnn.ops.aggregation import from_csr, multiply


def require(peer):
    package, _ = PEERS[peer]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.fixture
def graph():
    rng = np.random.default_rng(0)
    degree = rng.integers(0, 6, 30)
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return Topology("drawn", indptr, rng.integers(0, 30, indptr[-1]).astype(np.int32))


@pytest.mark.parametrize("precision, dtype, tolerance", [("fp32", torch.float32, 1e-6), ("bf16", torch.bfloat16, 0.03)])
@pytest.mark.parametrize("peer", ["torch", "scipy", "pyg"])
def test_a_peers_product_is_the_mean_of_in_neighbors(graph, peer, precision, dtype, tolerance):
    require(peer)
    product = PEER_PRODUCTS[peer](graph, precision)
    if product is None:
        assert (peer, precision) == ("scipy", "bf16")
        return
    rows = torch.randn(30, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours = multiply(from_csr(graph.indptr, graph.indices, 30, row_scale=graph.inverse_degree), rows)
    torch.testing.assert_close(torch.as_tensor(product(rows)).float(), ours.float(), rtol=tolerance, atol=tolerance)


def test_dgls_product_is_the_sum_over_in_neighbors(graph):
    require("dgl")
    rows = torch.randn(30, 7)
    found = PEER_PRODUCTS["dgl"](graph, "fp32")(rows)
    torch.testing.assert_close(found, multiply(from_csr(graph.indptr, graph.indices, 30), rows))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("dim", [5, 16])
def test_torchs_message_has_our_payload_and_comes_back_within_a_step(bits, dim):
    rows = torch.randn(20, dim, generator=torch.Generator().manual_seed(0))
    message = TorchMessage(rows, bits)
    assert message.payload.shape == (20, -(-dim * bits // 8)) and message.payload.dtype == torch.uint8
    assert ((message.unpack() - rows).abs() <= message.step * 1.001).all()


def test_a_peer_that_is_unknown_or_missing_is_refused_with_one_sentence(monkeypatch):
    assert parse_peers("torch, scipy,torch") == ("torch", "scipy")
    assert parse_peers("") == ()
    with pytest.raises(ConfigError, match="--peer has 'tensorflow'; expected a list of torch, scipy, pyg, dgl"):
        parse_peers("tensorflow")
    monkeypatch.setattr("hpcgnn.bench.peers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--peer has dgl, but dgl is not installed; run pip install dgl, or leave"):
        parse_peers("dgl")


def test_a_drawn_graph_has_the_arcs_asked_for():
    graph = draw_communities(20_000)
    assert graph.num_edges == 20_000 and graph.num_nodes == 1000 and graph.name == "synthetic-0.02M"


@pytest.mark.parametrize("arrays, complaint", [
    ({"indices": [0]}, "no graph archive"),
    ({"indptr": [0, 2], "indices": [0]}, "holds no CSR"),
    ({"indptr": [0, 1], "indices": [3]}, "holds no CSR"),
])
def test_an_archive_that_is_no_graph_is_refused(tmp_path, arrays, complaint):
    np.savez(tmp_path / "g.npz", **{name: np.array(values) for name, values in arrays.items()})
    with pytest.raises(DatasetError, match=complaint):
        read_topology(tmp_path / "g.npz")


def test_a_graph_to_draw_says_how_many_arcs_it_has():
    assert drawn_arcs("drawn:2e4") == 20_000 and drawn_arcs("drawn:20") == 20 and drawn_arcs("drawn.npz") is None


@pytest.mark.parametrize("source", ["drawn:", "drawn:19", "drawn:x", "drawn:inf", "drawn:nan", "drawn:-40"])
def test_a_graph_that_can_not_be_drawn_is_refused(source):
    with pytest.raises(ConfigError, match="expected drawn:EDGES with at least 20 edges, as in drawn:20e6"):
        drawn_arcs(source)
