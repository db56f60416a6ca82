"""This module picks the charts that the runs have data for, in the order of the page."""

from __future__ import annotations

from hpcgnn.report.chart import Chart
from hpcgnn.report.cost_charts import bytes_chart, memory_chart, time_chart, waiting_chart
from hpcgnn.report.decision_charts import degrees_chart, execution_chart, widths_chart
from hpcgnn.report.line_charts import (
    bits_chart,
    descent_chart,
    loss_chart,
    progress_chart,
    score_chart,
    seconds_chart,
)
from hpcgnn.report.rank_charts import balance_chart, pairs_chart
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import MAX_POINTS, is_thinned

CHARTS = (progress_chart, score_chart, loss_chart, bytes_chart, time_chart, waiting_chart, memory_chart, balance_chart,
          pairs_chart, seconds_chart, widths_chart, bits_chart, execution_chart, descent_chart, degrees_chart)


def charts_of(runs: list[Run]) -> list[Chart]:
    """Charts that some run has data for, those without data left out."""
    numbered = list(enumerate(runs))
    return [chart for make in CHARTS if (chart := make(numbered)) is not None]


def remarks_of(runs: list[Run]) -> list[str]:
    """Sentences on what the charts leave out: messages of runs on one rank, means over seeds, epochs not drawn."""
    alone = [run.name for run in runs if run.summary["ranks"] == 1]
    thinned = [run.name for run in runs if is_thinned(run)]
    repeated = [run.name for run in runs if len(run.seeds) > 1]
    remarks = []
    if alone:
        remarks.append(f"{_listed(alone)} trained on one rank and sent no messages: charts of messages, ranks and "
                       "pairs leave " + ("it" if len(alone) == 1 else "them") + " out.")
    if repeated:
        remarks.append(f"{_listed(repeated)}: lines are means over seeds, bands one standard deviation.")
    if thinned:
        remarks.append(f"{_listed(thinned)}: curves show {MAX_POINTS:,} of the epochs at most, evenly chosen.")
    return remarks


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
