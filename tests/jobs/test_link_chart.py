"""jobs/link_chart.py: the chart of docs/ is the one of its table, and bars are as high as seconds are long."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

from claims import ClaimError, table_below
from link_chart import BOTTOM, COLORS, HEIGHT, TOP, WIDTH, draw

ROOT = Path(__file__).parents[2]
TABLE = """A made-up table:

| link | program | 60 % | s an epoch | MB an epoch |
|---|---|---|---|---|
| 200 Mbit/s | auto, 8 bits | 11.0 (8) | 2.50 | 44.0 |
| 200 Mbit/s | DGL <sampler> | 54.7 (4) | 10.00 | 227.4 |
| none | auto, 8 bits | 9.0 (8) | 1.25 | 44.0 |
"""
SVG = "{http://www.w3.org/2000/svg}"


def draw_table(text):
    """The chart of a table: its bars as (color, left, top, height), and its texts."""
    root = ElementTree.fromstring(draw(table_below(text, "A made-up table")))
    bars = [(rect.get("fill"), *(float(rect.get(name)) for name in ("x", "y", "height")))
            for rect in root.iter(f"{SVG}rect") if rect.get("fill") in COLORS and rect.get("height") != "14"]
    return bars, [line.text for line in root.iter(f"{SVG}text")]


def test_the_chart_of_the_docs_is_what_the_command_draws(tmp_path):
    subprocess.run([sys.executable, ROOT / "jobs/link_chart.py", tmp_path / "chart.svg"], check=True)
    drawn = (tmp_path / "chart.svg").read_text()
    assert drawn == (ROOT / "docs/link-speed.svg").read_text(), "run python jobs/link_chart.py"
    assert len(drawn.encode()) < 15_000


def test_bars_are_as_high_as_the_seconds_of_the_table_and_stand_on_the_axis():
    bars, _ = draw_table(TABLE)
    assert [color for color, *_ in bars] == [COLORS[0], COLORS[1], COLORS[0]]
    heights = [height for *_, height in bars]
    assert heights[1] / heights[0] == pytest.approx(4, rel=0.01)
    assert heights[0] / heights[2] == pytest.approx(2, rel=0.01)
    assert all(top + height == pytest.approx(BOTTOM) and top >= TOP for *_, top, height in bars)
    lefts = [left for _, left, *_ in bars]
    assert lefts == sorted(lefts) and lefts[0] > 0 and lefts[-1] < WIDTH and BOTTOM < HEIGHT


def test_the_chart_names_links_programs_seconds_and_units():
    _, texts = draw_table(TABLE)
    assert {"200 Mbit/s", "no limit", "hpcgnn auto, 8 bits", "DGL <sampler>", "2.50 s", "10.00 s", "1.25 s",
            "seconds of an epoch", "rate of the link, each way"} <= set(texts)


def test_another_table_is_another_chart():
    before, after = (draw(table_below(text, "A made-up table")) for text in (TABLE, TABLE.replace("2.50", "2.75")))
    assert before != after and draw(table_below(TABLE, "A made-up table")) == before


def test_every_text_lies_on_the_white_card_so_dark_pages_can_show_it():
    card = ElementTree.fromstring(draw(table_below(TABLE, "A made-up table"))).find(f"{SVG}rect")
    assert (card.get("fill"), card.get("width"), card.get("height")) == ("#ffffff", str(WIDTH), str(HEIGHT))


def test_more_programs_than_colors_are_refused():
    rows = "".join(f"| none | program {number} | - | 1.0 | 1.0 |\n" for number in range(len(COLORS) + 1))
    with pytest.raises(ClaimError, match=re.escape(f"{len(COLORS) + 3} programs")):
        draw_table(TABLE + rows)
