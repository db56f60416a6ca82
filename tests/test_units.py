"""Sizes and times are written in the unit that keeps the number short, and never lose a digit at its border."""

from __future__ import annotations

import re

import pytest

from hpcgnn.run.output import number_text, size_text, time_text


@pytest.mark.parametrize("value, text", [(0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"),
                                         (99.9, "99.9"), (123.4, "123"), (1234.6, "1,235"), (9.999, "10.0"),
                                         (0.5, "0.500")])
def test_numbers_have_three_digits(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize("num_bytes, text", [
    (0, "0 B"), (12, "12 B"), (999, "999 B"), (999.6, "1.00 kB"), (2500, "2.50 kB"), (999_499, "999 kB"),
    (999_600, "1.00 MB"), (412e6, "412 MB"), (3.21e9, "3.21 GB"), (5e12, "5.00 TB"), (5e15, "5,000 TB"),
    (0.25, "0.25 B")])
def test_sizes_have_the_unit_that_fits(num_bytes, text):
    assert size_text(num_bytes) == text


@pytest.mark.parametrize("seconds, text", [
    (0, "0 s"), (3e-9, "3.00 ns"), (2.5e-4, "250 µs"), (0.0123, "12.3 ms"), (0.9996, "1.00 s"), (4.2, "4.20 s"),
    (99.9, "99.9 s"), (100, "1 min 40 s"), (3599.4, "59 min 59 s"), (3600, "1 h 00 min"), (7500, "2 h 05 min")])
def test_times_have_the_unit_that_fits(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize("exponent", range(-9, 16))
def test_what_is_written_is_the_value_within_half_a_percent(exponent):
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    for digits in (1.004, 2.5, 9.949, 9.996):
        value = digits * 10.0 ** exponent
        for write in (size_text, time_text):
            found = re.fullmatch(r"([\d.,]+) (\w+)", write(value))
            if (write is size_text and value < 100) or not found:
                continue        # whole bytes; minutes and hours
            assert float(found[1].replace(",", "")) * units[found[2]] == pytest.approx(value, rel=0.005)
