"""Of jobs/benchmark_pipeline.sh: `FOLDER "RATE.." "METHOD.."` prints the medians of runs on lines of several rates."""

from __future__ import annotations

import json
import statistics
import sys
from itertools import pairwise
from pathlib import Path

NOT_COUNTED = 4
SECONDS = ("epoch_seconds", "compute_seconds", "blocked_seconds", "travel_seconds", "hidden_seconds")
BYTES = ("sent_bytes_payload", "sent_bytes_parameters", "sent_bytes_sums")
HEADINGS = ("rate", "method", "epoch", "computing", "blocked", "travelling", "hidden", "line", "MB", "asynchronous",
            "to unlimited", "to computing or line")
UNITS = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}


def lines_of(run: Path) -> tuple[list[dict], float]:
    """Return the epochs that count, and the share of asynchronous ones among all."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    share = statistics.fmean(line["mode"] == "async" for line in lines)
    # The first epoch of a mode meets what the other mode has left on the line.
    counted = [line for before, line in pairwise(lines) if before["mode"] == line["mode"] == "async"] or lines
    return counted[NOT_COUNTED:] or counted[-1:], share


def bits_per_second(rate: str) -> float:
    """Return the rate that tc would read from a text; infinity where there is no limit."""
    if rate == "none":
        return float("inf")
    return next(float(rate.removesuffix(unit)) * factor for unit, factor in UNITS.items() if rate.endswith(unit))


def cells_of(run: Path, rate: str) -> tuple[list[str], float, float]:
    """Return the texts of a run's medians, its seconds an epoch, and the longer of computing and the line's time."""
    lines, share = lines_of(run)
    medians = {name: statistics.median(line[name] for line in lines) for name in (*SECONDS, *BYTES)}
    sent = sum(medians[name] for name in BYTES)
    line_seconds = 8 * sent / 2 / bits_per_second(rate)    # two ranks send as much at once, each its own way
    working = medians["epoch_seconds"] - medians["blocked_seconds"]
    texts = [*(f"{medians[name]:.3f}" for name in SECONDS), f"{line_seconds:.3f}", f"{sent / 1e6:.1f}",
             f"{100 * share:.0f} %"]
    return texts, medians["epoch_seconds"], max(working, line_seconds)


def main() -> None:
    """See the module."""
    folder, rates, methods = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3].split()
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    unlimited: dict[str, float] = {}
    for rate in rates:
        for method in methods:
            texts, seconds, least = cells_of(folder / rate / method, rate)
            unlimited.setdefault(method, seconds)
            print("| " + " | ".join([rate, method, *texts, f"{seconds / unlimited[method]:.2f}",
                                     f"{seconds / least:.2f}"]) + " |")


if __name__ == "__main__":
    main()
