"""The comparison of runs as a table for the terminal. What the cells say is decided in `hpcgnn.report.comparison`."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from hpcgnn.report.comparison import compare, score_label
from hpcgnn.report.run_folder import Run


def comparison_table(runs: list[Run]) -> Table:
    """One row a run: test score in percent, epoch seconds, megabytes an epoch, of them payload and
    parameters, and their ratio to the first run's."""
    rows = compare(runs)
    remark = None if all(row.is_complete for row in rows) else "* no summary.json: unfinished or running"
    table = Table(box=box.SIMPLE_HEAD, caption=remark)
    table.add_column("run", overflow="fold")
    for heading in (f"test\n{score_label(runs)} (%)", "epoch\n(s)", "MB an\nepoch", "payload\n(MB)", "parameters\n(MB)",
                    "ratio to\nthe first"):
        table.add_column(heading, justify="right")
    for row in rows:
        # A Text is shown as it is: a run called "[red]" is no markup.
        table.add_row(Text(row.name + ("" if row.is_complete else " *")), row.test_score, row.epoch_seconds,
                      row.sent_megabytes, row.payload_megabytes, row.parameter_megabytes, row.byte_ratio)
    return table
