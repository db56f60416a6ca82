"""The measurements as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from hpcgnn.bench.timing import CEILING, Measurement

WIDEST = 1000


def measurement_table(measurements: Iterable[Measurement]) -> Table:
    """One row a measurement: median, rate, share of the ceiling, and how many times each peer's seconds."""
    rows = list(measurements)
    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers))
    table = Table(box=box.SIMPLE_HEAD, caption="a peer's column: its seconds over ours", caption_justify="left")
    table.add_column("work")
    table.add_column("case")
    for heading in ("median s", "rate", "of the ceiling", *peers):
        table.add_column(heading, justify="right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.group != row.group:
            table.add_section()
        table.add_row(row.group, row.case, *cells(row), *(ratio_cell(row, peer) for peer in peers))
    return table


def cells(row: Measurement) -> tuple[str, str, str]:
    """Median seconds, rate and share of the ceiling."""
    rate = "" if row.rate is None else f"{row.rate:,.1f} {row.unit}"
    share = "" if CEILING not in row.seconds else f"{100 * row.ceiling_share:.0f} %"
    return f"{row.median():.4g}", rate, share


def ratio_cell(row: Measurement, peer: str) -> str:
    """Write a peer's seconds over ours."""
    return f"{row.peer_ratio[peer]:.2f}" if peer in row.seconds else ""


def print_table(measurements: list[Measurement], remarks: Iterable[str]) -> None:
    """The table and what must be said beside it. A narrow terminal folds lines; digits are never cut."""
    table = measurement_table(measurements)
    console = Console()
    needed = console.measure(table, options=console.options.update(width=WIDEST)).maximum
    console = Console(width=max(console.width, needed))
    console.print(table)
    for remark in remarks:
        console.print(remark, markup=False, highlight=False, soft_wrap=True)
