"""jobs/measurements/assign.py: simulated exchanges, and the table of both solvers."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.bench.timing import OURS

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from measurements import assign
from measurements.assign import HIGHS, AssignBenchmark, simulated_problem


def benchmark(**changes):
    return AssignBenchmark(**{"num_ranks": 3, "sizes": (3000,), "group_size": 200, "widths": (2, 4, 8), "lam": 0.5,
                              "time_limit": 60.0, "gap": 1e-3, "repeat": 2, **changes})


def test_a_simulated_exchange_has_all_rows_in_uneven_pairs_and_repeats_with_its_seed():
    problem, again = (simulated_problem(8, 100_000, 500, (2, 4, 8), seed=3) for _ in range(2))
    assert np.array_equal(problem.beta, again.beta) and np.array_equal(problem.theta, again.theta)
    rows = np.bincount(problem.group_pair, problem.num_values, 64) / 256
    assert 100_000 - 56 <= rows.sum() <= 100_000
    assert (rows.reshape(8, 8).diagonal() == 0).all() and rows.max() > 5 * np.median(rows[rows > 0])
    assert not np.array_equal(problem.beta, simulated_problem(8, 100_000, 500, (2, 4, 8), seed=4).beta)


def test_both_solvers_are_measured_on_every_seed():
    row, = benchmark().measure()
    assert len(row.seconds[OURS]) == len(row.seconds[HIGHS]) == 2 and min(row.seconds[OURS]) > 0
    for ours, theirs, bound in zip(*(row.details[name] for name in ("objective", "highs_objective", "bound")),
                                   strict=True):
        assert bound <= ours <= 1.02 * theirs


def test_highs_without_an_answer_is_said_and_left_out_of_the_ratio():
    row, = benchmark(num_ranks=8, sizes=(300_000,), time_limit=0.01, repeat=1).measure()
    assert HIGHS not in row.seconds and "seed 0" in row.remarks[0] and "ime" in row.remarks[0]


def test_the_command_prints_a_table_and_writes_its_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(assign, "AssignBenchmark", partial(AssignBenchmark, sizes=(2000, 4000), group_size=300))
    with pytest.raises(SystemExit) as stop:
        assign.main(["--repeat", "1", "--out", str(tmp_path), "--ranks", "2"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert "2,000 rows, 8 groups" in printed and "4,000 rows" in printed and "beside highs" in printed
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["kind"] == "assign" and len(content["measurements"]) == 2
