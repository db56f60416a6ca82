"""Charts whose lines are runs, with the sentence that says what is seen: loss, score, seconds, bits, rate of descent.

How they are drawn is decided by the page's scripts.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.report.chart import Chart, NumberedRuns
from hpcgnn.report.formats import (
    format_number,
    format_seconds,
)
from hpcgnn.report.run_folder import Run
from hpcgnn.report.score import ScoreKind, score_kind
from hpcgnn.report.series import curve, largest_of_ranks, mean_over_seeds, total_bytes
from hpcgnn.report.summary import values_of

SPLITS = {"test": "test", "val": "validation", "train": "training"}
LOG_SCALE_FROM = 20   # a linear axis hides what happens at the low end of a wider range than this


def loss_chart(runs: NumberedRuns) -> Chart | None:
    """Training loss of each run, and its validation loss where it is recorded."""
    panels = [_panel(title, runs, key) for title, key in (("training loss", "loss"), ("validation loss", "val_loss"))]
    ends = {run.name: _last(run.curves("loss")) for _, run in runs}
    known = {name: value for name, value in ends.items() if value is not None}
    return _lines("loss", "Loss", "Mean over the training or validation nodes of all ranks.", panels,
                  _loss_sentence(runs, known))


def progress_chart(runs: NumberedRuns) -> Chart | None:
    """Validation score over the seconds of training up to there, whatever the other charts are drawn over."""
    timed = [(number, run) for number, run in runs if np.isfinite(run.elapsed_seconds()).any()]
    kind = score_kind([run for _, run in runs])
    lines = [line for number, run in timed if (line := curve(number, run, run.curves("val_score"), kind.scale))]
    panels = [{"title": f"validation {kind.title}", "unit": kind.unit, "series": lines}]
    return _lines("progress", "Score over time", "Validation score over the seconds of training up to there; "
                  "evaluations are not counted.", panels, _progress_sentence(timed, kind), axis="seconds")


def score_chart(runs: NumberedRuns) -> Chart | None:
    """Scores on the test, validation and training nodes: a panel a split, or one panel where there is one run."""
    kind = score_kind([run for _, run in runs])
    series = {split: [line for number, run in runs
                      if (line := curve(number, run, run.curves(f"{split}_score"), kind.scale, SPLITS[split]))]
              for split in SPLITS}
    if len(runs) == 1:
        panels = [{"title": kind.title, "unit": kind.unit, "bySplit": True,
                   "series": [line for lines in series.values() for line in lines]}]
    else:
        panels = [{"title": f"{SPLITS[split]} {kind.title}", "unit": kind.unit, "series": lines}
                  for split, lines in series.items()]
    return _lines("score", "Score", "Measured on the whole graph with messages of full width, at evaluated epochs.",
                  panels, _score_sentence(runs, kind))


def seconds_chart(runs: NumberedRuns) -> Chart | None:
    """Seconds of each epoch, and the memory of the rank that holds most."""
    panels = [_panel("seconds an epoch", runs, "epoch_seconds", unit="s"),
              {"title": "resident memory, largest rank", "unit": "B", "series": [
                  line for number, run in runs if (line := curve(number, run, largest_of_ranks(run, "rss_bytes")))]}]
    sentences = [f"{run.name}: median {format_seconds(run.median('epoch_seconds'))}, slowest "
                 f"{format_seconds(np.nanmax(run.curves('epoch_seconds')))} at epoch {_worst_epoch(run)}"
                 for _, run in runs if np.isfinite(run.curves("epoch_seconds")).any()]
    seen = "; ".join(sentences[:4]) + (f"; and {len(sentences) - 4} more runs" if len(sentences) > 4 else "") + "."
    return _lines("seconds", "Epochs", "Length of each epoch without evaluation, the mean over the ranks.", panels,
                  seen if sentences else "")


def bits_chart(runs: NumberedRuns) -> Chart | None:
    """Bits a value and bytes an epoch of the runs in which they change."""
    moving = [(number, run) for number, run in runs if _varies(run.curves("mean_bits"))]
    changing = [(number, run) for number, run in runs if _varies(total_bytes(run))]
    panels = [_panel("payload bits a value", moving, "mean_bits", unit="bits"),
              {"title": "bytes sent an epoch", "unit": "B", "log": _is_wide([total_bytes(run) for _, run in changing]),
               "series": [line for number, run in changing if (line := curve(number, run, total_bytes(run)))]}]
    said = [f"{run.name} goes from {format_number(ends[0])} to {format_number(ends[1])} bits a value"
            for _, run in moving if (ends := _ends(run.curves("mean_bits")))]
    return _lines("bits", "Bits and bytes by epoch", "Only runs in which they change are drawn.", panels,
                  "; ".join(said[:4]) + "." if said else "")


def descent_chart(runs: NumberedRuns) -> Chart | None:
    """The rate at which the running mean of the loss falls, by which adaptive methods decide."""
    members = [(number, run) for number, run in runs if values_of(run.records, "ldr")]
    said = [f"{run.name} ends at {format_number(ends[1])}" for _, run in members if (ends := _ends(run.curves("ldr")))]
    return _lines("descent", "Rate of descent", "The rate at which the running mean of the training loss falls (LDR), "
                  "by which the base width and the execution of the next epoch are chosen.",
                  [_panel("LDR", members, "ldr")], "; ".join(said[:4]) + "." if said else "")


def _panel(title: str, runs: NumberedRuns, key: str, unit: str = "") -> dict:
    lines = [line for number, run in runs if (line := curve(number, run, run.curves(key)))]
    return {"title": title, "unit": unit, "series": lines, "log": _is_wide([run.curves(key) for _, run in runs])}


def _lines(name: str, title: str, caption: str, panels: list[dict], seen: str, axis: str = "") -> Chart | None:
    """Return the chart of the panels that have a line, over an axis of its own or the one that the reader chooses;
    None where no panel has a line.
    """
    filled = [panel for panel in panels if panel["series"]]
    own = {"axis": axis} if axis else {}
    return Chart(name, title, "lines", caption, seen, {"panels": filled, **own}) if filled else None


def _loss_sentence(runs: NumberedRuns, ends: dict[str, float]) -> str:
    if not ends:
        return ""
    if len(runs) == 1:
        run = runs[0][1]
        mean, _ = mean_over_seeds(run.curves("loss"))
        first = mean[np.isfinite(mean)][0]
        return (f"The training loss goes from {format_number(first)} to {format_number(ends[run.name])} in "
                f"{run.epochs[-1]} epochs; its lowest is {format_number(np.nanmin(mean))} at epoch "
                f"{run.epochs[np.nanargmin(mean)]}.")
    lowest, highest = min(ends, key=ends.get), max(ends, key=ends.get)
    return (f"{lowest} ends with the lowest training loss, {format_number(ends[lowest])}; {highest} with the highest, "
            f"{format_number(ends[highest])}.")


def _progress_sentence(runs: NumberedRuns, kind: ScoreKind) -> str:
    """Say who comes first to the validation score that all runs reach."""
    scores = {number: mean_over_seeds(run.curves("val_score"))[0] for number, run in runs}
    scored = [(number, run) for number, run in runs if np.isfinite(scores[number]).any()]
    if not scored:
        return ""
    sign = -1 if kind.prefers_low else 1
    goal = min(np.nanmax(sign * scores[number]) for number, _ in scored)
    text = kind.show(sign * goal, with_unit=True)
    seconds = {run.name: float(mean_over_seeds(run.elapsed_seconds())[0][_first(sign * scores[number] >= goal)])
               for number, run in scored}
    first, last = min(seconds, key=seconds.get), max(seconds, key=seconds.get)
    if len(scored) == 1:
        return f"{first} reaches its best validation {kind.title}, {text}, after {format_seconds(seconds[first])}."
    return (f"All reach a validation {kind.title} of {text}: {first} first, after {format_seconds(seconds[first])}; "
            f"{last} last, after {format_seconds(seconds[last])}.")


def _first(is_reached: np.ndarray) -> int:
    """Return the first place that is true."""
    return int(np.argmax(is_reached))


def _score_sentence(runs: NumberedRuns, kind: ScoreKind) -> str:
    scored = {run.name: run for _, run in runs if run.summary["test_score"] is not None}
    if not scored:
        return ""
    scores = {name: run.summary["test_score"] for name, run in scored.items()}
    texts = {name: kind.show(scores[name], run.summary["test_score_std"], with_unit=True)
             for name, run in scored.items()}
    at_best, best = "at the epoch with the best validation score", kind.best(scores)
    if len(scored) == 1:
        return f"{best} has a test {kind.title} of {texts[best]} {at_best}."
    worst = max(scores, key=lambda name: abs(scores[name] - scores[best]))
    if scores[worst] == scores[best]:
        return f"All runs have the same test {kind.title}, {texts[best]}, {at_best}."
    return (f"{best} has the best test {kind.title}, {texts[best]}, {at_best}; {worst} the worst, {texts[worst]}: "
            f"{kind.show_gap(abs(scores[best] - scores[worst]))} apart.")


def _last(values: np.ndarray) -> float | None:
    mean, _ = mean_over_seeds(values)
    finite = mean[np.isfinite(mean)]
    return float(finite[-1]) if finite.size else None


def _ends(values: np.ndarray) -> tuple[float, float] | None:
    mean, _ = mean_over_seeds(values)
    finite = mean[np.isfinite(mean)]
    return (float(finite[0]), float(finite[-1])) if finite.size else None


def _worst_epoch(run: Run) -> int:
    seconds = run.curves("epoch_seconds")
    return int(run.epochs[np.nanargmax(np.nanmax(np.where(np.isnan(seconds), -1, seconds), axis=0))])


def _varies(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.max() > 1.001 * finite.min())


def _is_wide(tables: list[np.ndarray]) -> bool:
    """Tell whether the means are positive and span so wide a range that a logarithmic axis shows more."""
    means = np.concatenate([mean_over_seeds(values)[0] for values in tables]) if tables else np.array([])
    means = means[np.isfinite(means)]
    return bool(means.size and means.min() > 0 and means.max() / means.min() > LOG_SCALE_FROM)
