"""Draws docs/link-speed.svg, seconds of an epoch by the speed of the link: `python jobs/link_chart.py [SVG]`.

The bars are those of a table of data/benchmarks/steps.md, which `jobs/benchmark_score_link.sh` prints: a row for each
link and program, with its `s an epoch`. The same table always gives the same file.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from claims import ClaimError, table_below

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "data/benchmarks/steps.md"
ABOVE = "both ranks; ours are evaluated after each epoch, the peer four times in one."      # the words before it
LINES = ("Seconds of an epoch by the speed of the link between two hosts",
         "GraphSAGE 3 × 256 on ogbn_arxiv_nofeat, one rank of one thread on each host, one seed (7b5c007).",
         "hpcgnn trains on all edges; DGL's sampler draws 5 neighbors per node and layer, and fetches their features.")
COLORS = ("#0969da", "#1a7f37", "#cf222e", "#8250df")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 430, 70, 840, 165, 370


def grid_of(largest: float) -> list[float]:
    """Return at most eight values, by 1, 2 or 5 times a power of ten, for lines from 0 to `largest` or above it."""
    steps = (digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5))
    step = next(step for step in steps if step * 7 >= largest)
    return [number * step for number in range(math.ceil(largest / step) + 1)]


def text(x: float, y: float, words: str, extra: str = "") -> str:
    """Return a line of text whose first, or middle, is at x."""
    return f'  <text x="{x:g}" y="{y:g}"{extra}>{escape(words)}</text>'


def draw(rows: list[dict[str, str]], lines: tuple[str, ...] = LINES) -> str:
    """Return the SVG: for each link a group of bars, one for each program that the table has there.

    Raises
    ------
    ClaimError       the table has more programs than colors
    """
    links, programs = (list(dict.fromkeys(row[name] for row in rows)) for name in ("link", "program"))
    if len(programs) > len(COLORS):
        raise ClaimError(f"the table has {len(programs)} programs, more than the {len(COLORS)} that can be told apart")
    shown = {(row["link"], row["program"]): row["s an epoch"] for row in rows}
    grid = grid_of(max(map(float, shown.values())))
    scale = (BOTTOM - TOP) / grid[-1]
    middle, small = ' text-anchor="middle"', ' text-anchor="end" fill="#57606a"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="14" fill="#24292f" role="img"\n     aria-label="{escape(lines[0])}">',
             f'  <rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff" stroke="#d0d7de"/>',
             text(20, 30, lines[0], ' font-weight="bold"'),
             *(text(20, 32 + 20 * number, line, ' fill="#57606a"') for number, line in enumerate(lines[1:], 1))]
    for number, program in enumerate(programs):
        x, y = 20 + 420 * (number % 2), 98 + 24 * (number // 2)
        name = program if program.startswith("DGL") else f"hpcgnn {program}"
        parts += [f'  <rect x="{x}" y="{y}" width="14" height="14" fill="{COLORS[number]}"/>',
                  text(x + 22, y + 12, name)]
    for value in grid:
        y = round(BOTTOM - value * scale, 1)
        parts += [f'  <path d="M{LEFT} {y:g} L{RIGHT} {y:g}" stroke="{"#d0d7de" if value else "#24292f"}"/>',
                  text(LEFT - 8, y + 5, f"{value:g}", small)]
    group = (RIGHT - LEFT) / len(links)
    width = group / (len(programs) + 1)
    for place, link in enumerate(links):
        present = [program for program in programs if (link, program) in shown]
        center = LEFT + group * (place + 0.5)
        for number, program in enumerate(present):
            seconds, x = shown[link, program], center + width * (number - len(present) / 2)
            top = BOTTOM - float(seconds) * scale
            parts += [f'  <rect x="{x + 3:.1f}" y="{top:.1f}" width="{width - 6:.1f}" height="{BOTTOM - top:.1f}" '
                      f'fill="{COLORS[programs.index(program)]}"/>',
                      text(round(x + width / 2, 1), round(top - 6, 1), f"{seconds} s", middle)]
        parts.append(text(round(center, 1), BOTTOM + 22, link.replace("none", "no limit"), middle))
    turned = f'{middle} transform="translate(24 {(TOP + BOTTOM) / 2:g}) rotate(-90)"'
    parts += [text((LEFT + RIGHT) / 2, BOTTOM + 46, "rate of the link, each way", middle),
              text(0, 0, "seconds of an epoch", turned)]
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """See the module."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/link-speed.svg"
    file.write_text(draw(table_below(TABLE.read_text(), ABOVE)))


if __name__ == "__main__":
    main()
