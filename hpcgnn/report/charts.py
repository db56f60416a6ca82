"""The charts of the page as plain data, which the page's scripts draw.

`charts_of` picks the charts that the runs have data for, in the order of the page: one line per run (loss, score,
seconds, bits), one bar per run (bytes, seconds, waiting, memory), one panel per run for its first seed (widths,
execution, degrees: decisions have no mean over seeds), and charts by rank (balance, bytes by pair). `curves_figure` is
for programs and notebooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.report.formats import format_bytes, format_number, format_percent, format_ratio, format_seconds
from hpcgnn.report.run_folder import Run
from hpcgnn.report.series import (
    MAX_POINTS,
    ScoreKind,
    curve,
    is_thinned,
    largest_of_ranks,
    mean_over_seeds,
    rounded,
    score_kind,
    total_bytes,
)
from hpcgnn.report.summary import SENT, values_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NumberedRuns = list[tuple[int, Run]]      # per run, the number in the report, which selects the color


def charts_of(runs: list[Run]) -> list[Chart]:
    found = []
    for make, is_drawn in CHARTS:
        members = [(number, run) for number, run in enumerate(runs) if is_drawn(run)]
        if members and (chart := make(members)) is not None:
            found.append(chart)
    return found


def remarks_of(runs: list[Run]) -> list[str]:
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


@dataclass(frozen=True)
class Chart:
    name: str               # unique on the page
    title: str
    kind: str               # {"lines", "bars", "columns", "areas", "bands", "heat", "dots"}, the script that draws it
    caption: str            # says what is drawn, and how it was measured
    seen: str               # a finding about these runs, or ""
    data: dict[str, Any]    # lists, numbers and strings for the script of that kind


SPLITS = {"test": "test", "val": "validation", "train": "training"}
LOG_SCALE_FROM = 20   # ratio of largest to smallest value from which an axis is logarithmic


def loss_chart(runs: NumberedRuns) -> Chart | None:
    panels = [_panel(title, runs, key) for title, key in (("training loss", "loss"), ("validation loss", "val_loss"))]
    known = {run.name: ends[1] for _, run in runs if (ends := _ends(run.curves("loss")))}
    return _lines("loss", "Loss", "Mean over the training or validation nodes of all ranks.", panels,
                  _loss_sentence(runs, known))


def progress_chart(runs: NumberedRuns) -> Chart | None:
    timed = [(number, run) for number, run in runs if np.isfinite(run.elapsed_seconds()).any()]
    kind = score_kind([run for _, run in runs])
    lines = [line for number, run in timed if (line := curve(number, run, run.curves("val_score"), kind.scale))]
    panels = [{"title": f"validation {kind.title}", "unit": kind.unit, "series": lines}]
    return _lines("progress", "Score over time", "Validation score over the seconds of training so far; "
                  "evaluations are not counted.", panels, _progress_sentence(timed, kind), axis="seconds")


def score_chart(runs: NumberedRuns) -> Chart | None:
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
    panels = [_panel("seconds per epoch", runs, "epoch_seconds", unit="s"),
              {"title": "resident memory, largest rank", "unit": "B", "series": [
                  line for number, run in runs if (line := curve(number, run, largest_of_ranks(run, "rss_bytes")))]}]
    sentences = [f"{run.name}: median {format_seconds(run.median('epoch_seconds'))}, slowest "
                 f"{format_seconds(np.nanmax(run.curves('epoch_seconds')))} at epoch {_worst_epoch(run)}"
                 for _, run in runs if np.isfinite(run.curves("epoch_seconds")).any()]
    seen = "; ".join(sentences[:4]) + (f"; and {len(sentences) - 4} more runs" if len(sentences) > 4 else "") + "."
    return _lines("seconds", "Epochs", "Length of each epoch without evaluation, the mean over the ranks.", panels,
                  seen if sentences else "")


def bits_chart(runs: NumberedRuns) -> Chart | None:
    moving = [(number, run) for number, run in runs if _varies(run.curves("mean_bits"))]
    changing = [(number, run) for number, run in runs if _varies(total_bytes(run))]
    panels = [_panel("payload bits per value", moving, "mean_bits", unit="bits"),
              {"title": "bytes sent per epoch", "unit": "B", "log": _is_wide([total_bytes(run) for _, run in changing]),
               "series": [line for number, run in changing if (line := curve(number, run, total_bytes(run)))]}]
    said = [f"{run.name} goes from {format_number(ends[0])} to {format_number(ends[1])} bits per value"
            for _, run in moving if (ends := _ends(run.curves("mean_bits")))]
    return _lines("bits", "Bits and bytes by epoch", "Only runs in which they change are drawn.", panels,
                  "; ".join(said[:4]) + "." if said else "")


def descent_chart(runs: NumberedRuns) -> Chart | None:
    said = [f"{run.name} ends at {format_number(ends[1])}" for _, run in runs if (ends := _ends(run.curves("ldr")))]
    return _lines("descent", "Rate of descent", "The rate at which the running mean of the training loss falls (LDR), "
                  "by which the base width and the execution of the next epoch are chosen.",
                  [_panel("LDR", runs, "ldr")], "; ".join(said[:4]) + "." if said else "")


def _panel(title: str, runs: NumberedRuns, key: str, unit: str = "") -> dict:
    lines = [line for number, run in runs if (line := curve(number, run, run.curves(key)))]
    return {"title": title, "unit": unit, "series": lines, "log": _is_wide([run.curves(key) for _, run in runs])}


def _lines(name: str, title: str, caption: str, panels: list[dict], seen: str, axis: str = "") -> Chart | None:
    # Without `axis`, the reader of the page chooses the axis.
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
    scores = {number: mean_over_seeds(run.curves("val_score"))[0] for number, run in runs}
    scored = [(number, run) for number, run in runs if np.isfinite(scores[number]).any()]
    if not scored:
        return ""
    sign = -1 if kind.prefers_low else 1
    goal = min(np.nanmax(sign * scores[number]) for number, _ in scored)
    text = kind.show(sign * goal, with_unit=True)
    seconds = {run.name: float(mean_over_seeds(run.elapsed_seconds())[0][np.argmax(sign * scores[number] >= goal)])
               for number, run in scored}
    first, last = min(seconds, key=seconds.get), max(seconds, key=seconds.get)
    if len(scored) == 1:
        return f"{first} reaches its best validation {kind.title}, {text}, after {format_seconds(seconds[first])}."
    return (f"All reach a validation {kind.title} of {text}: {first} first, after {format_seconds(seconds[first])}; "
            f"{last} last, after {format_seconds(seconds[last])}.")


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
    # If all means are positive and their range is wide, a logarithmic axis shows more.
    means = np.concatenate([mean_over_seeds(values)[0] for values in tables]) if tables else np.array([])
    means = means[np.isfinite(means)]
    return bool(means.size and means.min() > 0 and means.max() / means.min() > LOG_SCALE_FROM)


TIME_PARTS = ("computing", "packing and unpacking", "in MPI", "blocked", "deciding")


def bytes_chart(runs: NumberedRuns) -> Chart:
    totals = {run.name: run.summary["sent_bytes_per_epoch"] for _, run in runs}
    first = totals[runs[0][1].name]
    rows = [_row(number, run, [run.summary.get(f"sent_bytes_{part}_per_epoch") or 0 for part in SENT],
                 format_bytes(totals[run.name]) + (f", {format_ratio(totals[run.name], first)}" if place else ""))
            for place, (number, run) in enumerate(runs)]
    least, most = min(totals, key=totals.get), max(totals, key=totals.get)
    seen = f"{most} sends {format_bytes(totals[most])} per epoch"
    if totals[most] > totals[least]:
        seen += f"; {least} the least, {format_bytes(totals[least])}: {_times(totals[most], totals[least])} fewer"
    return Chart("bytes", "Bytes sent", "bars", "Bytes handed to MPI in an average epoch, summed over ranks. Payload "
                 "and parameters are of messages; parameters are the zero points and steps of quantized rows. Sums are "
                 "of gradients and batch norms; control is widths that a solver sends. Ratios are to the first run.",
                 f"{seen}.", {"unit": "B", "parts": list(SENT), "rows": rows})


def time_chart(runs: NumberedRuns) -> Chart:
    parts = {run.name: time_parts(run) for _, run in runs}
    rows = [_row(number, run, parts[run.name], format_seconds(sum(parts[run.name]))) for number, run in runs]
    fastest = min(parts, key=lambda name: sum(parts[name]))
    seen = f"{fastest} has the shortest mean epoch, {format_seconds(sum(parts[fastest]))}" if len(rows) > 1 else \
        f"A mean epoch takes {format_seconds(sum(parts[fastest]))}"
    shares = {name: split[0] / (sum(split) or 1) for name, split in parts.items()}
    least = min(shares, key=shares.get)
    rest = dict(zip(TIME_PARTS[1:], parts[least][1:], strict=True))
    largest = max(rest, key=rest.get)
    percent = f"{format_percent(shares[least])} %"
    seen += f"; {least} has the smallest share of computing, {percent}" if len(rows) > 1 else \
        f"; {percent} of it computing"
    if rest[largest] > 0:
        seen += f", and {format_percent(rest[largest] / sum(parts[least]))} % {largest}"
    return Chart("time", "Time of an epoch", "bars", "A mean epoch by what the ranks did in it, the mean over ranks: "
                 "computing; packing and unpacking messages; MPI's calls; blocked, waiting for messages; and what "
                 "rank 0 takes to decide how the next epoch's rows are sent.",
                 f"{seen}.", {"unit": "s", "parts": list(TIME_PARTS), "rows": rows})


def time_parts(run: Run) -> list[float]:
    """Mean seconds of an epoch by TIME_PARTS, which sum to the epoch and the deciding after it."""
    mean = {key: run.mean(f"{key}_seconds") or 0.0 for key in
            ("epoch", "compute", "quantize", "exchange", "blocked", "assign")}
    known = mean["compute"] + mean["quantize"] + mean["exchange"]
    # An early version recorded only the whole; the rest, in no other part, was spent computing.
    computing = mean["compute"] + max(0.0, mean["epoch"] - known)
    return [computing, mean["quantize"], max(0.0, mean["exchange"] - mean["blocked"]), mean["blocked"], mean["assign"]]


def has_waited(run: Run) -> bool:
    return bool(run.summary["ranks"] != 1 and run.mean("blocked_seconds") is not None and run.mean("travel_seconds"))


def waiting_chart(runs: NumberedRuns) -> Chart:
    rows, shares = [], {}
    for number, run in runs:
        hidden, travel = run.mean("hidden_seconds"), run.mean("travel_seconds")
        # Version 0.3 summed the travelling over exchanges, and counted only the waiting for messages.
        blocked = run.mean("blocked_seconds") if hidden is None else max(0.0, travel - hidden)
        shares[run.name] = min(1.0, blocked / travel)
        rows.append(_row(number, run, [blocked, max(0.0, travel - blocked)],
                         f"{format_seconds(blocked)} blocked of {format_seconds(max(travel, blocked))}"))
    least = min(shares, key=shares.get)
    return Chart("waiting", "Waiting for messages", "bars", "Seconds of a mean epoch in which some message was on "
                 "its way. While a rank is not blocked it computes.",
                 f"{least} hides {format_percent(1 - shares[least])} % of the travelling behind computing.",
                 {"unit": "s", "parts": ["blocked", "hidden behind computing"], "colors": [3, 1], "rows": rows})


def memory_chart(runs: NumberedRuns) -> Chart:
    peaks = {run.name: run.summary["peak_rss_bytes"] for _, run in runs}
    rows = []
    for number, run in runs:
        state = run.summary.get("method_state_bytes") or 0
        rows.append(_row(number, run, [peaks[run.name] - state, state], format_bytes(peaks[run.name])
                         + (f", {format_bytes(state)} of it by the method" if state else "")))
    most, least = max(peaks, key=peaks.get), min(peaks, key=peaks.get)
    seen = f"{most} has the highest peak, {format_bytes(peaks[most])} per rank" if len(rows) > 1 else \
        f"A rank holds up to {format_bytes(peaks[most])}"
    if peaks[most] > peaks[least]:
        seen += f"; {least} the lowest, {format_bytes(peaks[least])}"
    return Chart("memory", "Memory", "bars", "Peak resident memory of the rank that holds most, the program and its "
                 "libraries included.", f"{seen}.",
                 {"unit": "B", "parts": ["all else", "kept by the method between epochs"], "rows": rows})


def _row(number: int, run: Run, values: list[float], note: str) -> dict:
    return {"run": number, "label": run.name, "values": values, "note": note}


def _times(larger: float, smaller: float) -> str:
    return f"{format_number(larger / smaller)} times"


def has_varying_widths(run: Run) -> bool:
    used = {width for record in run.first_seed for width, rows in (record.get("width_histogram") or {}).items() if rows}
    has_base = any(record.get("base_bits") is not None for record in run.first_seed)
    return len(used) > 1 or (bool(used) and has_base)


def has_stale_epochs(run: Run) -> bool:
    return any(record.get("mode") == "async" or record.get("staleness") for record in run.first_seed)


def widths_chart(runs: NumberedRuns) -> Chart:
    panels, said = [], []
    for number, run in runs:
        epochs, shares = epoch_range(run), width_shares(run)
        kept = _kept(epochs)
        means = {width: float(np.nanmean(share)) for width, share in shares.items()}
        widest = max(means, key=means.get)
        said.append(f"{run.name} sends {format_number(means[widest])} % of its rows at {widest} "
                    f"bit{'s' * (widest > 1)}")
        base = np.array([np.nan if value is None else value for value in epoch_values(run, "base_bits")], float)
        panels.append({"run": number, "title": run.name, "epochs": epochs[kept].tolist(), "widths": list(shares),
                       "shares": [rounded(share[kept]) for share in shares.values()],
                       "base": rounded(base[kept]) if np.isfinite(base).any() else None})
    return Chart("widths", "Widths of rows", "areas", "Share of message rows sent at each bit-width in each epoch, all "
                 "ranks together; the line is the base width of methods that have one." + _of_first_seed(runs),
                 _join(said), {"panels": panels})


def execution_chart(runs: NumberedRuns) -> Chart:
    panels, said = [], []
    for number, run in runs:
        epochs, modes = epoch_range(run), epoch_values(run, "mode")
        ages = np.array([np.nan if value is None else value for value in epoch_values(run, "staleness")], float)
        kept = _kept(epochs)
        panels.append({"run": number, "title": run.name, "epochs": epochs[kept].tolist(),
                       "modes": [modes[place] for place in kept.tolist()],
                       "ages": rounded(ages[kept]) if np.isfinite(ages).any() else None})
        oldest = int(np.nanmax(ages)) if np.isfinite(ages).any() else 0
        late = f", with rows up to {oldest} epoch{'s' * (oldest > 1)} old" if oldest else ""
        asynchronous = format_percent(modes.count("async") / len(modes))
        said.append(f"{asynchronous} % of the epochs of {run.name} ran asynchronously{late}")
    return Chart("execution", "Execution and staleness", "bands", "Which epochs waited for their messages "
                 "(synchronous) and which used earlier ones (asynchronous); the line is the largest age, in epochs, of "
                 "a halo row that was read." + _of_first_seed(runs), _join(said), {"panels": panels})


def degrees_chart(runs: NumberedRuns) -> Chart:
    panels = [{"run": number, "title": run.name, "layers": run.summary["widths_by_degree"]} for number, run in runs]
    said = [f"{run.name} gives its {len(layers)} layers {min(widths)} to {max(widths)} bits" for _, run in runs
            if (layers := run.summary["widths_by_degree"])
            and (widths := [width for layer in layers for width in layer["bit_width"]])]
    return Chart("degrees", "Learned widths by in-degree", "dots", "Bits of a node's row in each layer, signs "
                 "included, that training chose by the node's in-degree, at the end of the last seed; a larger dot "
                 "is more nodes.", _join(said), {"panels": panels})


def epoch_range(run: Run) -> np.ndarray:
    """All epochs from the first seed's first to its last, (num_epochs,) int64."""
    epochs = [record["epoch"] for record in run.first_seed]
    return np.arange(min(epochs), max(epochs) + 1)


def epoch_values(run: Run, key: str) -> list[Any]:
    by_epoch = {record["epoch"]: record.get(key) for record in run.first_seed}
    return [by_epoch.get(epoch) for epoch in epoch_range(run).tolist()]


def width_shares(run: Run) -> dict[int, np.ndarray]:
    """Percentage of message rows by width, ascending, each (num_epochs,) float64; NaN where nothing was sent."""
    histograms = [{int(width): rows for width, rows in (histogram or {}).items()}
                  for histogram in epoch_values(run, "width_histogram")]
    total = np.array([sum(histogram.values()) or np.nan for histogram in histograms])
    widths = sorted({width for histogram in histograms for width, rows in histogram.items() if rows})
    return {width: 100 * np.array([histogram.get(width, 0) for histogram in histograms]) / total for width in widths}


def _kept(epochs: np.ndarray) -> np.ndarray:
    return np.arange(0, len(epochs), -(-len(epochs) // MAX_POINTS))


def _of_first_seed(runs: NumberedRuns) -> str:
    return " If a run has several seeds, the first is shown." if any(len(run.seeds) > 1 for _, run in runs) else ""


def _join(said: list[str]) -> str:
    shown = said[:3] + ([f"and {len(said) - 3} more runs are drawn below"] if len(said) > 3 else [])
    return "; ".join(shown) + "." if said else ""


TIME_KEYS = {"computing": "compute_seconds", "packing and unpacking": "quantize_seconds", "in MPI": "",
             "blocked": "blocked_seconds"}


def balance_chart(runs: NumberedRuns) -> Chart:
    panels, uneven = [], {}
    for number, run in runs:
        tables = values_of(run.records, "by_rank")      # means of each cost, (num_ranks,) float64
        costs = {key: np.mean([table[key] for table in tables], axis=0) for key in tables[-1]}
        seconds = {name: costs[key] if key else np.maximum(0, costs["exchange_seconds"] - costs["blocked_seconds"])
                   for name, key in TIME_KEYS.items()}
        uneven[run.name] = _imbalance(costs["compute_seconds"])
        panels.append(_bar_panel(number, run, "seconds per epoch", "s", list(seconds), list(seconds.values())))
        panels.append(_bar_panel(number, run, "bytes sent per epoch", "B", ["sent"], [costs["sent_bytes"]]))
        panels += [_bar_panel(number, run, title, unit, [title], [np.array(values)])
                   for title, unit, values in _sizes(run, costs)]
    name = max(uneven, key=uneven.get)
    return Chart("balance", "Balance over ranks", "columns", "Means over the evaluated epochs. Ranks wait for a rank "
                 "that computes longer.",
                 f"In {name} the slowest rank computes {format_number(uneven[name])} times as long as the mean of its "
                 "ranks" + (", the least even of these runs." if len(uneven) > 1 else "."),
                 {"panels": panels, "axis": "rank",
                  "quantities": list(dict.fromkeys(panel["quantity"] for panel in panels)) if len(uneven) > 1 else []})


def pairs_chart(runs: NumberedRuns) -> Chart:
    members = [(number, run, last_pair_bytes(run)) for number, run in runs]
    maps = [{"run": number, "title": run.name, "cells": table.tolist()} for number, run, table in members]
    _, run, table = max(members, key=lambda member: _pair_ratio(member[2]))
    sender, receiver = np.unravel_index(np.argmax(table), table.shape)
    return Chart("pairs", "Bytes by pair of ranks", "heat", "Bytes that each rank sent to every other in the last "
                 "epoch that recorded them; colors are scaled run by run.",
                 f"The largest is {format_bytes(table.max())} from rank {sender} to rank {receiver} of {run.name}, "
                 f"{format_number(_pair_ratio(table))} times the mean of its pairs.", {"maps": maps})


def last_pair_bytes(run: Run) -> np.ndarray:
    """Bytes from rank (row) to rank (column) in the last epoch that recorded them, (P, P) float64."""
    return np.array(values_of(run.records, "sent_bytes_by_pair")[-1], dtype=float)


def _pair_ratio(table: np.ndarray) -> float:
    off_diagonal = table[~np.eye(len(table), dtype=bool)]
    return float(table.max() / off_diagonal.mean())


def _sizes(run: Run, costs: dict[str, np.ndarray]) -> list[tuple[str, str, Any]]:
    parts = run.summary.get("parts_by_rank") or {}
    return [("memory", "B", parts.get("peak_rss_bytes") or costs["rss_bytes"]),
            *((key.replace("_", " "), "", parts[key]) for key in ("edges", "inner_rows", "halo_rows") if key in parts)]


def _bar_panel(number: int, run: Run, title: str, unit: str, names: list[str],
               values: list[np.ndarray]) -> dict[str, Any]:
    total = np.sum(values, axis=0)
    return {"run": number, "title": run.name, "quantity": title, "unit": unit, "parts": names,
            "note": f"{title}; largest over mean {format_number(_imbalance(total))}",
            "categories": [str(rank) for rank in range(len(total))],
            "series": [{"name": "", "values": [part.tolist() for part in values]}]}


def _imbalance(values: np.ndarray) -> float:
    return float(values.max() / values.mean()) if values.mean() > 0 else 1.0


# The charts in the order of the page, and whether a run has what one draws.
CHARTS: tuple[tuple[Callable[[NumberedRuns], Chart | None], Callable[[Run], Any]], ...] = (
    (progress_chart, lambda run: True), (score_chart, lambda run: True),
    (loss_chart, lambda run: True), (bytes_chart, lambda run: run.summary["sent_bytes_per_epoch"]),
    (time_chart, lambda run: run.mean("epoch_seconds") is not None), (waiting_chart, has_waited),
    (memory_chart, lambda run: run.summary.get("peak_rss_bytes")),
    (balance_chart, lambda run: values_of(run.records, "by_rank")),
    (pairs_chart, lambda run: np.any(values_of(run.records, "sent_bytes_by_pair")[-1:])),
    (seconds_chart, lambda run: True), (widths_chart, has_varying_widths), (bits_chart, lambda run: True),
    (execution_chart, has_stale_epochs), (descent_chart, lambda run: values_of(run.records, "ldr")),
    (degrees_chart, lambda run: run.summary.get("widths_by_degree")))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


COLORS = {"train": "C0", "val": "C1", "test": "C2"}      # a split has one color in both panels


def curves_figure(run: Run) -> Figure:
    """One run as a matplotlib figure: losses on the left, scores on the right, by epoch, means over the seeds.

    Raises ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot  # it tells a notebook how to show a figure
    except ImportError as missing:
        raise ConfigError("plot() needs matplotlib, which is not installed; "
                          "run pip install 'hpcgnn[report]'") from missing
    kind = score_kind([run])
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.5), layout="constrained", sharex=True)
    pyplot.close(figure)      # else a notebook shows it twice, and pyplot keeps it for ever
    panels = (("loss", 1, {"loss": "train", "val_loss": "val"}),
              (kind.heading, kind.scale, {f"{split}_score": split for split in COLORS}))
    for panel, (title, scale, splits) in zip(axes, panels, strict=True):
        for key, split in splits.items():
            values = scale * mean_over_seeds(run.curves(key))[0]
            is_known = np.isfinite(values)
            if is_known.any():
                panel.plot(run.epochs[is_known], values[is_known], COLORS[split], label=SPLITS[split])
        panel.set(xlabel="epoch", ylabel=title)
        panel.legend()
    figure.suptitle(run.name)
    return figure
