"""Ranks that share the rows of their node train as those that don't, and fewer bytes cross between nodes."""

import numpy as np
import pytest
from covering import long_but
from mpi4py import MPI
from training_setup import losses, train

from hpcgnn.config import TrainConfig
from hpcgnn.training.session import Session

COMM = MPI.COMM_WORLD
SHARED = {"nodes_aware": "on", "ranks_per_node": 2}
APART = {"nodes_aware": "off", "ranks_per_node": 2}
CROSSING = pytest.mark.parallel([3, 4])      # two nodes, of which the last may have one rank


def train_both(shards, path, **settings):
    """Collective: summary and metrics of a training whose ranks share rows, and of one whose don't."""
    return [train(COMM, shards, path / name, **settings, **choice)[:2]
            for name, choice in (("shared", SHARED), ("apart", APART))]


@pytest.mark.parallel(3)
@pytest.mark.parametrize("settings", long_but((1, 4), [
    {"model": "gcn"}, {"model": "sage", "layers": 3}, {"model": "sage-max"}, {"model": "gat", "layers": 2},
    {"model": "gin", "overlap": False, "epoch_rows": "all", "exchange": "alltoallv"},
]), ids=lambda settings: "-".join(map(str, settings.values())))
def test_losses_and_scores_are_those_of_ranks_that_do_not_share(shared_path, shards, settings):
    (shared, of_shared), (_, of_apart) = train_both(shards, shared_path, dropout=0.3, **settings)
    np.testing.assert_allclose(losses(of_shared), losses(of_apart), rtol=1e-6)
    for name in ("train_score", "val_score", "test_score"):
        assert of_shared[-1][name] == of_apart[-1][name]
    assert shared["shares_rows"] and shared["nodes"] == 2


@pytest.mark.parallel(4)
def test_only_rows_that_cross_between_nodes_are_sent_and_each_once(shared_path, shards):
    (shared, of_shared), (apart, of_apart) = train_both(shards, shared_path, epochs=2)
    for record in of_shared:
        assert record["sent_bytes_between_nodes"] == record["sent_bytes_payload"] > 0
        assert record["shared_bytes"] > 0
    for record, other in zip(of_shared, of_apart, strict=True):
        assert record["sent_bytes_between_nodes"] < other["sent_bytes_between_nodes"] < other["sent_bytes_payload"]
        assert other["shared_bytes"] == 0
    assert shared["sent_bytes_between_nodes_per_epoch"] == of_shared[0]["sent_bytes_between_nodes"]
    assert not apart["shares_rows"] and apart["shared_bytes_per_epoch"] == 0


@pytest.mark.parallel(3)
@pytest.mark.parametrize("method", long_but((1, 4, 6), [
    {"method": "uniform", "bits": 1}, {"method": "pipegcn"}, {"method": "sylvie"},
    {"method": "adaqp", "period": 4, "group_size": 20}, {"method": "joint", "period": 4, "group_size": 20},
    {"method": "vanilla", "predict": "previous"},
    {"method": "uniform", "bits": 1, "predict": "previous", "send_share": 0.3},
]), ids=lambda method: "-".join(map(str, method.values())))
def test_every_method_that_sends_all_rows_learns_with_shared_ones(shared_path, shards, method):
    summary, metrics, _ = train(COMM, shards, shared_path / "run", hidden=16, epochs=20, lr=0.03, **SHARED,
                                **method)
    assert summary["val_score"] > 0.8
    assert losses(metrics)[-1] < 0.5 * losses(metrics)[0]


@pytest.mark.parallel([1, 2, 3, 4])
def test_all_ranks_of_one_node_send_nothing(shared_path, shards):
    summary, metrics, _ = train(COMM, shards, shared_path / "run", nodes_aware="on", epochs=2)
    assert {record["sent_bytes_payload"] for record in metrics} == {0}
    assert summary["nodes"] == 1
    apart = train(COMM, shards, shared_path / "apart", nodes_aware="off", epochs=2)[1]
    np.testing.assert_allclose(losses(metrics), losses(apart), rtol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parallel([3, 1, 2, 4])
@pytest.mark.parametrize("settings, may", [
    ({}, True), ({"steps": "2"}, False), ({"method": "bns"}, False), ({"nodes_aware": "off"}, False),
], ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "")
def test_auto_shares_where_it_is_worth_it_and_can_be(shared_path, shards, settings, may):
    summaries = [train(COMM, shards, shared_path / str(number), epochs=1, ranks_per_node=number, **settings)[0]
                 for number in (0, 1, 2)]
    assert [summary["shares_rows"] for summary in summaries] == [False, False, may and COMM.size > 2]
    assert [summary["nodes"] for summary in summaries] == [1, COMM.size, -(-COMM.size // 2)]


@CROSSING
def test_widths_weigh_a_shared_row_by_all_its_readers(shards):
    session = Session.open(COMM, shards, TrainConfig.of(model="gcn", layers=2, hidden=8, **SHARED))
    context, graph = session.method_context(), session.graph
    halo_id = graph.node_id[graph.num_inner:]
    expected, first = {}, COMM.rank // 2 * 2
    for rank, (ids, squares) in enumerate(COMM.allgather((halo_id, graph.halo_squares("gcn")))):
        for node_id, square in zip(ids.tolist(), squares.tolist(), strict=True):
            if first <= rank < first + 2:
                expected[node_id] = expected.get(node_id, 0.0) + square
    received = np.concatenate([rows.node_id for rows in context.plan.halo]).tolist()
    found = context.halo_squares("gcn")
    np.testing.assert_allclose(found, [expected[node_id] for node_id in received], rtol=1e-6)
    assert len(context.importance) == graph.num_inner + len(received)
