"""Draws docs/layouts.svg, which layout needs the fewest seconds of messages: `python jobs/layout_map.py [SVG]`.

Forms are those of hpcgnn/planning/layouts.py. A column is a number of ranks, a row a number of cut edges per node,
which go to random nodes of other parts. Dots are real graphs of a table of data/benchmarks/plan.md, at the height where
random edges would give a part as many halo rows. The same table always gives the same file.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from claims import table_below, value_of

from hpcgnn.planning.cluster import NETWORKS, Network
from hpcgnn.planning.layouts import Layout, Training, best_layouts

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "data/benchmarks/plan.md"
ABOVE = "Halo rows per row of graphs in parts by KaMinPar"      # the words before it
RANKS, DEGREES = tuple(4**power for power in range(1, 7)), tuple(2**power for power in range(1, 13))
LINKS, BITS = ("infiniband-hdr", "ethernet-10g"), (32, 1)
NODES, COLUMNS, CUT_SHARE = 1e7, (128, 256, 256, 172), 0.5
COLORS = {"1D": "#ddf4ff", "1.5D": "#fff1c2", "2D": "#c8f2d0", "3D": "#ecd8ff"}
CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 62, 20, 80, 150
PANEL_WIDTH, PANEL_HEIGHT = CELL_WIDTH * len(RANKS), CELL_HEIGHT * len(DEGREES)
HEAD = ("The layout with the fewest seconds of messages per epoch, and how many times fewer it has than 1D",
        "GCN, 128, 256, 256 and 172 columns, 10 million nodes, half of their edges cut, a rank per node: lower bounds",
        "Blue: 1D, which hpcgnn trains. All layouts send as many bits. Dots: real graphs in parts by KaMinPar.")


def network_of(link: str) -> Network:
    """A network of the presets between ranks that have a node each."""
    kind = NETWORKS[link]
    return Network(1, None, None, kind.latency_seconds, kind.bytes_per_second, kind.bytes_per_second)


def random_halo(degree: float, parts: int) -> float:
    """Halo rows per row, if nodes have Poisson(`degree`) edges to random nodes of other parts."""
    return (parts - 1) * -math.expm1(-degree / (parts - 1)) if parts > 1 else 0.0


def layouts_at(ranks: int, degree: float, bits: int, network: Network) -> list[Layout]:
    """Layouts where every node has `degree` edges to random nodes of other parts, and as many inside its own."""
    # If c parts are joined, edges between these are not cut any more.
    halo_ratio = {ranks // copies: random_halo(degree * (ranks - copies) / (ranks - 1), ranks // copies)
                  for copies in range(1, ranks) if ranks % copies == 0}
    training = Training(NODES, NODES * degree / CUT_SHARE, COLUMNS, ranks, bits)
    return best_layouts(training, halo_ratio, ranks - 1, network)


def degree_of(halo_ratio: float, parts: int) -> float:
    """The degree for which `random_halo` gives a ratio."""
    return -(parts - 1) * math.log1p(-halo_ratio / (parts - 1))


def text(x: float, y: float, words: str, extra: str = "") -> str:
    return f'  <text x="{x:g}" y="{y:g}"{extra}>{escape(words)}</text>'


def panel(left: float, top: float, bits: int, link: str) -> list[str]:
    """The cells of a number of bits and a link: a color for the best layout, and how many times 1D takes as long."""
    network, parts = network_of(link), []
    for column, ranks in enumerate(RANKS):
        for row, degree in enumerate(DEGREES):
            layouts = layouts_at(ranks, degree, bits, network)
            best = min(layouts, key=lambda one: one.seconds)
            x, y = left + CELL_WIDTH * column, top + PANEL_HEIGHT - CELL_HEIGHT * (row + 1)
            parts.append(f'  <rect x="{x:g}" y="{y:g}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" '
                         f'fill="{COLORS[best.name.split()[0]]}"/>')
            if best.name != "1D":
                times = f"{layouts[0].seconds / best.seconds:.1f}"
                parts.append(text(x + CELL_WIDTH / 2, y + 14, f"{best.name.split()[0]} {times}", ' class="c"'))
        parts.append(text(left + CELL_WIDTH * (column + 0.5), top + PANEL_HEIGHT + 16, f"{ranks:,}", ' class="a"'))
    parts += [text(left - 6, top + PANEL_HEIGHT - CELL_HEIGHT * (row + 0.5) + 4, f"{degree:,}", ' class="e"')
              for row, degree in enumerate(DEGREES) if row % 2]
    return [text(left, top - 8, f"{bits} {'bit' if bits == 1 else 'bits'} per value, {link}"), *parts]


def dots(left: float, top: float, graphs: list[dict[str, str]]) -> list[str]:
    """A numbered dot for each graph and number of parts, one beside the other within a column."""
    names, parts = list(dict.fromkeys(graph["graph"] for graph in graphs)), []
    for graph in graphs:
        number, ranks = names.index(graph["graph"]), int(value_of(graph["parts"]))
        degree = max(degree_of(value_of(graph["halo rows per row"]), ranks), DEGREES[0] / math.sqrt(2))
        x = left + CELL_WIDTH * (RANKS.index(ranks) + (number + 0.5) / len(names))
        y = top + PANEL_HEIGHT - CELL_HEIGHT * (math.log2(degree / DEGREES[0]) + 0.5)
        parts += [f'  <circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#24292f"/>',
                  text(round(x, 1), round(y + 3, 1), str(number + 1), ' class="d"')]
    return parts


def draw(graphs: list[dict[str, str]]) -> str:
    """The SVG; `graphs` are rows with `graph`, `parts` and `halo rows per row`."""
    width, height = LEFT + 2 * PANEL_WIDTH + 70, TOP + 2 * (PANEL_HEIGHT + 70) - 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             f'font-size="14" fill="#24292f" role="img"\n     aria-label="{escape(HEAD[0])}">',
             "  <style>.c{font-size:10px;text-anchor:middle}.a{font-size:12px;text-anchor:middle}"
             ".e{font-size:12px;text-anchor:end}.d{font-size:8px;text-anchor:middle;fill:#fff}</style>",
             f'  <rect width="{width}" height="{height}" rx="10" fill="#ffffff" stroke="#d0d7de"/>',
             text(20, 30, HEAD[0], ' font-weight="bold"'),
             *(text(20, 32 + 20 * number, line, ' fill="#57606a"') for number, line in enumerate(HEAD[1:], 1))]
    names = dict.fromkeys(graph["graph"] for graph in graphs)
    parts.append(text(20, 96, "; ".join(f"{number} {name}" for number, name in enumerate(names, 1)), ' font-size="12"'))
    for row, link in enumerate(LINKS):
        for column, bits in enumerate(BITS):
            left, top = LEFT + column * (PANEL_WIDTH + 50), TOP + row * (PANEL_HEIGHT + 70)
            parts += [*panel(left, top, bits, link), *dots(left, top, graphs)]
    middle = TOP + PANEL_HEIGHT + 35
    parts += [text(width / 2, height - 14, "ranks", ' class="a"'),
              text(0, 0, "cut edges per node", f' class="a" transform="translate(24 {middle}) rotate(-90)"')]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """See the module."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/layouts.svg"
    file.write_text(draw(table_below(TABLE.read_text(), ABOVE)))


if __name__ == "__main__":
    main()
