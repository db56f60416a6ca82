"""Measurements: contestants alternate, and medians, shares and ratios follow from the repetitions that are recorded."""

from __future__ import annotations

import statistics

import pytest

from hpcgnn.bench import timing
from hpcgnn.bench.place import Place, admit
from hpcgnn.bench.timing import CEILING, OURS, Effort, Measurement


def test_contestants_alternate_after_one_untimed_call_of_each():
    calls = []
    seconds = Place(Effort(3)).interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    assert calls == ["a", "b"] * 4
    assert {name: len(spent) for name, spent in seconds.items()} == {"a": 3, "b": 3}


def test_a_slow_contestant_stops_once_it_has_used_up_its_seconds(monkeypatch):
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    works = {"slow": lambda: None}
    assert Place(Effort(repeat=9, seconds=15.0)).interleave(works) == {"slow": [5, 5, 5, 5]}
    assert len(Place(Effort(repeat=9, seconds=1e6)).interleave(works)["slow"]) == 9


def test_a_slow_first_call_counts_only_where_another_would_take_too_long(monkeypatch):
    """It may have imported modules."""
    clock, calls = iter([0.0, 0.5, 10.0, 14.0, 20.0, 23.0, 30.0, 41.0, *range(50, 100)]), []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    works = {name: lambda name=name: calls.append(name) for name in ("quick", "slow", "hopeless")}
    assert Place(Effort(4, 10.0)).interleave(works) == {"quick": [1, 1, 1, 1], "slow": [3.0], "hopeless": [11.0]}
    assert calls == ["quick", "slow", "slow", "hopeless", *["quick"] * 4]


def test_ratios_and_shares_are_of_medians():
    row = Measurement("spmm", "g", 6.0, "GB/s", {CEILING: [1.0, 9.0, 1.0], OURS: [2.0, 3.0, 1.0], "dgl": [8.0, 4.0]})
    assert row.median() == 2.0 and row.rate == 3.0
    assert row.ceiling_share == 0.5
    assert row.peers == ["dgl"] and row.peer_ratio == {"dgl": 3.0}


def test_a_record_holds_every_repetition_and_what_follows_from_it():
    seconds = {OURS: [2.0, 4.0], "torch": [9.0, 11.0]}
    record = Measurement("g", "c", 3.0, "GB/s", seconds, ["r"], {"more": 1}).as_record()
    assert record["seconds"] == seconds and record["remarks"] == ["r"] and record["more"] == 1
    assert record["median_seconds"] == {name: statistics.median(spent) for name, spent in seconds.items()}
    assert record["rate"] == 1.0 and record["peer_ratio"]["torch"] == pytest.approx(10 / 3)
    assert record["ceiling_share"] is None


def test_seconds_alone_have_no_rate():
    assert Measurement("epoch", "c", 0.0, "s", {OURS: [1.0]}).rate is None


def test_hot_work_runs_once_untimed_before_each_repetition():
    calls = []
    seconds = Place(Effort(3)).interleave({"a": lambda: calls.append("a")}, is_hot=True)
    assert (len(calls), len(seconds["a"])) == (1 + 2 * 3, 3)


def test_known_seconds_stand_beside_those_that_are_timed_and_what_does_not_exist_is_left_out():
    row = Place(Effort(3)).measure("g", "c", 1.0, "s", {CEILING: 0.25, OURS: list, "peer": None})
    assert row.seconds[CEILING] == [0.25] and len(row.seconds[OURS]) == 3 and set(row.seconds) == {CEILING, OURS}


def test_a_peer_that_refuses_is_remarked():
    def refuse():
        raise RuntimeError("no such product\nbacktrace")

    assert admit({"able": list, "other": refuse}, "spmm in fp16") == (
        {"able": list}, ["other refuses spmm in fp16: no such product"])
