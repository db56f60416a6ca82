"""This module picks the figures that the runs have data for, in the order of the page, each with its caption.

How a figure looks is decided in the modules that draw it; a run has the same color in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hpcgnn.report.bars import draw_bytes, draw_time, draw_waiting
from hpcgnn.report.canvas import NumberedRuns, Theme
from hpcgnn.report.curves import draw_descent, draw_loss, draw_score
from hpcgnn.report.decisions import draw_execution, draw_widths, has_stale_epochs, has_varying_widths
from hpcgnn.report.pairs import draw_pairs, last_pair_bytes
from hpcgnn.report.quantization import draw_degree_widths
from hpcgnn.report.run_folder import Run
from hpcgnn.report.summary import values_of

MEAN_OF_SEEDS = " Lines are means over seeds, bands one standard deviation."
FIRST_SEED = " Of several seeds, the first is shown."


@dataclass(frozen=True)
class Chart:
    """One figure of the report.

    Attributes
    ----------
    name : str                             part of its PNG file's name
    title, caption : str
    draw : (runs, theme) → Figure
    has_data : run → bool                  whether the run can be drawn
    shows_all : bool                       as soon as one run has data, runs without keep their line or bar
    about_seeds : str                      what the caption adds when a run has several seeds
    """

    name: str
    title: str
    caption: str
    draw: Callable[[NumberedRuns, Theme], Figure]
    has_data: Callable[[Run], bool]
    shows_all: bool = False
    about_seeds: str = ""


def _has_score(run: Run) -> bool:
    return bool(np.isfinite(run.curves("test_score")).any())


def _has_waiting(run: Run) -> bool:
    return run.mean("blocked_seconds") is not None and bool(run.mean("travel_seconds"))


CHARTS = (
    Chart("loss", "Loss", "Mean training loss of each epoch; the time is that of training, without evaluations.",
          draw_loss, lambda run: True, True, MEAN_OF_SEEDS),
    Chart("score", "Score", "Full lines are the test score, dotted lines the validation score.",
          draw_score, _has_score, True, MEAN_OF_SEEDS),
    Chart("bytes", "Messages", "Bytes handed to MPI in an average epoch, summed over ranks. Parameters are the zero "
          "points and steps that travel with quantized rows.",
          draw_bytes, lambda run: bool(run.summary["sent_bytes_per_epoch"]), True),
    Chart("time", "Epoch time", "Median epoch by what the ranks did in it.", draw_time, lambda run: True, True),
    Chart("waiting", "Waiting for messages", "Seconds of a mean epoch from posting a message to noticing its arrival, "
          "summed over its exchanges, and those that a rank is blocked: the difference was spent computing.",
          draw_waiting, _has_waiting),
    Chart("widths", "Widths", "Share of message rows sent at each bit-width, all ranks together, and below it the base "
          "width of methods that have one.", draw_widths, has_varying_widths, about_seeds=FIRST_SEED),
    Chart("execution", "Execution and staleness", "Which epochs waited for their messages (synchronous) and which used "
          "earlier ones (asynchronous), with the largest age of a halo row that was read.",
          draw_execution, has_stale_epochs, about_seeds=FIRST_SEED),
    Chart("descent", "Rate of descent", "Training loss, and the rate at which its running mean falls (LDR), by which "
          "the base width and the execution of the next epoch are chosen.",
          draw_descent, lambda run: bool(values_of(run.records, "ldr")), about_seeds=MEAN_OF_SEEDS),
    Chart("degrees", "Learned widths by in-degree", "Bits of a node's row in each layer, signs included, that training "
          "chose by the node's in-degree, at the end of the last seed; a larger dot is more nodes.",
          draw_degree_widths, lambda run: bool(run.summary.get("widths_by_degree"))),
    Chart("pairs", "Bytes by pair", "Bytes that each rank sent to each other in the last epoch that recorded them; "
          "colors are scaled run by run.", draw_pairs, lambda run: last_pair_bytes(run) is not None),
)


def drawable(runs: list[Run]) -> list[tuple[Chart, NumberedRuns]]:
    """Charts that some run has data for, each with the runs that it shows and their numbers in the report."""
    numbered = list(enumerate(runs))
    chosen = [(chart, [(number, run) for number, run in numbered if chart.has_data(run)]) for chart in CHARTS]
    return [(chart, numbered if chart.shows_all else members) for chart, members in chosen if members]


def caption_of(chart: Chart, runs: NumberedRuns) -> str:
    """The sentence beside a figure, and what its lines are when runs have several seeds."""
    return chart.caption + (chart.about_seeds if any(len(run.seeds) > 1 for _, run in runs) else "")
