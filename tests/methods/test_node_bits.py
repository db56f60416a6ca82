"""Levels of importance, tables of widths, and their settings as text."""

from __future__ import annotations

import numpy as np
import pytest

from hpcgnn.errors import ConfigError
from hpcgnn.methods.choosing import parse_percentiles, parse_widths
from hpcgnn.methods.policies import levels, width_table

WIDTHS = (1, 2, 4, 8)


def test_each_percentile_takes_its_share_of_the_nodes():
    """Ranks of 100,000 nodes without ties; 1.43 bits at base 1 is about what the paper's Table XII implies."""
    importance = np.linspace(0, 1, 100_000, dtype=np.float32)
    level = levels(importance, parse_percentiles("80,92.5,98"))
    assert level.dtype == np.uint8
    means = [width_table(base, WIDTHS)[level].mean() for base in WIDTHS]
    assert means == pytest.approx([0.8 + 0.125 * 2 + 0.055 * 4 + 0.02 * 8, 0.925 * 2 + 0.055 * 4 + 0.02 * 8,
                                   0.98 * 4 + 0.02 * 8, 8], abs=1e-3)
    assert means[0] == pytest.approx(1.43, abs=1e-3)


def test_a_node_exactly_at_a_percentile_has_reached_it():
    importance = np.array([0, 0.7999, 0.8, 0.925, 0.98, 1], np.float32)
    assert levels(importance, (80.0, 92.5, 98.0)).tolist() == [0, 0, 1, 2, 3, 3]
    assert levels(np.zeros(0, np.float32), (80.0,)).shape == (0,)


def test_a_width_is_never_below_the_base():
    assert [width_table(base, WIDTHS).tolist() for base in WIDTHS] == [
        [1, 2, 4, 8], [2, 2, 4, 8], [4, 4, 4, 8], [8, 8, 8, 8]]
    assert width_table(1, WIDTHS).dtype == np.uint8


def test_widths_and_percentiles_are_read_from_text():
    assert parse_widths("1,2,4,8") == WIDTHS and parse_widths(" 2, 8") == (2, 8)
    assert [parse_widths(text) for text in ("1", "16", "32")] == [(1,), (16,), (32,)]
    assert parse_percentiles("80,92.5,98") == (80.0, 92.5, 98.0)
    assert parse_percentiles("50", 2) == (50.0,) and parse_percentiles("", 1) == ()


@pytest.mark.parametrize("text", ["", "3", "2,4,", "8,4", "2,2", "1,2,16", "1.0", "two", "1 2"])
def test_other_widths_are_refused(text):
    with pytest.raises(ConfigError) as refused:
        parse_widths(text)
    assert str(refused.value) == (f"widths is {text!r}; expected some of 1, 2, 4, 8 in ascending order, as in 2,4,8, "
                                  "or one of 1, 2, 4, 8, 16, 32")


@pytest.mark.parametrize("text", ["80,x,98", "80,80,98", "98,92,80", "0,50,90", "50,90,100", "nan,1,2", "80,,98"])
def test_other_percentiles_are_refused(text):
    with pytest.raises(ConfigError, match="expected numbers between 0 and 100 in ascending order"):
        parse_percentiles(text)


def test_levels_and_widths_must_match():
    with pytest.raises(ConfigError, match=r"percentiles is '80,92.5,98', 3 of them; 3 widths need 2, so change"):
        parse_percentiles("80,92.5,98", 3)
