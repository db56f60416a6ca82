"""Charts of what each rank did: balance of seconds, bytes, memory and edges over the ranks, and bytes by pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.report.chart import Chart, NumberedRuns
from hpcgnn.report.formats import format_bytes, format_number
from hpcgnn.report.run_folder import Run
from hpcgnn.report.summary import values_of

TIME_KEYS = {"computing": "compute_seconds", "packing and unpacking": "quantize_seconds", "in MPI": "",
             "blocked": "blocked_seconds"}


def balance_chart(runs: NumberedRuns) -> Chart | None:
    """Seconds, bytes, memory, edges and rows of each rank: a panel a quantity and a run of several ranks."""
    panels, uneven = [], {}
    for number, run in runs:
        costs = mean_costs(run)
        if costs is None:
            continue
        seconds = {name: costs[key] if key else np.maximum(0, costs["exchange_seconds"] - costs["blocked_seconds"])
                   for name, key in TIME_KEYS.items()}
        uneven[run.name] = _imbalance(costs["compute_seconds"])
        panels.append(_panel(number, run, "seconds an epoch", "s", list(seconds), list(seconds.values())))
        panels.append(_panel(number, run, "bytes sent an epoch", "B", ["sent"], [costs["sent_bytes"]]))
        panels += [_panel(number, run, title, unit, [title], [np.array(values)])
                   for title, unit, values in _sizes(run, costs)]
    if not panels:
        return None
    name = max(uneven, key=uneven.get)
    return Chart("balance", "Balance over ranks", "columns", "A mean over the evaluated epochs. A rank that computes "
                 "longer than the others is what they wait for.",
                 f"In {name} the slowest rank computes {format_number(uneven[name])} times as long as the mean of its "
                 "ranks" + (", the least even of these runs." if len(uneven) > 1 else "."),
                 {"panels": panels, "axis": "rank",
                  "quantities": list(dict.fromkeys(panel["quantity"] for panel in panels)) if len(uneven) > 1 else []})


def mean_costs(run: Run) -> dict[str, np.ndarray] | None:
    """Return the means of the recorded costs by rank, each (num_ranks,) float64; None where none were recorded."""
    tables = values_of(run.records, "by_rank")
    if not tables:
        return None
    return {key: np.mean([table[key] for table in tables], axis=0) for key in tables[-1]}


def pairs_chart(runs: NumberedRuns) -> Chart | None:
    """Heat maps of bytes from rank to rank in the last epoch that recorded them, each with its own scale."""
    members = [(number, run, table) for number, run in runs if (table := last_pair_bytes(run)) is not None]
    if not members:
        return None
    maps = [{"run": number, "title": run.name, "cells": table.tolist()} for number, run, table in members]
    _, run, table = max(members, key=lambda member: _pair_ratio(member[2]))
    sender, receiver = np.unravel_index(np.argmax(table), table.shape)
    return Chart("pairs", "Bytes by pair of ranks", "heat", "Bytes that each rank sent to each other in the last epoch "
                 "that recorded them; colors are scaled run by run.",
                 f"The largest is {format_bytes(table.max())} from rank {sender} to rank {receiver} of {run.name}, "
                 f"{format_number(_pair_ratio(table))} times the mean of its pairs.", {"maps": maps})


def last_pair_bytes(run: Run) -> np.ndarray | None:
    """Bytes from rank (row) to rank (column) in the last epoch that recorded them, (P, P) float64; None if nothing was
    sent or recorded."""
    tables = values_of(run.records, "sent_bytes_by_pair")
    return np.array(tables[-1], dtype=float) if tables and np.any(tables[-1]) else None


def _pair_ratio(table: np.ndarray) -> float:
    off_diagonal = table[~np.eye(len(table), dtype=bool)]
    return float(table.max() / off_diagonal.mean())


def _sizes(run: Run, costs: dict[str, np.ndarray]) -> list[tuple[str, str, Any]]:
    parts = run.summary.get("parts_by_rank") or {}
    return [("memory", "B", parts.get("peak_rss_bytes") or costs["rss_bytes"]),
            *((key.replace("_", " "), "", parts[key]) for key in ("edges", "inner_rows", "halo_rows") if key in parts)]


def _panel(number: int, run: Run, title: str, unit: str, names: list[str], values: list[np.ndarray]) -> dict[str, Any]:
    total = np.sum(values, axis=0)
    return {"run": number, "title": run.name, "quantity": title, "unit": unit, "parts": names,
            "note": f"{title}; largest over mean {format_number(_imbalance(total))}",
            "categories": [str(rank) for rank in range(len(total))],
            "series": [{"name": "", "values": [part.tolist() for part in values]}]}


def _imbalance(values: np.ndarray) -> float:
    return float(values.max() / values.mean()) if values.mean() > 0 else 1.0
