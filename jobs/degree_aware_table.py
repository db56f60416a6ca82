"""The table of jobs/benchmark_degree_aware.sh: one line a run, its score beside float32's, and what is stored."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from best_rate import best_rate
from score_table import less, print_table, score

HEADER = ("dataset", "model", "scheme", "lr", "seeds", "test score", "± std", "less fp32", "± its error",
          "average bits", "bits by layer", "features KB", "all stored KB", "times smaller", "meets target")
SCHEMES = ("fp32", "degree-aware", "degree-aware-loss", "layer-aware", "degree-quant", "uniform")


def row(dataset: str, model: str, scheme: str, rate: str, summary: dict, full: dict | None) -> tuple[str, ...]:
    """One run as text; average bits are those of all layers' rows, all stored KB count weights and scales too."""
    scores = dataset, model, scheme, rate, *score(summary), *less(summary, full)
    if "quantize" not in summary:
        return (*scores, "32.00", *["-"] * 5)
    layers = " ".join(f"{bits:.2f}" for bits in summary["feature_bits"])
    return (*scores, f"{summary['mean_feature_bits']:.2f}", layers, f"{summary['feature_kb']:.0f}",
            f"{summary['stored_kb']:.0f}", f"{summary['float_kb'] / summary['stored_kb']:.1f}",
            "yes" if summary["meets_target"] else "no")


def table(out: Path) -> list[tuple[str, ...]]:
    """A line for each OUT/DATASET/MODEL/SCHEME that has finished runs, of the rate that is best on validation."""
    runs: dict[tuple[str, ...], list[Path]] = {}
    for path in sorted(out.glob("*/*/*/*/summary.json")):
        runs.setdefault(path.parts[-5:-2], []).append(path.parent)
    best = {place: best_rate(found) for place, found in runs.items()}
    found = {place: json.loads((run / "summary.json").read_text()) for place, run in best.items()}
    places = sorted(found, key=lambda place: (*place[:2], SCHEMES.index(place[2])))
    return [row(*place, best[place].name, found[place], found.get((*place[:2], "fp32"))) for place in places]


if __name__ == "__main__":
    print_table(HEADER, table(Path(sys.argv[1])))
