"""Of jobs/benchmark_nodes.sh: `FOLDER "MODEL.." "METHOD.."` prints what rows that are shared save between two nodes."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

HEADINGS = ("model", "method", "between nodes, apart, MB", "shared, MB", "times fewer", "in shared memory, MB",
            "epoch apart, s", "shared, s", "largest relative difference of losses")


def epochs_of(run: Path) -> list[dict]:
    """Return the metrics of a run, an epoch each."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def cells_of(folder: Path, model: str, method: str) -> list[str]:
    """Return the texts of a row: the first epoch, in which ranks wait for what others build, has no seconds here."""
    apart, shared = (epochs_of(folder / f"{model}-{method}-{choice}") for choice in ("off", "on"))
    megabytes = [statistics.fmean(line[name] for line in lines) / 1e6
                 for lines, name in ((apart, "sent_bytes_between_nodes"), (shared, "sent_bytes_between_nodes"),
                                     (shared, "shared_bytes"))]
    seconds = [statistics.median(line["epoch_seconds"] for line in lines[1:]) for lines in (apart, shared)]
    difference = max(abs(one["loss"] / other["loss"] - 1) for one, other in zip(shared, apart, strict=True))
    return [model, method, f"{megabytes[0]:.2f}", f"{megabytes[1]:.2f}", f"{megabytes[0] / megabytes[1]:.2f}",
            f"{megabytes[2]:.1f}", f"{seconds[0]:.2f}", f"{seconds[1]:.2f}", f"{difference:.1e}"]


def main() -> None:
    """See the module."""
    folder, models, methods = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3].split()
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    for model in models:
        for method in methods:
            print("| " + " | ".join(cells_of(folder, model, method)) + " |")


if __name__ == "__main__":
    main()
