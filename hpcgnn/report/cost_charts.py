"""Charts with one bar a run: bytes and seconds of an epoch, how much of the travelling is waited for, memory."""

from __future__ import annotations

from hpcgnn.report.chart import Chart, NumberedRuns
from hpcgnn.report.formats import format_bytes, format_number, format_percent, format_ratio, format_seconds
from hpcgnn.report.run_folder import Run

TIME_PARTS = ("computing", "packing and unpacking", "in MPI", "blocked", "deciding")


def bytes_chart(runs: NumberedRuns) -> Chart | None:
    """Bytes that all ranks send an epoch, payload and parameters apart, with the ratio to the first run that sends."""
    members = [(number, run) for number, run in runs if run.summary["sent_bytes_per_epoch"]]
    if not members:
        return None
    totals = {run.name: run.summary["sent_bytes_per_epoch"] for _, run in members}
    first = totals[members[0][1].name]
    rows = [_row(number, run, [run.summary[f"sent_bytes_{part}_per_epoch"] for part in ("payload", "parameters")],
                 format_bytes(totals[run.name]) + (f", {format_ratio(totals[run.name], first)}" if place else ""))
            for place, (number, run) in enumerate(members)]
    least, most = min(totals, key=totals.get), max(totals, key=totals.get)
    seen = f"{most} sends {format_bytes(totals[most])} an epoch"
    if totals[most] > totals[least]:
        seen += f"; {least} the least, {format_bytes(totals[least])}: {_times(totals[most], totals[least])} fewer"
    return Chart("bytes", "Messages", "bars", "Bytes handed to MPI in an average epoch, summed over ranks. Parameters "
                 "are the zero points and steps that travel with quantized rows. Ratios are to the first run.",
                 f"{seen}.", {"unit": "B", "parts": ["payload", "parameters"], "rows": rows})


def time_chart(runs: NumberedRuns) -> Chart | None:
    """Seconds of a mean epoch, split into what the ranks did, and into what rank 0 decided after it."""
    members = [(number, run) for number, run in runs if run.mean("epoch_seconds") is not None]
    if not members:
        return None
    parts = {run.name: time_parts(run) for _, run in members}
    rows = [_row(number, run, parts[run.name], format_seconds(sum(parts[run.name]))) for number, run in members]
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
    """Return mean seconds of an epoch by TIME_PARTS, which add up to the epoch and the deciding after it."""
    mean = {key: run.mean(f"{key}_seconds") or 0.0 for key in
            ("epoch", "compute", "quantize", "exchange", "blocked", "assign")}
    known = mean["compute"] + mean["quantize"] + mean["exchange"]
    # An early version recorded the whole alone; what no part explains was spent computing.
    computing = mean["compute"] + max(0.0, mean["epoch"] - known)
    return [computing, mean["quantize"], max(0.0, mean["exchange"] - mean["blocked"]), mean["blocked"], mean["assign"]]


def waiting_chart(runs: NumberedRuns) -> Chart | None:
    """Mean seconds that an epoch's messages travel, and how much of that a rank is blocked."""
    members = [(number, run) for number, run in runs
               if run.summary["ranks"] != 1 and run.mean("blocked_seconds") is not None and run.mean("travel_seconds")]
    if not members:
        return None
    rows, shares = [], {}
    for number, run in members:
        hidden, travel = run.mean("hidden_seconds"), run.mean("travel_seconds")
        # Version 0.3 summed the travelling over exchanges, and counted no waiting but that for messages.
        blocked = run.mean("blocked_seconds") if hidden is None else max(0.0, travel - hidden)
        shares[run.name] = min(1.0, blocked / travel)
        rows.append(_row(number, run, [blocked, max(0.0, travel - blocked)],
                         f"{format_seconds(blocked)} blocked of {format_seconds(max(travel, blocked))}"))
    least = min(shares, key=shares.get)
    return Chart("waiting", "Waiting for messages", "bars", "Seconds of a mean epoch in which some message was on "
                 "its way. While a rank is not blocked it computes.",
                 f"{least} hides {format_percent(1 - shares[least])} % of the travelling behind computing.",
                 {"unit": "s", "parts": ["blocked", "hidden behind computing"], "colors": [3, 1], "rows": rows})


def memory_chart(runs: NumberedRuns) -> Chart | None:
    """Peak resident memory of the rank that holds most, and of it what the method keeps between epochs."""
    members = [(number, run) for number, run in runs if run.summary.get("peak_rss_bytes")]
    if not members:
        return None
    peaks = {run.name: run.summary["peak_rss_bytes"] for _, run in members}
    rows = []
    for number, run in members:
        state = run.summary.get("method_state_bytes") or 0
        rows.append(_row(number, run, [peaks[run.name] - state, state], format_bytes(peaks[run.name])
                         + (f", {format_bytes(state)} of it by the method" if state else "")))
    most, least = max(peaks, key=peaks.get), min(peaks, key=peaks.get)
    seen = f"{most} has the highest peak, {format_bytes(peaks[most])} a rank" if len(rows) > 1 else \
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
