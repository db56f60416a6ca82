"""Of jobs/benchmark_overlap.sh: `pace RUN` prints the MB/s at which messages take as long as the epoch without a link;
`table FOLDER RUN...` prints the medians of runs.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

NOT_COUNTED = 2
COLUMNS = ("epoch_seconds", "compute_seconds", "blocked_seconds", "travel_seconds", "hidden_seconds")


def lines_of(run: Path) -> list[dict]:
    """The epochs that count."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][NOT_COUNTED:]


def median(run: Path, column: str) -> float:
    """Over the epochs that count."""
    return statistics.median(line[column] for line in lines_of(run))


def pace(run: Path) -> float:
    """MB/s of one rank's link, over which its messages take as long as its epoch took."""
    ranks = json.loads((run / "summary.json").read_text())["ranks"]
    return median(run, "sent_bytes_payload") / ranks / median(run, "epoch_seconds") / 1e6


def main() -> None:
    """See the module."""
    if sys.argv[1] == "pace":
        print(f"{pace(Path(sys.argv[2])):.3f}")
        return
    print("| run | " + " | ".join(COLUMNS) + " | blocked of travelling |\n|" + "---|" * (len(COLUMNS) + 2))
    for name in sys.argv[3:]:
        values = [median(Path(sys.argv[2]) / name, column) for column in COLUMNS]
        share = f"{100 * (1 - values[4] / values[3]):.0f} %" if values[3] else "-"
        print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + f" | {share} |")


if __name__ == "__main__":
    main()
