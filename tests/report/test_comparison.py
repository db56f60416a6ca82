"""The rows and the numbers of a comparison, and the terminal's table of them."""

import io

from report.fake_runs import write_adaptive_run, write_run
from rich.console import Console

from hpcgnn.report.comparison import compare, comparison_table, known_fields
from hpcgnn.report.formats import UNKNOWN
from hpcgnn.report.run_folder import read_runs


def test_ratios_are_to_the_first_run(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16)]))
    assert [(row.name, row.sent, row.byte_ratio) for row in rows] == [
        ("fp32", "64.4 MB", "1"), ("packed", "4.40 MB", "1/14.6")]


def test_an_adaptive_run_tells_bits_synchronous_share_and_blocked_seconds(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "old"), write_adaptive_run(tmp_path / "new", 10)]))
    fields = [(row.mean_bits, row.synchronous_share, row.blocked) for row in rows]
    assert fields == [("32.0", UNKNOWN, UNKNOWN), ("2.87", "20.0", "24.0 ms")]


def test_columns_that_no_run_fills_are_unknown(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "old")]))
    assert "mean_bits" in known_fields(rows)
    assert not {"synchronous_share", "blocked"} & known_fields(rows)


def printed_table(paths):
    file = io.StringIO()
    Console(file=file, width=80).print(comparison_table(read_runs(paths)))
    return file.getvalue()


def test_the_table_shows_names_as_they_are_and_marks_unfinished_runs(tmp_path):
    text = printed_table([write_run(tmp_path / "[red]x"), write_run(tmp_path / "half", is_complete=False)])
    assert "[red]x" in text
    assert "half *" in text
    assert "no summary.json" in text


def test_the_table_of_finished_runs_has_no_remark(tmp_path):
    text = printed_table([write_run(tmp_path / "run")])
    assert "accuracy" in text
    assert "no summary.json" not in text


def test_the_table_has_columns_for_adaptive_runs_only_with_one(tmp_path):
    old, new = write_run(tmp_path / "uniform-8-bits"), write_adaptive_run(tmp_path / "arxiv-sage-sylvie")
    text = printed_table([old, new])
    assert all(heading in text for heading in ("sync.", "blocked", "mean"))
    assert "78.12" in text and "24.0 ms" in text
    assert "sync." not in printed_table([old]) and "blocked" not in printed_table([old])


def test_numbers_of_the_table_stay_whole_on_80_columns(tmp_path):
    path = write_adaptive_run(tmp_path / ("ogbn_arxiv-sage-sylvie-p4-" + 60 * "x"), seeds=(0, 1))
    lines = [line for line in printed_table([path]).splitlines() if "±" in line]
    assert len(lines) == 1 and "…" not in lines[0] and lines[0].rstrip().endswith("24.0 ms")
