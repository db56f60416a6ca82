"""The comparison of runs as a table for the terminal. What the cells say is decided in `hpcgnn.report.comparison`."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from hpcgnn.report.comparison import ComparisonRow, compare, known_fields
from hpcgnn.report.formats import UNKNOWN
from hpcgnn.report.run_folder import Run
from hpcgnn.report.score import score_kind

NAME_WIDTH = 14     # letters of a name that stay on a line, whatever the width of the terminal


def comparison_table(runs: list[Run]) -> Table:
    """One row a run, fields that no run tells left out: test score, median epoch, bytes an epoch, their
    ratio to the first run's, payload bits a value, percentage of synchronous epochs, time blocked in
    the exchange."""
    rows = compare(runs)
    remark = None if all(row.is_complete for row in rows) else "* no summary.json: unfinished or running"
    table = Table(box=box.SIMPLE_HEAD, caption=remark, collapse_padding=True, pad_edge=False)
    table.add_column("run", overflow="fold",
                     min_width=min(NAME_WIDTH, 2 + max(len(row.name) for row in rows)))
    shown = _columns(rows, score_kind(runs).heading)
    for heading in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        # A Text is shown as it is: a run called "[red]" is no markup.
        table.add_row(Text(row.name + ("" if row.is_complete else " *")), *(getattr(row, field) for field in shown))
    return table


def _columns(rows: list[ComparisonRow], score: str) -> dict[str, str]:
    """Headings by field, of the fields that some run tells; narrow, so that 80 characters leave room for names."""
    columns = {"test_score": "test\n" + score.replace(" ", "\n"), "epoch": "epoch", "sent": "sent an\nepoch",
               "byte_ratio": "of the\nfirst", "mean_bits": "mean\nbits",
               "synchronous_share": "sync.\n(%)", "blocked": "blocked"}
    known = known_fields(rows)
    if all(row.synchronous_share in (UNKNOWN, "100") for row in rows):
        known -= {"synchronous_share"}     # as every run is without a pipeline
    return {field: heading for field, heading in columns.items() if field in known}
