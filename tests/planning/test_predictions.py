"""Estimates from samples, larger graphs, stages, memory, and what is recommended."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from planning_setup import NETWORK, parse_method, small_cluster

from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import ConfigError
from hpcgnn.planning import planner
from hpcgnn.planning.loads import count_loads
from hpcgnn.planning.model import ModelSize
from hpcgnn.planning.planner import Choices, Cutter, layout_remarks, layouts_of, make_plan, plan_record
from hpcgnn.planning.predictions import predict, recommend
from hpcgnn.planning.sampling import GraphSizes, least_share, parse_sizes, scaled_loads, spread
from hpcgnn.planning.stages import STAGES, epoch_seconds

SPEC = "synthetic:nodes=3000,mean_degree=6,classes=30,features=8,homophily=0.9"
SIZE = ModelSize("sage", 8, 64, 30, 3)


@pytest.fixture(scope="module")
def graph():
    return load_source(SPEC, SourceOptions())


@pytest.fixture(scope="module")
def loads(graph):
    owner = (np.arange(graph.num_nodes) * 16 // graph.num_nodes).astype(np.int32)
    return count_loads(graph.indptr, graph.indices, graph.train_mask, owner, 16, 3)


def predictions(loads, cluster=None, methods=("vanilla", "uniform:8", "pipegcn")):
    cluster = cluster or small_cluster()
    return [predict(SIZE, loads, parse_method(name, SIZE), cluster, "cut") for name in methods]


def test_stages_of_the_slowest_rank_sum_to_the_epoch(loads):
    for one in predictions(loads):
        assert tuple(one.seconds.of_slowest) == STAGES
        assert sum(one.seconds.of_slowest.values()) == pytest.approx(one.seconds.epoch)
        assert one.seconds.epoch == max(one.seconds.by_rank)


def test_a_rate_twice_as_high_halves_its_stage(loads):
    fast = small_cluster()
    fast.rates["fp32"] = replace(fast.rates["fp32"], map_flops=2e11, gradient_flops=16e10)
    slow = epoch_seconds(SIZE, loads, parse_method("vanilla", SIZE), small_cluster()).by_stage
    found = epoch_seconds(SIZE, loads, parse_method("vanilla", SIZE), fast).by_stage
    assert found["products"] == pytest.approx(slow["products"] / 2)
    assert all(np.array_equal(found[stage], slow[stage]) for stage in STAGES if stage != "products")


def test_nobody_waits_for_pipelined_messages_but_for_what_passes_an_epoch(loads):
    vanilla, _, pipelined = predictions(loads)
    assert pipelined.seconds.exchange == vanilla.seconds.exchange
    assert pipelined.seconds.epoch < vanilla.seconds.epoch
    slow = small_cluster(network=replace(NETWORK, between_rate=1e5, nic_rate=1e5))
    bound = predictions(loads, slow, ("pipegcn",))[0].seconds
    assert bound.epoch == pytest.approx(bound.exchange)


def test_fewer_bits_take_less_time_and_fewer_bytes(loads):
    vanilla, packed, _ = predictions(loads)
    assert packed.sent.total < vanilla.sent.total / 3 and packed.seconds.exchange < vanilla.seconds.exchange
    near, far = (vanilla.sent.of(is_near)[0] for is_near in (True, False))
    assert near + far == vanilla.sent.total and near > 0 < far


def test_what_does_not_fit_is_not_recommended(loads):
    found = predictions(loads)
    best, reasons = recommend(found)
    assert best.seconds.epoch == min(one.seconds.epoch for one in found)
    assert reasons[0].startswith(f"16 ranks with {best.messages.name}: ")
    node = max(4 * one.peak_bytes for one in found)
    tight = predictions(loads, small_cluster(memory_bytes=node / 8))
    assert not any(one.fits for one in tight)
    assert recommend(tight)[1][0].startswith("no run fits its nodes' memory")


def test_more_ranks_must_be_worth_their_cost(graph, loads):
    """Twice the ranks for next to nothing are not recommended, though their epoch is the shorter."""
    one_part = count_loads(graph.indptr, graph.indices, graph.train_mask, np.zeros(graph.num_nodes, np.int32), 1, 3)
    slow = small_cluster(step_seconds=1.0)      # which no rank shortens
    single, many = (predictions(which, slow, ("uniform:8",))[0] for which in (one_part, loads))
    assert many.seconds.epoch < single.seconds.epoch
    best, reasons = recommend([single, many])
    assert best is single and "16 ranks with uniform:8 would be 1.0" in reasons[1]


def test_a_sample_s_own_parts_stand_for_all(graph, loads):
    every = spread(loads, 16, 1.0)
    for name in ("num_inner", "num_halo", "num_edges", "rows_within", "arcs_within", "far_arcs_within"):
        assert np.array_equal(getattr(every, name), getattr(loads, name)), name
    more = spread(loads, 64, 4.0)
    assert more.num_inner.sum() == 4 * graph.num_nodes
    received = np.bincount(more.pairs.destination, weights=more.pairs.rows, minlength=64)
    assert received == pytest.approx(np.tile(loads.num_halo, 4), rel=0.05)
    pair = more.pairs.source * 64 + more.pairs.destination
    assert len(np.unique(pair)) == len(pair) and (more.pairs.source != more.pairs.destination).all()


@pytest.mark.parametrize("share, parts, expected", [(1.0, 64, 1.0), (0.25, 64, 0.25), (0.25, 8, 0.5), (0.25, 4, 1.0),
                                                    (0.3, 64, 1 / 3), (0.01, 16, 0.25)])
def test_a_region_has_parts_enough(share, parts, expected):
    assert least_share(share, parts) == expected


def test_an_estimate_is_near_the_count(graph):
    """Within a quarter of halo rows, on a graph with communities; a remark says that it is an estimate."""
    choices = Choices([32], ("vanilla",), hidden=64, sample=0.25)
    estimated = make_plan(SPEC, small_cluster(), choices)
    counted = make_plan(SPEC, small_cluster(), replace(choices, sample=None))
    one, other = estimated.predictions[0], counted.predictions[0]
    assert (one.source, other.source) == ("sample", "cut")
    assert one.loads.num_halo.sum() == pytest.approx(other.loads.num_halo.sum(), rel=0.25)
    assert one.loads.num_inner.sum() == pytest.approx(graph.num_nodes, rel=0.01)
    assert estimated.remarks[0].startswith("an estimate: 25 % of the nodes") and "estimate" not in counted.remarks[0]


def test_a_graph_of_too_many_arcs_is_sampled_without_being_asked(graph, monkeypatch):
    monkeypatch.setattr(planner, "MOST_ARCS", graph.num_edges / 4)
    assert make_plan(SPEC, small_cluster(), Choices([32], ("vanilla",), hidden=64)).predictions[0].source == "sample"


def test_a_larger_graph_grows_in_its_nodes_and_edges(graph, loads):
    sizes = GraphSizes(graph.num_nodes, graph.num_edges, 8, 30)
    same = scaled_loads(loads, sizes, sizes)
    assert same.num_halo.sum() == pytest.approx(loads.num_halo.sum(), abs=16)
    assert np.ptp(np.bincount(same.pairs.destination, weights=same.pairs.rows)) <= 16      # each rounded by half a row
    grown = scaled_loads(loads, GraphSizes(10 * graph.num_nodes, 30 * graph.num_edges, 100, 5), sizes)
    assert grown.num_inner.sum() == 10 * graph.num_nodes and np.ptp(grown.num_inner) == 0
    assert grown.num_edges.sum() == pytest.approx(30 * graph.num_edges, rel=1e-5)
    assert grown.halo_ratio == pytest.approx(loads.halo_ratio, rel=1e-3)
    assert grown.rows_within.sum(axis=0) == pytest.approx(10 * loads.rows_within.sum(axis=0), rel=1e-3)
    assert grown.pairs.rows.sum() == pytest.approx(10 * loads.pairs.rows.sum(), rel=1e-3)
    plan = make_plan(SPEC, small_cluster(), Choices([16], ("vanilla",), larger="nodes=30000,edges=60000,features=5,"
                                                                               "classes=7"))
    fewer = make_plan(SPEC, small_cluster(), Choices([16], ("vanilla",), larger="nodes=30000,edges=60000,features=5,"
                                                                                "classes=7,train=1600"))
    within = [one.predictions[0].loads.rows_within.sum(axis=0) for one in (fewer, plan)]
    assert within[0][0] == 1600 and (within[0] < within[1]).all()
    assert within[1][0] == pytest.approx(10 * graph.train_mask.sum(), rel=1e-3)
    assert (plan.size.in_dim, plan.size.out_dim) == (5, 7) and plan.remarks[0].startswith("a prediction for a larger")


@pytest.mark.parametrize("text, says", [
    ("nodes=1,edges=2,features=3", "--as lacks classes=N"), ("nodes=x,edges=2", "expected nodes=N once"),
    ("nodes=1,nodes=1", "has 'nodes=1'; expected nodes=N once"), ("colors=3", "has 'colors=3'; expected nodes=N"),
    ("nodes=0", "positive whole number")])
def test_sizes_that_are_nonsense_are_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_sizes(text)


def test_a_cut_counts_the_parts_that_preprocess_makes(graph):
    """The same owners as `assign_owners` gives preprocess."""
    from hpcgnn.partition.owner import assign_owners
    from hpcgnn.partition.work import hops_to_loss
    from hpcgnn.planning.graphs import PlannedGraph

    hops = hops_to_loss(graph.indptr, graph.indices, graph.train_mask, 3)
    found, how = Cutter(PlannedGraph(graph, 8, 30), Choices([8], ("vanilla",)), hops, 1).loads(8)
    owner = assign_owners(graph, 8)
    assert how == "cut" and found.num_inner.tolist() == np.bincount(owner).tolist()


def test_planning_needs_neither_mpi_nor_torch():
    """So that a plan starts at once, on a machine without either."""
    code = "import sys, hpcgnn.planning.planner; sys.exit(' '.join({'torch', 'mpi4py'} & set(sys.modules)) or None)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_plan_says_where_another_layout_would_receive_fewer_bytes():
    """16 parts of a dense graph without structure read nearly all rows: 15 times their own, and 2D 6 times."""
    badly = make_plan("synthetic:nodes=800,mean_degree=80,homophily=0,classes=4,features=8", None,
                      Choices([16], ("vanilla",), "gcn", 2, 64, partitioner="random"))
    one, = badly.predictions
    ours, *others = layouts_of(badly, one)
    weights = 2 * 15 / 16 * 4 * (8 * 64 + 64 * 4)
    assert ours.name == "1D" and ours.received_bytes == pytest.approx(one.sent.total / 16 + weights)
    plane, = (other for other in others if other.name == "2D")
    # 50 own rows; a gcn multiplies first, so rows of 4 columns travel.
    assert plane.grid == (4, 4) and plane.received_bytes == pytest.approx(2 * 6 * 50 * 4 * 4 + weights)
    said, = layout_remarks(badly)
    assert said.startswith("16 ranks with vanilla in another layout") and "hpcgnn trains 1D only" in said
    assert plan_record(badly)["predictions"][0]["layouts"][0]["grid"] == (16,)
    well = make_plan(SPEC, small_cluster(), Choices([16], ("vanilla",), "gcn", 2, 64))
    assert layout_remarks(well) == ["no 1.5D, 2D or 3D layout would need 1.5 times fewer seconds of messages than "
                                    "hpcgnn's 1D in these runs"]
    assert layout_remarks(make_plan(SPEC, None, Choices([16], ("vanilla",), "gat", 2, 64))) == []
