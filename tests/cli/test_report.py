"""`hpcgnn report` as a user calls it."""

import sys

import pytest
from report.fake_runs import write_run

from hpcgnn.__main__ import main

REPORT_EXTRA = "not installed (pip install 'hpcgnn[report]')"


def call(*arguments):
    """Run the command and return its exit status."""
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, arguments)])
    return stop.value.code or 0


def test_one_run_is_reported_into_its_folder(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason=REPORT_EXTRA)
    pytest.importorskip("jinja2", reason=REPORT_EXTRA)
    run = write_run(tmp_path / "run")
    assert call(run) == 0
    assert (run / "report.html").exists()
    assert (run / "report-loss.png").exists()
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {run / 'report.html'}"


def test_several_runs_are_reported_into_the_current_folder(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib", reason=REPORT_EXTRA)
    pytest.importorskip("jinja2", reason=REPORT_EXTRA)
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
    assert "expected a file whose name ends in .html" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_the_report_extra_the_table_is_shown_and_the_extra_is_named(tmp_path, capsys, monkeypatch, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package or name.startswith("hpcgnn.report.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)   # what makes an import fail with ModuleNotFoundError
    assert call(write_run(tmp_path / "run")) == 1
    output = capsys.readouterr()
    assert "78.12" in output.out
    assert output.err == (f"hpcgnn: a report needs {package}, which is not installed; "
                          "run pip install 'hpcgnn[report]'\n")


def test_no_run_at_all_is_wrong_usage(capsys):
    assert call() == 2
    assert "Missing argument" in capsys.readouterr().err
