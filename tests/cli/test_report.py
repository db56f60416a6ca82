"""`hpcgnn report` as a user calls it."""

import csv
import json

import pytest
from report.fake_runs import write_run

from hpcgnn.__main__ import main


def call(*arguments):
    """Run the command and return its exit status."""
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, arguments)])
    return stop.value.code or 0


def test_one_run_is_reported_into_its_folder(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert call(run) == 0
    assert (run / "report.html").exists()
    assert sorted(path.name for path in run.iterdir()) == ["config.toml", "metrics.jsonl", "report.html",
                                                            "summary.json"]
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {run / 'report.html'}"


def test_several_runs_are_reported_into_the_current_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "fp32")
    write_run(tmp_path / "packed", scale=16)
    assert call("fp32", "packed") == 0
    assert (tmp_path / "report.html").exists()
    output = capsys.readouterr().out
    assert "1/14.6" in output
    assert output.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"


def test_a_missing_run_is_one_sentence_and_status_one(tmp_path, capsys):
    assert call(tmp_path / "nowhere") == 1
    assert capsys.readouterr().err == (
        f"hpcgnn: {tmp_path / 'nowhere'} holds no metrics.jsonl, so it is no run folder; "
        "give a folder that hpcgnn train --out has made\n")


def test_an_output_that_is_no_html_file_is_refused_before_anything_is_written(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    assert call(run, "--out", tmp_path / "picture.png") == 1
    assert "expected a file name that ends in .html" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_no_run_at_all_is_wrong_usage(capsys):
    assert call() == 2
    assert "Missing argument" in capsys.readouterr().err


def test_a_csv_file_has_a_row_for_each_epoch_of_each_run(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    assert call(*runs, "--out", tmp_path / "epochs.csv") == 0
    with open(tmp_path / "epochs.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [json.loads(line) for run in runs for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(int(row["epoch"]), float(row["loss"])) for row in rows] == [(r["epoch"], r["loss"]) for r in expected]
    assert list(dict.fromkeys(row["run"] for row in rows)) == ["one", "two"]
