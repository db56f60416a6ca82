"""The rows and the numbers of a comparison, and the terminal's table of them."""

import io

from report.fake_runs import write_adaptive_run, write_run
from rich.console import Console

from hpcgnn.report.comparison import compare, comparison_table
from hpcgnn.report.formats import UNKNOWN
from hpcgnn.report.run_folder import read_runs


def test_ratios_are_to_the_first_run_and_bits_shares_and_seconds_are_told_where_they_are_known(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "fp32"), write_adaptive_run(tmp_path / "new", 10)]))
    assert [list(row.values())[3:] for row in rows] == [
        ["64.4 MB", "1", "32.0", UNKNOWN, UNKNOWN], ["4.40 MB", "1/14.6", "2.87", "20.0", "24.0 ms"]]


def printed_table(paths):
    file = io.StringIO()
    Console(file=file, width=80).print(comparison_table(read_runs(paths)))
    return file.getvalue()


def test_the_table_shows_names_as_they_are_and_marks_unfinished_runs(tmp_path):
    finished, half = write_run(tmp_path / "[red]x"), write_run(tmp_path / "half", is_complete=False)
    text = printed_table([finished, half])
    assert "[red]x" in text and "half *" in text and "no summary.json" in text
    assert "no summary.json" not in printed_table([finished])


def test_the_table_has_columns_for_adaptive_runs_only_with_one(tmp_path):
    old, new = write_run(tmp_path / "uniform-8-bits"), write_adaptive_run(tmp_path / "arxiv-sage-sylvie")
    text = printed_table([old, new])
    assert all(heading in text for heading in ("accuracy", "sync.", "blocked", "mean"))
    assert "78.12" in text and "24.0 ms" in text
    assert "sync." not in printed_table([old]) and "blocked" not in printed_table([old])


def test_numbers_of_the_table_stay_whole_on_80_columns(tmp_path):
    path = write_adaptive_run(tmp_path / ("ogbn_arxiv-sage-sylvie-p4-" + 60 * "x"), seeds=(0, 1))
    lines = [line for line in printed_table([path]).splitlines() if "±" in line]
    assert len(lines) == 1 and "…" not in lines[0] and lines[0].rstrip().endswith("24.0 ms")
