"""`hpcgnn bench ranks`: a rank's work grows with its neighbors and not with the number of ranks, counted, not timed."""

from __future__ import annotations

import gc
import json
import sys

import numpy as np
import pytest
from covering import long_but

from hpcgnn.bench.ranks import RanksBenchmark, SimulatedRank, peak_bytes
from hpcgnn.exchange.plan import ring_rounds

MANY, FEW, ROWS = 2000, 200, 3
# What a plan is built from has two numbers a part, which are looked at once.
NAMES = ("plan", "agreement", "links", "layouts", "posting", "posting at once", "exchange", "solver",
         "solver, a budget")


def num_calls(work):
    """Calls of Python's and C's functions that a work makes."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def counts(num_ranks, num_neighbors, name):
    """(calls, messages and bytes in them, collectives and bytes in them, most bytes at once) of one work."""
    rank = SimulatedRank.draw(num_ranks, num_neighbors, ROWS)
    work = rank.works()[name]
    work()
    before = dict(vars(rank.comm))
    calls = num_calls(work)
    counted = [value - before[key] for key, value in vars(rank.comm).items() if key not in ("rank", "size")]
    return calls, counted, peak_bytes(work)


@pytest.mark.parametrize("name", long_but((0, 1, 2, 6, 7), NAMES))
def test_ten_times_the_ranks_cost_a_rank_nothing(name):
    """Calls may differ by what draws of other numbers make of them, and bytes by the plan's two offsets a part."""
    calls, counted, num_bytes = counts(FEW, 20, name)
    calls_of_many, counted_of_many, bytes_of_many = counts(MANY, 20, name)
    assert counted_of_many == counted
    assert calls_of_many <= 1.05 * calls + 20
    offsets = 24 * (MANY - FEW) if name in ("plan", "agreement") else 0
    assert bytes_of_many <= 1.05 * num_bytes + offsets + 20_000


@pytest.mark.parametrize("name", long_but((0, 3, 4, 6, 7), NAMES))
def test_ten_times_the_neighbors_cost_a_rank_ten_times_as_much(name):
    calls, counted, num_bytes = counts(MANY, 5, name)
    more_calls, more_counted, more_bytes = counts(MANY, 50, name)
    assert more_calls <= 11 * calls + 100 and more_bytes <= 11 * num_bytes + 100_000
    messages, message_bytes, *collectives = counted
    assert more_counted == [10 * messages, 10 * message_bytes, *collectives]


def test_the_simulated_rank_shares_rows_with_the_neighbors_it_was_given():
    for num_ranks, num_neighbors in ((2, 1), (64, 63), (1000, 10), (1000, 11)):
        plan = SimulatedRank.draw(num_ranks, num_neighbors, ROWS).plan
        others = [place for place, peer in enumerate(plan.peers) if peer != plan.rank]
        assert len(others) == num_neighbors == len(plan.peers) - 1
        assert all(len(plan.boundary[place]) == len(plan.halo[place]) == ROWS for place in others)
        assert plan.rounds == ring_rounds(plan.rank, num_ranks, plan.peers)
        node_id = np.concatenate([rows.node_id for rows in plan.halo])
        assert (np.diff(node_id) > 0).all()


def test_each_work_is_measured_for_every_number_of_ranks_and_neighbors():
    rows = list(RanksBenchmark((4, 100), (2, 50), rows=2, repeat=1).measure())
    assert list(dict.fromkeys(row.group for row in rows)) == list(NAMES)
    cases = {(row.details["num_neighbors"], row.details["num_ranks"]) for row in rows}
    assert cases == {(2, 4), (3, 4), (2, 100), (50, 100)} and len(rows) == 4 * len(NAMES)
    posted = {(row.details["num_neighbors"], row.details["num_messages"]) for row in rows if row.group == "posting"}
    assert posted == {(neighbors, 2 * neighbors) for neighbors in (2, 3, 50)}


def test_the_command_prints_a_table_and_writes_its_figures(bench, tmp_path):
    status, printed, _ = bench("--repeat", 1, "--out", tmp_path, "ranks", "--ranks", 70, "--neighbors", 2)
    assert status == 0 and "2 neighbors of 70 ranks" in printed
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["kind"] == "ranks" and len(content["measurements"]) == len(NAMES)


@pytest.mark.parametrize("words, sentence", [
    (["--ranks", "1"], "--ranks is '1' and --neighbors '10,100,1000'; expected numbers from 2 and from 1 on"),
    (["--neighbors", "few"], "--neighbors is 'few'; expected positive numbers with commas between them"),
    (["--threads", "2"], "--threads is not for this benchmark: a rank's own work has one")])
def test_nonsense_is_refused(bench, words, sentence):
    assert bench("ranks", *words) == (2, "", f"hpcgnn: {sentence}\n")
