"""jobs/measurements/combination.py: all ways compute the same, and each has its row for each width and density."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.bench.place import Place
from hpcgnn.bench.timing import Effort

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements import combination
from measurements.combination import ALL_BITS, ALL_CODES, FP32, INT8, NON_ZERO, CombinationBenchmark

PLACE = Place(Effort(1))
WAYS = ["auto", "dense", "bits", "sparse", "serial", "packages", "packages, serial"]


def test_all_contestants_give_the_same_numbers(monkeypatch):
    """Timing is replaced by taking what each contestant returns."""
    results = []

    def call_all(contestants, place):
        results.append({name: np.asarray(work()) for name, work in contestants.items()})
        return {name: [1.0] for name in contestants}

    monkeypatch.setattr(combination, "time_in_any_order", call_all)
    rows = list(CombinationBenchmark(PLACE, 30, 70, 9, (1, 4, 7), 4, (0.05, 1.0)).measure())
    assert len(rows) == 6 * len(WAYS)
    for found in results:
        assert list(found) == [*WAYS, INT8, FP32, ALL_CODES, ALL_BITS, NON_ZERO]
        assert all(np.array_equal(found[name], found["dense"]) for name in (*WAYS, INT8, FP32))
        # A product of codes of 1 bit and weights of 4 takes four of bits, and codes of 7 bits take more.
        assert found[ALL_CODES] >= 30 * 70 * 9 and found[ALL_BITS] >= 4 * 30 * 70 * 9


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_a_way_is_held_against_the_products_that_it_needs(monkeypatch, density):
    done = {}
    for kind in ("bit", "byte"):
        monkeypatch.setattr(Place, f"multiplying_{kind}s", lambda place, number, kind=kind: lambda: (kind, number))

    def call_all(contestants, place):
        done.update({name: work() for name, work in contestants.items()})
        return {name: [len(name)] for name in contestants}

    monkeypatch.setattr(combination, "time_in_any_order", call_all)
    measured = CombinationBenchmark(PLACE, 30, 70, 9, (3,), 4, (density,)).measure()
    shares = {row.details["way"]: row.seconds.get("ceiling") for row in measured}
    assert done[ALL_CODES] == ("byte", 30 * 70 * 9) and done[ALL_BITS] == ("bit", 30 * 70 * 9 * 3 * 4)
    assert done[NON_ZERO] == ("byte", 9 * np.count_nonzero(combination.random_codes(30, 70, 3, density)[0]))
    assert shares.pop("auto") is None and shares.pop("dense") == [len(ALL_CODES)]
    assert shares.pop("bits") == [len(ALL_BITS)]
    assert shares == {way: [len(NON_ZERO)] for way in ("sparse", "serial", "packages", "packages, serial")}


def test_the_command_writes_a_row_a_way_with_the_ratios_to_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hpcgnn.bench.environment.run_in", lambda *arguments: None)    # this process is small enough
    monkeypatch.setattr(combination, "CombinationBenchmark",
                        partial(CombinationBenchmark, num_rows=20, dim=40, num_outputs=8, widths=(1, 8),
                                densities=(0.1,)))
    with pytest.raises(SystemExit) as stop:
        combination.main(["--repeat", "3", "--out", str(tmp_path / "out")])
    assert not stop.value.code, capsys.readouterr().err
    rows = json.loads((tmp_path / "out/bench.json").read_text())["measurements"]
    assert [(row["bits"], row["way"]) for row in rows] == [(bits, way) for bits in (1, 8) for way in WAYS]
    assert all(set(row["peer_ratio"]) == {INT8, FP32} and row["amount"] == 2 * 20 * 40 * 8 / 1e9 for row in rows)


def test_every_contestant_is_timed_as_often_whatever_the_order():
    seconds = combination.time_in_any_order({"a": list, "b": dict, "c": set}, Place(Effort(5)))
    assert {name: len(spent) for name, spent in seconds.items()} == {"a": 5, "b": 5, "c": 5}
