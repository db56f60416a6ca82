"""The rows and the numbers of a comparison, and the terminal's table of them."""

import io

import pytest
from report.fake_runs import write_adaptive_run, write_run
from rich.console import Console

from hpcgnn.report.comparison import (
    UNKNOWN,
    compare,
    format_bytes,
    format_histogram,
    format_number,
    format_ratio,
    format_score,
    known_fields,
)
from hpcgnn.report.run_folder import read_runs
from hpcgnn.report.table import comparison_table


@pytest.mark.parametrize("value, text", [
    (0, "0"), (0.00012345, "0.000123"), (0.0123, "0.0123"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"),
    (123.4, "123"), (1234567.8, "1,234,568"), (None, UNKNOWN)])
def test_numbers_have_three_significant_digits_and_separators(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize("value, first, text", [
    (64.0, 64.0, "1"), (4.0, 64.0, "1/16.0"), (128.0, 64.0, "2.00×"), (0, 64.0, UNKNOWN), (64.0, 0, UNKNOWN)])
def test_a_ratio_says_which_side_is_smaller(value, first, text):
    assert format_ratio(value, first) == text


def test_scores_are_percent_with_a_deviation_only_over_seeds():
    assert format_score(0.81234, 0.0041) == "81.23 ± 0.41"
    assert format_score(0.81234, 0.0) == "81.23"
    assert format_score(None, None) == UNKNOWN


def test_bytes_take_the_unit_that_keeps_them_short():
    assert [format_bytes(value) for value in (None, 12, 2_500, 412_000_000, 3.21e9)] == [
        UNKNOWN, "12 B", "2.50 kB", "412 MB", "3.21 GB"]


def test_ratios_are_to_the_first_run(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "fp32"), write_run(tmp_path / "packed", scale=16)]))
    assert [(row.name, row.sent_megabytes, row.byte_ratio) for row in rows] == [
        ("fp32", "64.4", "1"), ("packed", "4.40", "1/14.6")]
    payload, parameters = float(rows[1].payload_megabytes), float(rows[1].parameter_megabytes)
    assert payload + parameters == pytest.approx(4.40, abs=0.01) and parameters > 0


def test_an_adaptive_run_tells_bits_synchronous_share_and_blocked_seconds(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "old"), write_adaptive_run(tmp_path / "new", 10)]))
    fields = [(row.mean_bits, row.synchronous_share, row.blocked_seconds) for row in rows]
    assert fields == [("32.0", UNKNOWN, UNKNOWN), ("2.87", "20.0", "0.0240")]


def test_columns_that_no_run_fills_are_unknown(tmp_path):
    rows = compare(read_runs([write_run(tmp_path / "old")]))
    assert "mean_bits" in known_fields(rows)
    assert not {"synchronous_share", "blocked_seconds"} & known_fields(rows)


def test_histograms_are_shares_in_the_order_of_widths():
    assert format_histogram({"8": 1, "16": 0, "2": 2, "1": 5}) == "1: 62.5 %, 2: 25 %, 8: 12.5 %"
    assert format_histogram({"8": 0}) == UNKNOWN


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
    assert "78.12" in text and "0.0240" in text
    assert "sync." not in printed_table([old]) and "blocked" not in printed_table([old])


def test_numbers_of_the_table_stay_whole_on_80_columns(tmp_path):
    path = write_adaptive_run(tmp_path / ("ogbn_arxiv-sage-sylvie-p4-" + 60 * "x"), seeds=(0, 1))
    lines = [line for line in printed_table([path]).splitlines() if "±" in line]
    assert len(lines) == 1 and "…" not in lines[0] and lines[0].rstrip().endswith("0.0240")
