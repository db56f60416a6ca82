"""Ranks that send sums in the place of their rows train as those that don't, and send fewer bytes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from training_setup import easy_graph, losses, train, write_once

import hpcgnn
from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError
from hpcgnn.training.session import Session

COMM = MPI.COMM_WORLD
SUMS, ROWS = {"pre_aggregation": "on"}, {"pre_aggregation": "off"}
SEVERAL = pytest.mark.parallel([2, 3])


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """Shards of a graph whose arcs have weights, another one each way."""
    folder = COMM.bcast(tmp_path_factory.mktemp("weighted") if COMM.rank == 0 else None)
    graph = easy_graph()
    weight = np.random.default_rng(3).uniform(0.1, 2.0, graph.num_edges).astype(np.float32)
    return write_once(COMM, replace(graph, edge_weight=weight).check(), folder / "shards")


def train_both(shards, path, **settings):
    """Collective: summary and metrics of a training that sends sums, and of one that sends every row."""
    return [train(COMM, shards, path / name, epochs=2, **settings, **choice)[:2]
            for name, choice in (("sums", SUMS), ("rows", ROWS))]


def assert_alike(of_sums, of_rows, rtol=1e-6):
    np.testing.assert_allclose(losses(of_sums), losses(of_rows), rtol=rtol)
    for mine, other in zip(of_sums, of_rows, strict=True):
        assert 0 < mine["sent_bytes_payload"] < other["sent_bytes_payload"]


@pytest.mark.covering(1)
@SEVERAL
@pytest.mark.parametrize("settings", [
    {"model": "gcn", "hidden": 3, "overlap": False, "epoch_rows": "all", "exchange": "alltoallv"},
    {"model": "sage", "layers": 3}, {"model": "appnp", "layers": 3}, {"model": "gcnii", "layers": 4},
    {"model": "sgc", "hidden": 2}, {"model": "dagnn", "layers": 3}, {"model": "gcn"},
    {"model": "jknet", "layers": 3}, {"model": "sage", "layers": 3, "store_activations": 8},
], ids=lambda settings: "-".join(map(str, settings.values())))
def test_losses_are_those_of_ranks_that_send_rows(shared_path, shards, settings):
    (_, of_sums), (_, of_rows) = train_both(shards, shared_path, dropout=0.3, **settings)
    assert_alike(of_sums, of_rows, 1e-3 if "store_activations" in settings else 1e-6)
    assert abs(of_sums[-1]["val_score"] - of_rows[-1]["val_score"]) < 0.05


@pytest.mark.covering(1)
@SEVERAL
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_weights_of_arcs_are_in_the_sums(shared_path, weighted, model):
    (_, of_sums), (_, of_rows) = train_both(weighted, shared_path, model=model, layers=3, dropout=0.3)
    assert_alike(of_sums, of_rows)


@pytest.mark.covering(1)
@SEVERAL
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_rows_of_sixteen_bits_are_summed_with_one_rounding(shared_path, shards, precision):
    (_, of_sums), (_, of_rows) = train_both(shards, shared_path, model="sage", layers=3, precision=precision)
    assert_alike(of_sums, of_rows, 0.02)


@pytest.mark.parallel(3)
@pytest.mark.parametrize("model", ["gcn", pytest.param("sage", marks=pytest.mark.long)])
def test_ranks_of_a_node_share_what_comes(shared_path, shards, model):
    node = {"nodes_aware": "on", "ranks_per_node": 2, "model": model, "layers": 3}
    (_, of_sums), (_, of_rows) = train_both(shards, shared_path, dropout=0.3, **node)
    np.testing.assert_allclose(losses(of_sums), losses(of_rows), rtol=1e-6)
    assert of_sums[-1]["sent_bytes_between_nodes"] == of_sums[-1]["sent_bytes_payload"] > 0
    assert of_sums[-1]["shared_bytes"] > 0


@pytest.mark.covering(1)
@SEVERAL
@pytest.mark.parametrize("method", long_but((1, 3, 6), [
    {"method": "uniform", "bits": 4}, {"method": "pipegcn"}, {"method": "sylvie"}, {"method": "bns", "share": 0.5},
    {"method": "sancus"}, {"method": "adaqp", "period": 4, "group_size": 20},
    {"method": "joint", "period": 4, "group_size": 20},
]), ids=lambda method: "-".join(map(str, method.values())))
def test_every_method_learns_from_sums(shared_path, shards, method):
    summary, metrics, _ = train(COMM, shards, shared_path / "run", hidden=16, epochs=20, lr=0.03, **SUMS, **method)
    assert summary["val_score"] > 0.8
    assert losses(metrics)[-1] < 0.5 * losses(metrics)[0]


@pytest.mark.parallel([1, 3])
def test_one_rank_and_several_have_the_same_losses(shared_path, tmp_path_factory, shards):
    alone = COMM.Split(COMM.rank)
    whole = COMM.bcast(write_once(alone, easy_graph(), shared_path / "whole") if COMM.rank == 0 else None)
    expected = train(alone, whole, shared_path / f"alone-{COMM.rank}", dropout=0.3, **SUMS)[1]
    found = train(COMM, shards, shared_path / "together", dropout=0.3, **SUMS)[1]
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-5)


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, graph, x):
        return graph.halo(x)[:graph.num_inner, :3] * self.weight


@SEVERAL
def test_models_that_may_read_rows_one_by_one_are_refused(shards, shared_path):
    with pytest.raises(CollectiveError, match=r"on can't be used with model .*Own: its layers read rows"):
        hpcgnn.fit(Own(), hpcgnn.open(shards, COMM), out=shared_path / "run", **SUMS)


@SEVERAL
def test_the_memory_of_other_arcs_is_counted(shards):
    of_sums, of_rows = (Session.open(COMM, shards, TrainConfig.of(model="gcn", hidden=8, **choice)).graph
                        for choice in (SUMS, ROWS))
    assert of_sums.structure_bytes > of_rows.structure_bytes
