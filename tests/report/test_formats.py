"""Numbers as text, each in the unit that keeps it short."""

import pytest

from hpcgnn.report.formats import (
    UNKNOWN,
    format_bytes,
    format_histogram,
    format_number,
    format_ratio,
    format_seconds,
)


@pytest.mark.parametrize("value, text", [
    (0, "0"), (0.00012345, "0.000123"), (0.0123, "0.0123"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"),
    (123.4, "123"), (1234567.8, "1,234,568"), (None, UNKNOWN)])
def test_numbers_have_three_significant_digits_and_separators(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize("value, first, text", [
    (64.0, 64.0, "1"), (4.0, 64.0, "1/16.0"), (128.0, 64.0, "2.00×"), (0, 64.0, UNKNOWN), (64.0, 0, UNKNOWN)])
def test_a_ratio_says_which_side_is_smaller(value, first, text):
    assert format_ratio(value, first) == text


def test_bytes_take_the_unit_that_keeps_them_short():
    assert [format_bytes(value) for value in (None, 12, 2_500, 412_000_000, 3.21e9)] == [
        UNKNOWN, "12 B", "2.50 kB", "412 MB", "3.21 GB"]


def test_histograms_are_shares_in_the_order_of_widths():
    assert format_histogram({"8": 1, "16": 0, "2": 2, "1": 5}) == "1: 62.5 %, 2: 25 %, 8: 12.5 %"
    assert format_histogram({"8": 0}) == UNKNOWN


@pytest.mark.parametrize("value, text", [
    (None, UNKNOWN), (0, "0 s"), (0.00085, "850 µs"), (0.0123, "12.3 ms"), (4.56, "4.56 s"), (125, "2 min 5 s"),
    (12_000, "3 h 20 min")])
def test_seconds_take_the_unit_that_keeps_them_short(value, text):
    assert format_seconds(value) == text
