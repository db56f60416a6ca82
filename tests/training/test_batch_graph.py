"""Training in clusters reads the arcs that inference in batches reads, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from covering import long_but
from mpi4py import MPI
from reference_weights import draw_weights, weigh_part
from training_setup import SMALL, easy_graph, losses, random_owner, train, train_as_one, write_once

from hpcgnn.config import TrainConfig
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.lowbit.inference.batches import cut_batches
from hpcgnn.lowbit.inference.dealt import DealtBatches
from hpcgnn.lowbit.training.quantizer import count_in_degrees
from hpcgnn.partition.build import build_partition
from hpcgnn.training.batch_graph import within_batches
from hpcgnn.training.session import Session

CUT = {"clusters": 24}
JOINED = {"clusters": 24, "batch_size": 3, "between_clusters": True}
BOTH = pytest.mark.parametrize("cut", [CUT, JOINED], ids=["clusters", "batches"])


def part_of(comm, dataset):
    return build_partition(dataset, random_owner(dataset, comm.size), comm.rank, comm.size)


def reading(cut):
    """How inference in batches is asked for the same."""
    return (cut["clusters"], cut.get("batch_size", 16)), {"keeps_all": cut.get("between_clusters", False)}


def arcs_of(indptr, indices, target_id, node_id):
    """A rank's arcs, (target, source) by global id."""
    return set(zip(np.repeat(target_id, np.diff(indptr)).tolist(), node_id[indices].tolist(), strict=True))


def of_all(comm, own):
    """Collective: the union over all ranks, of which none repeats another's."""
    gathered = comm.allgather(own)
    assert sum(map(len, gathered)) == len(set().union(*gathered))
    return set().union(*gathered)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("epoch_rows", ["all", "reachable"])
@BOTH
def test_training_reads_the_arcs_that_inference_in_batches_reads(shared_path, cut, epoch_rows):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    numbers, keeping = reading(cut)
    batches = DealtBatches.deal(comm, part_of(comm, dataset), *numbers, **keeping).batches
    expected = of_all(comm, arcs_of(batches.indptr, batches.indices, batches.node_id, batches.node_id))
    shards = write_once(comm, dataset, shared_path / "shards")
    graph = Session.open(comm, shards, TrainConfig.of(**SMALL, **cut, epoch_rows=epoch_rows)).graph
    found = of_all(comm, arcs_of(*graph.arcs, graph.node_id[:graph.num_inner], graph.node_id))
    assert found == expected and 0 < len(found) < dataset.num_edges


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("epoch_rows", ["all", "reachable"])
@BOTH
def test_sums_have_degrees_within_batches_and_steps_those_of_the_whole_graph(shared_path, cut, epoch_rows):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    numbers, keeping = reading(cut)
    batches = cut_batches(dataset.indptr, dataset.indices, *numbers, **keeping)
    within = np.empty(dataset.num_nodes, np.int64)
    within[batches.node_id] = batches.in_degree
    shards = write_once(comm, dataset, shared_path / "shards")
    config = TrainConfig.of(**SMALL, **cut, epoch_rows=epoch_rows, quantize="degree-steps")
    session = Session.open(comm, shards, config)
    graph = session.graph
    assert np.array_equal(graph.degree, within[graph.node_id])           # of halo rows too, as their owners count them
    assert np.array_equal(graph.in_degree, dataset.in_degree()[graph.node_id])
    assert np.array_equal(count_in_degrees(graph, comm), np.bincount(dataset.in_degree()))
    assert not np.array_equal(graph.degree, graph.in_degree)


@pytest.mark.parallel([2, 3])
@BOTH
def test_no_row_travels_that_no_arc_reads(cut):
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    whole = part_of(comm, dataset)
    (num_clusters, batch_size), keeping = reading(cut)
    part = within_batches(comm, whole, num_clusters, batch_size, **keeping)
    assert np.array_equal(np.unique(part.indices[part.indices >= part.num_inner]),
                          part.num_inner + np.arange(part.num_halo))
    assert 0 < part.num_halo < whole.num_halo and len(part.importance) == len(part.in_degree)
    asked = comm.alltoall([part.halo_id[part.halo_offset[rank]:part.halo_offset[rank + 1]].tolist()
                           for rank in range(comm.size)])
    sent = [part.inner_id[part.boundary_index[part.boundary_offset[rank]:part.boundary_offset[rank + 1]]].tolist()
            for rank in range(comm.size)]
    assert sent == asked
    assert set(np.flatnonzero(part.importance[:part.num_inner])) <= set(part.boundary_index.tolist())
    assert ExchangePlan.build(part).num_halo == part.num_halo


@pytest.mark.parallel([1, 2])
def test_one_cluster_is_the_whole_graph(shared_path, shards):
    comm = MPI.COMM_WORLD
    whole, cut = (train(comm, shards, shared_path / name, **settings)[1]
                  for name, settings in (("whole", {}), ("cut", {"clusters": 1})))
    assert losses(cut).tobytes() == losses(whole).tobytes()


@pytest.mark.covering(1)
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("cut, settings", long_but((1, 2, 3, 4, 7), [
    (JOINED, {"model": "gcn"}), (CUT, {"model": "sage"}), (JOINED, {"model": "gat", "heads": 2}),
    (CUT, {"model": "gin", "lr": 0.001}), (JOINED, {"pre_aggregation": "on"}), (CUT, {"epoch_rows": "all"}),
    (JOINED, {"rematerialize": True}),
    (CUT, {"quantize": "degree-steps", "quantize_bits": 8, "lr": 0.005, "quantize_lr": 0.01})]),
    ids=lambda settings: "-".join(map(str, settings.values())))
def test_losses_and_scores_equal_those_of_one_rank(shared_path, cut, settings):
    settings = {"epochs": 3, "dropout": 0.5, **cut, **settings}
    _, found, _, expected = train_as_one(MPI.COMM_WORLD, easy_graph(), shared_path, **settings)
    np.testing.assert_allclose(losses(found), losses(expected), rtol=5e-4)
    last = [records[-1]["val_score"] for records in (found, expected)]
    assert last[0] == pytest.approx(last[1], abs=0.03)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("method", [pytest.param("adaqp", marks=pytest.mark.long), "bns", "pipegcn"])
def test_any_method_moves_what_rows_are_left(shared_path, shards, method):
    comm = MPI.COMM_WORLD
    summary, metrics, _ = train(comm, shards, shared_path / "run", epochs=20, lr=0.06, hidden=16, method=method, **CUT)
    assert losses(metrics)[-1] < 0.7 * losses(metrics)[0] and summary["test_score"] > 0.6


@pytest.mark.parametrize("model", ["dagnn", "gcnii", "appnp", "sage-max", "my_models:Own"])
def test_models_that_do_not_answer_in_batches_are_refused(model):
    with pytest.raises(ConfigError, match=f"clusters 8 can't be used with model {model}: .* gcn, sage, gin, gat only"):
        TrainConfig.of(model=model, clusters=8)


@pytest.mark.parametrize("settings, words", [
    ({"clusters": 8, "steps": "4"}, "clusters 8 can't be used with steps 4: .*; choose one"),
    ({"clusters": 8, "steps": "rows:4"}, "clusters 8 can't be used with steps rows:4: .*; choose one"),
    ({"between_clusters": True}, "between_clusters has no effect on the whole graph; leave it out, or set clusters"),
    ({"batch_size": 4}, "batch_size 4 has no effect .*; leave it out, or set clusters and between_clusters too"),
    ({"clusters": 8, "batch_size": 4}, "batch_size 4 has no effect if edges between clusters are left out"),
    ({"clusters": -1}, "clusters must be at least 0, found -1"),
    ({"clusters": 8, "between_clusters": True, "batch_size": 0}, "batch_size must be at least 1, found 0")])
def test_settings_without_a_meaning_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig.of(model="gcn", **settings)


@pytest.mark.parallel([1, 2])
def test_arcs_with_weights_are_refused_on_all_ranks():
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    part = weigh_part(part_of(comm, dataset), dataset, draw_weights(dataset))
    with pytest.raises(CollectiveError, match=r"in batches without edge weights, .*; leave clusters out"):
        within_batches(comm, part, 8, 16, keeps_all=False)


@pytest.mark.parallel([1, 2])
def test_a_graph_that_can_not_be_cut_fails_on_all_ranks(monkeypatch):
    comm, dataset = MPI.COMM_WORLD, easy_graph()

    def give_up(*arguments, **named):
        raise ConfigError("METIS gave up")

    monkeypatch.setattr("hpcgnn.partition.clusters.batch_clusters", give_up)
    with pytest.raises(CollectiveError, match="METIS gave up"):
        within_batches(comm, part_of(comm, dataset), 8, 16, keeps_all=False)


@pytest.mark.parallel([2])
def test_a_rank_without_a_node_takes_part():
    comm, dataset = MPI.COMM_WORLD, easy_graph()
    part = build_partition(dataset, np.zeros(dataset.num_nodes, np.int32), comm.rank, comm.size)
    found = within_batches(comm, part, 24, 16, keeps_all=False)
    assert replace(found, part=0).num_inner == part.num_inner and found.num_halo == 0
    assert found.num_edges < part.num_edges or comm.rank == 1
