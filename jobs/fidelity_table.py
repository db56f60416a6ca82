"""The table of jobs/benchmark_fidelity.sh: one line a run, its score beside vanilla's, bytes, bits and execution."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from score_table import less, print_table, score

HEADER = ("dataset", "model", "method", "seeds", "test score", "± std", "less vanilla", "± its error", "MB an epoch",
          "times fewer", "mean bits", "synchronous", "state MB")


def row(dataset: str, model: str, method: str, summary: dict, vanilla: dict | None) -> tuple[str, ...]:
    """One run as text."""
    sent = summary["sent_bytes_per_epoch"]
    fewer = f"{vanilla['sent_bytes_per_epoch'] / sent:.1f}" if vanilla is not None and sent else "-"
    bits = "-" if summary["mean_bits"] is None else f"{summary['mean_bits']:.2f}"
    return (dataset, model, method, *score(summary), *less(summary, vanilla), f"{sent / 1e6:.3f}", fewer, bits,
            f"{100 * summary['synchronous_share']:.0f} %", f"{summary['method_state_bytes'] / 1e6:.1f}")


def table(folder: Path) -> list[tuple[str, ...]]:
    """The lines of all finished runs below FOLDER/DATASET/MODEL/METHOD, vanilla first in each model."""
    found = {tuple(path.parent.parts[-3:]): json.loads(path.read_text()) for path in folder.glob("*/*/*/summary.json")}
    places = sorted(found, key=lambda place: (place[0], place[1], place[2] != "vanilla", place[2]))
    return [row(*place, found[place], found.get((*place[:2], "vanilla"))) for place in places]


if __name__ == "__main__":
    print_table(HEADER, table(Path(sys.argv[1])))
