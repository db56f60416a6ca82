"""The tables of benchmarks: which run a rate is chosen by, and what a difference and its error are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


def write_run(folder, validation, test, std=0.01, **others):
    """The summary of a run; its test score is that of all seeds."""
    folder.mkdir(parents=True)
    summary = {"seeds": list(range(len(validation))), "test_score": test, "test_score_std": std,
               "results": [{"val_score": score} for score in validation], **others}
    (folder / "summary.json").write_text(json.dumps(summary))


def run_script(name, *arguments):
    command = [sys.executable, JOBS / name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.fixture
def rates(tmp_path):
    """Three rates: the best over all its seeds is not the best over the first three, where two are equal."""
    place = tmp_path / "cora" / "gcn" / "fp32"
    write_run(place / "0.01", [0.70, 0.72, 0.74], 0.80)
    write_run(place / "0.003", [0.72, 0.72, 0.72, 0.50, 0.50], 0.82)
    write_run(place / "0.001", [0.60, 0.60, 0.60, 0.99, 0.99], 0.84)
    return place


def test_rates_are_compared_by_their_first_seeds_and_the_largest_of_equals_wins(rates):
    for order in (("0.01", "0.003", "0.001"), ("0.001", "0.003", "0.01")):
        assert run_script("best_rate.py", *(rates / rate for rate in order)).strip() == str(rates / "0.01")


def test_the_table_has_the_chosen_rate_and_the_error_of_the_difference(rates, tmp_path):
    stored = {"quantize": "uniform", "feature_bits": [4, 4], "mean_feature_bits": 4.0, "feature_kb": 100.0,
              "stored_kb": 120.0, "float_kb": 960.0, "meets_target": True}
    write_run(tmp_path / "cora" / "gcn" / "uniform" / "0.001", [0.7] * 12, 0.79, 0.02, **stored)
    header, _, full, uniform = map(cells, run_script("degree_aware_table.py", tmp_path).splitlines())
    named = dict(zip(header, uniform, strict=True))
    assert dict(zip(header, full, strict=True))["lr"] == "0.01"
    assert (named["lr"], named["seeds"], named["less fp32"]) == ("0.001", "12", "-1.00")
    # sqrt(1 / 3 + 4 / 12), the squared standard errors of both in percent
    assert named["± its error"] == "0.82" and named["times smaller"] == "8.0"
