"""jobs/layout_map.py: the map of docs/ is the one of its table, with a color and a factor for each cell."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))

import layout_map
from claims import table_below
from layout_map import COLORS, degree_of, draw, layouts_at, network_of, random_halo

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_map_of_the_docs_is_what_the_command_draws():
    drawn = draw(table_below(layout_map.TABLE.read_text(), layout_map.ABOVE))
    assert drawn == (ROOT / "docs/layouts.svg").read_text(), "run python jobs/layout_map.py"
    assert len(drawn.encode()) < 60_000


def test_a_cell_has_the_color_of_the_best_layout_and_a_dot_its_number_of_edges(monkeypatch):
    monkeypatch.setattr(layout_map, "RANKS", (16,))
    monkeypatch.setattr(layout_map, "DEGREES", (2, 4096))
    monkeypatch.setattr(layout_map, "LINKS", ("ethernet-10g",))
    monkeypatch.setattr(layout_map, "PANEL_HEIGHT", 2 * layout_map.CELL_HEIGHT)
    graph = {"graph": "dense", "parts": "16", "halo rows per row": str(random_halo(2, 16))}
    root = ElementTree.fromstring(draw([graph]))
    cells = [cell for cell in root.iter(f"{SVG}rect") if cell.get("fill") in COLORS.values()]
    # 16 ranks: 15 other parts' rows, or 6 times the own rows in 2D; below, hardly a row is read by two parts.
    assert [cell.get("fill") for cell in cells] == [COLORS["1D"], COLORS["2D"]] * 2
    assert [line.text for line in root.iter(f"{SVG}text") if line.get("class") == "c"] == ["2D 2.5"] * 2
    dot = next(root.iter(f"{SVG}circle"))
    assert float(dot.get("cy")) == pytest.approx(float(cells[0].get("y")) + layout_map.CELL_HEIGHT / 2, abs=0.1)


def test_joined_parts_read_fewer_rows_and_the_degree_of_a_halo_is_found():
    assert degree_of(random_halo(37, 64), 64) == pytest.approx(37)
    found = layouts_at(64, 16, 32, network_of("infiniband-hdr"))
    assert found[0].name == "1D" and [one.name for one in found[1:]] == ["1.5D", "2D", "2D SUMMA", "3D SUMMA",
                                                                         "3D Plexus"]
    # 63 other parts, each of which reads a node with probability 1 - exp(-16 / 63), twice 512 columns of 4 bytes.
    rows = 63 * (1 - 2.718281828 ** (-16 / 63)) * 1e7 / 64
    assert found[0].received_bytes == pytest.approx(rows * 2 * 512 * 4, rel=1e-3)


def test_halo_rows_of_a_random_cut():
    nodes, degree, parts = 20_000, 6, 16
    generator = np.random.default_rng(0)
    owner = np.arange(nodes) % parts
    far = [(owner + generator.integers(1, parts, nodes)) % parts for _ in range(degree)]      # random other parts
    halo = len(np.unique(np.concatenate(far) * nodes + np.tile(np.arange(nodes), degree)))
    # Degrees are all 6 here; with Poisson's, some nodes have none.
    assert halo / nodes == pytest.approx(15 * (1 - (14 / 15)**6), rel=0.01)
    assert random_halo(6, 16) == pytest.approx(15 * (1 - np.exp(-0.4)))
    assert random_halo(1e6, 4) == pytest.approx(3)      # all rows of the three others
    assert random_halo(0, 4) == 0 and random_halo(9, 1) == 0
