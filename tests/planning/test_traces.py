"""Traces: bytes, seconds and order of what every rank does, read back from the files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from planning_setup import NETWORK, even_loads, parse_method, small_cluster

from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.partition.work import hops_to_loss
from hpcgnn.planning.loads import count_loads, count_shared_pairs
from hpcgnn.planning.model import ModelSize
from hpcgnn.planning.predictions import predict
from hpcgnn.planning.stages import bytes_of_sum, total
from hpcgnn.planning.traces import MOST_BYTES, OPERATIONS, Ring, Traces, write_traces

SPEC = "synthetic:nodes=900,mean_degree=6,classes=30,features=8,homophily=0.9"
SIZES = {"sage": ModelSize("sage", 8, 64, 30, 3), "steps": ModelSize("sage", 8, 64, 30, 3, num_steps=4),
         "gcnii": ModelSize("gcnii", 8, 64, 30, 3), "links": ModelSize("gcn", 8, 64, 30, 3, num_drawn=10)}
METHODS = ("vanilla", "uniform:1", "pipegcn", "bns")
NUM_PARTS = 10


@pytest.fixture(scope="module")
def loads():
    graph = load_source(SPEC, SourceOptions())
    owner = (np.arange(graph.num_nodes) * NUM_PARTS // graph.num_nodes).astype(np.int32)
    counted = count_loads(graph.indptr, graph.indices, graph.train_mask, owner, NUM_PARTS, 3)
    hops = hops_to_loss(graph.indptr, graph.indices, graph.train_mask, 3)
    return replace(counted, shared=count_shared_pairs(graph.indptr, graph.indices, hops, owner, 4, counted))


def actions(text):
    """The actions of a rank's trace as (name, numbers); each line begins with the rank."""
    lines = [line.split() for line in text.splitlines()]
    assert len({line[0] for line in lines}) == 1 and lines[0][1:] == ["init"] and lines[-1][1:] == ["finalize"]
    return [(line[1], [int(value) for value in line[2:]]) for line in lines[1:-1]]


def traced(loads, method, size, folder, cluster=None):
    """(prediction, the actions of each rank), read from the files that were written."""
    cluster = cluster or small_cluster()
    one = predict(size, loads, parse_method(method, size), cluster, "cut")
    own = write_traces(folder, one, size, cluster)
    names = (own / "ranks.txt").read_text().split()
    return one, [actions((own / name).read_text()) for name in names]


CASES = [(method, "sage", is_shared) for method in METHODS for is_shared in (False, True)] + [
    ("vanilla", name, False) for name in ("steps", "gcnii", "links")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def written(request, loads, tmp_path_factory):
    method, name, is_shared = request.param
    return *traced(loads if is_shared else replace(loads, shared=None), method, SIZES[name],
                   tmp_path_factory.mktemp("traces")), SIZES[name]


def test_bytes_by_peer_are_the_plans(written):
    one, ranks, _ = written
    sent = Counter()
    for rank, lines in enumerate(ranks):
        for name, numbers in lines:
            if name == "isend":
                sent[rank, numbers[0]] += numbers[2]
    pairs = sorted(pair for pair, num_bytes in sent.items() if num_bytes)
    planned = one.sent.by_pair[one.sent.by_pair > 0]
    # bns draws rows: its messages are means, rounded to bytes in each exchange.
    assert [sent[pair] for pair in pairs] == pytest.approx(planned, abs=0 if one.messages.is_exact else 10)


def test_every_message_has_its_receive_and_is_waited_for(written):
    _, ranks, _ = written
    sends, receives = Counter(), Counter()
    for rank, lines in enumerate(ranks):
        pending = []
        for name, numbers in lines:
            if name in ("isend", "send"):      # a send that blocks has no bytes, and leaves at once
                sends[(rank, *numbers)] += 1
                assert (name == "send") == (numbers[2] == 0)
            elif name == "irecv":
                receives[(numbers[0], rank, *numbers[1:])] += 1
            if name in ("isend", "irecv"):
                pending.append(numbers)
            elif name == "waitall":
                assert numbers == [len(pending)]
                pending.clear()
            elif name == "wait":
                last = pending.pop()
                assert numbers == [last[0], rank, last[1]]
        assert not pending
    assert sends == receives and sends.total() > NUM_PARTS


def test_seconds_of_computing_are_those_of_the_plans_stages(written):
    one, ranks, _ = written
    stages = total(one.seconds.by_stage[name] for name in ("products", "sums", "passes", "pack", "step"))
    computed = [sum(numbers[0] for name, numbers in lines if name == "compute") for lines in ranks]
    assert np.array(computed) / OPERATIONS == pytest.approx(stages, rel=1e-5)      # whole operations are written


def test_gradients_are_summed_once_a_step(written):
    _, ranks, size = written
    for lines in ranks:
        found = [numbers for name, numbers in lines if name == "allreduce"]
        assert found == [[bytes_of_sum(size), 0, 6]] * size.num_steps


def test_rounds_are_those_of_the_ring(loads, tmp_path):
    """A round waits for what it posted: one message to rank + i, one from rank - i, and i grows."""
    _, ranks = traced(replace(loads, shared=None), "vanilla", SIZES["sage"], tmp_path)
    for rank, lines in enumerate(ranks):
        last, number = (-1, 0), set()
        for name, numbers in lines:
            if name in ("irecv", "isend"):
                number.add((numbers[1], (numbers[0] - rank if name == "isend" else rank - numbers[0]) % NUM_PARTS))
            elif name == "waitall":
                (this,) = number
                assert this > last
                last, number = this, set()


def test_nobody_waits_for_pipelined_messages_before_the_end(loads, tmp_path):
    _, ranks = traced(loads, "pipegcn", SIZES["sage"], tmp_path)
    own = [[name for name, _ in lines] for lines in ranks]
    assert all(names[-2:] == ["allreduce", "waitall"] and names.count("waitall") == 1 for names in own)


def test_sums_of_central_rows_are_computed_between_a_round_and_its_end(tmp_path):
    def between(method, size):
        _, (lines, *_) = traced(even_loads(4), method, size, tmp_path / method)
        return sum(numbers[0] for (before, _), (name, numbers), (after, _) in zip(lines, lines[1:], lines[2:],
                                                                                  strict=False)
                   if (before, name, after) == ("isend", "compute", "waitall"))

    rates = small_cluster().rates_of("fp32")
    # 5,000 of 10,000 edges go into central rows, 8,000 come from own rows; 64 columns of float32 in a table of 1,000.
    seconds = sum(edges * 64 * 4 / rates.gather_rate(64, np.array([1000 * 64 * 4]))[0] for edges in (5000, 8000))
    size = replace(SIZES["sage"], num_layers=2, out_dim=64)
    assert between("vanilla", size) / OPERATIONS == pytest.approx(seconds, rel=1e-4)
    assert between("pipegcn", size) == 0


def test_long_messages_travel_in_pieces():
    pairs = replace(even_loads(2).pairs, rows=np.array([1, 1]))
    ring = Ring(pairs, np.array([2 * MOST_BYTES + 5, 0]), 2)
    from hpcgnn.planning.traces import _posts

    (of_sender,), (of_receiver,) = (list(ring.rounds(rank)) for rank in (0, 1))
    assert _posts(of_sender, 3, 0, 1) == [f"isend 1 6 {size} 6" for size in (MOST_BYTES, MOST_BYTES, 5)]
    assert _posts(of_receiver, 3, 0, 1) == [f"irecv 0 6 {size} 6" for size in (MOST_BYTES, MOST_BYTES, 5)]


def test_a_rank_is_written_without_the_others():
    """4,096 ranks that all meet all others have 16.8 M messages an exchange; a rank's lines are made alone."""
    cluster = small_cluster(network=replace(NETWORK, ranks_per_node=1))
    size = replace(SIZES["sage"], num_layers=2)
    one = predict(size, even_loads(300, num_hops=2), parse_method("vanilla", size), replace(cluster, rates={}), "cut")
    lines = Traces(one, size, cluster).lines(17)
    assert next(lines) == "init" and sum(line.startswith("isend") for line in lines) == 2 * 299
