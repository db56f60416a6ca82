"""jobs/replay.py: replays by SimGrid of traces of `hpcgnn plan`, against arithmetic on 2 to 16 ranks."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planning_setup import even_loads, parse_method, small_cluster

from hpcgnn.planning.model import ModelSize, exchanges_of
from hpcgnn.planning.predictions import predict
from hpcgnn.planning.traces import write_traces

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from replay import FREE, platform_text, replay, topology_of

needs_simgrid = pytest.mark.skipif(shutil.which("smpirun") is None,
                                   reason="SimGrid is not installed (apt-get install libsimgrid-dev)")
SIZE = ModelSize("sage", 16, 64, 64, 3)
LATENCY, RATE = 42e-6, 1e9
NETWORK = {"ranks_per_node": 1, "within_latency": 1e-6, "within_rate": 1e10, "between_latency": LATENCY,
           "between_rate": RATE, "nic_rate": RATE}
NO_LATENCY = {**NETWORK, "between_latency": 0.0, "within_latency": 0.0, "between_rate": 1e30, "nic_rate": 1e30,
              "within_rate": 1e30}


def traced(loads, method, folder):
    """(prediction, folder of its traces)"""
    cluster = small_cluster()
    one = predict(SIZE, loads, parse_method(method, SIZE), cluster, "cut")
    return one, write_traces(folder, one, SIZE, cluster)


def uneven(num_parts):
    """Parts of 1,000, 2,000, .. rows and as many more edges."""
    loads, times = even_loads(num_parts), np.arange(1, num_parts + 1)
    names = ("num_inner", "rows_within", "arcs_within", "far_arcs_within", "central_arcs_within")
    return replace(loads, **{name: (getattr(loads, name).T * times).T for name in names})


@needs_simgrid
@pytest.mark.parametrize("num_ranks, loads, method", [(2, even_loads, "vanilla"), (8, even_loads, "uniform:1"),
                                                      (8, uneven, "pipegcn")])
def test_with_a_network_that_takes_no_time_the_slowest_ranks_computing_is_left(tmp_path, num_ranks, loads, method):
    """Ranks that wait for each other in every exchange are equal here."""
    one, traces = traced(loads(num_ranks), method, tmp_path)
    stages = one.seconds.by_stage
    computing = sum(stages[name] for name in ("products", "sums", "passes", "pack", "step"))
    seconds = replay(traces, platform_text("switch", num_ranks, NO_LATENCY), num_ranks, 1)
    assert seconds == pytest.approx(computing.max(), abs=2e-6)      # SimGrid prints microseconds


@needs_simgrid
def test_ranks_that_wait_in_every_exchange_take_longer_than_the_slowest_computes(tmp_path):
    loads = even_loads(4)
    rows = loads.rows_within.copy()
    rows[0, 2:] *= 8      # rank 0 is slow in the first layers, rank 3 in the last one
    rows[3, :2] *= 8
    one, traces = traced(replace(loads, rows_within=rows), "vanilla", tmp_path)
    stages = one.seconds.by_stage
    computing = sum(stages[name] for name in ("products", "sums", "passes", "pack", "step"))
    seconds = replay(traces, platform_text("switch", 4, NO_LATENCY), 4, 1)
    assert 1.05 * computing.max() < seconds < computing.sum()


@needs_simgrid
@pytest.mark.parametrize("num_ranks", [2, 5, 16])
def test_with_ranks_that_compute_in_no_time_the_rings_rounds_are_left(tmp_path, num_ranks):
    _, traces = traced(even_loads(num_ranks), "vanilla", tmp_path)
    for trace in traces.glob("rank-*.txt"):      # without the sum of the gradients
        trace.write_text("".join(line for line in trace.read_text().splitlines(True) if "allreduce" not in line))
    # Every rank has a node, sends 100 rows of 64 float32 in each of P - 1 rounds, and receives as many at once.
    rounds = len(list(exchanges_of(SIZE))) * (num_ranks - 1)
    seconds = replay(traces, platform_text("switch", num_ranks, NETWORK, speed=FREE), num_ranks, 1)
    assert rounds == 4 * (num_ranks - 1)
    assert seconds == pytest.approx(rounds * (LATENCY + 100 * 64 * 4 / RATE), abs=2e-6)


@needs_simgrid
@pytest.mark.parametrize("kind, farthest", [("switch", 15), ("fat-tree", 15), ("dragonfly", 15), ("torus", 14)])
def test_the_longest_path_has_the_latency_and_the_rate_of_the_network(tmp_path, kind, farthest):
    own = {0: f"0 isend {farthest} 0 1000000 6\n0 waitall 1\n", farthest: f"{farthest} recv 0 0 1000000 6\n"}
    for rank in range(16):
        (tmp_path / f"rank-{rank}.txt").write_text(f"{rank} init\n{own.get(rank, '')}{rank} finalize\n")
    (tmp_path / "ranks.txt").write_text("".join(f"rank-{rank}.txt\n" for rank in range(16)))
    seconds = replay(tmp_path, platform_text(kind, 16, NETWORK), 16, 1)
    assert seconds == pytest.approx(LATENCY + 1e6 / RATE, abs=1e-6)


@pytest.mark.parametrize("num_nodes", [1, 16, 33, 256, 1000])
@pytest.mark.parametrize("kind", ["fat-tree", "dragonfly", "torus"])
def test_a_topology_has_room_for_all_nodes(kind, num_nodes):
    found = topology_of(kind, num_nodes)
    parameters = found.text.partition("topo_parameters=\"")[2].rstrip("\"").split(";")
    counts = {"torus": parameters[0].split(","), "fat-tree": parameters[1 % len(parameters)].split(","),
              "dragonfly": [part.split(",")[0] for part in parameters]}[kind]
    assert np.prod([int(count) for count in counts]) == found.num_nodes >= max(num_nodes, 16)


def test_an_unknown_platform_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match="'ring' is unknown; expected switch, fat-tree, dragonfly or torus"):
        topology_of("ring", 4)
