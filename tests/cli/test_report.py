"""`hpcgnn report` as a user calls it."""

import csv
import json

from report.fake_runs import write_run


def test_one_run_is_reported_into_its_folder(hpcgnn, tmp_path):
    run = write_run(tmp_path / "run")
    status, printed, _ = hpcgnn("report", run)
    assert status == 0
    assert (run / "report.html").exists()
    assert sorted(path.name for path in run.iterdir()) == ["config.toml", "metrics.jsonl", "report.html",
                                                            "summary.json"]
    assert printed.splitlines()[-1] == f"report: {run / 'report.html'}"


def test_several_runs_are_reported_into_the_current_folder(hpcgnn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "fp32")
    write_run(tmp_path / "packed", scale=16)
    status, printed, _ = hpcgnn("report", "fp32", "packed")
    assert status == 0 and (tmp_path / "report.html").exists() and "1/14.6" in printed
    assert printed.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"


def test_what_can_not_be_reported_is_one_sentence_and_nothing_is_written(hpcgnn, tmp_path):
    run = write_run(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    assert hpcgnn("report", tmp_path / "nowhere") == (
        1, "", f"hpcgnn: {tmp_path / 'nowhere'} holds no metrics.jsonl, so it is no run folder; give a folder that "
        "hpcgnn train --out has made\n")
    status, _, complaint = hpcgnn("report", run, "--out", tmp_path / "picture.png")
    assert status == 1 and "expected a file name that ends in .html" in complaint
    status, _, complaint = hpcgnn("report")
    assert status == 2 and "Missing argument" in complaint
    assert sorted(tmp_path.rglob("*")) == before


def test_a_csv_file_has_a_row_for_each_epoch_of_each_run(hpcgnn, tmp_path):
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    assert hpcgnn("report", *runs, "--out", tmp_path / "epochs.csv")[0] == 0
    with open(tmp_path / "epochs.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [json.loads(line) for run in runs for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(int(row["epoch"]), float(row["loss"])) for row in rows] == [(r["epoch"], r["loss"]) for r in expected]
    assert list(dict.fromkeys(row["run"] for row in rows)) == ["one", "two"]
