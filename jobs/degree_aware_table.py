"""The table of jobs/benchmark_degree_aware.sh: one line a run, its score beside float32's, and what is stored."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEADER = ("dataset", "model", "scheme", "test score", "± std", "less fp32", "average bits", "bits by layer",
          "features KB", "all stored KB", "times smaller", "meets target")
SCHEMES = ("fp32", "degree-aware", "degree-quant", "uniform")


def row(dataset: str, model: str, scheme: str, summary: dict, full: dict | None) -> tuple[str, ...]:
    """One run as text; average bits are those of all layers' rows, all stored KB count weights and scales too."""
    difference = "-" if full is None else f"{100 * (summary['test_score'] - full['test_score']):+.2f}"
    score = dataset, model, scheme, f"{100 * summary['test_score']:.2f}", f"{100 * summary['test_score_std']:.2f}"
    if "quantize" not in summary:
        return (*score, difference, "32.00", *["-"] * 5)
    layers = " ".join(f"{bits:.2f}" for bits in summary["feature_bits"])
    return (*score, difference, f"{summary['mean_feature_bits']:.2f}", layers, f"{summary['feature_kb']:.0f}",
            f"{summary['stored_kb']:.0f}", f"{summary['float_kb'] / summary['stored_kb']:.1f}",
            "yes" if summary["meets_target"] else "no")


def table(folder: Path) -> list[tuple[str, ...]]:
    """The lines of all finished runs below FOLDER/DATASET/MODEL/SCHEME, in the order of the schemes."""
    found = {tuple(path.parent.parts[-3:]): json.loads(path.read_text()) for path in folder.glob("*/*/*/summary.json")}
    places = sorted(found, key=lambda place: (*place[:2], SCHEMES.index(place[2])))
    return [row(*place, found[place], found.get((*place[:2], "fp32"))) for place in places]


if __name__ == "__main__":
    lines = [HEADER, ("---",) * len(HEADER), *table(Path(sys.argv[1]))]
    print("\n".join("| " + " | ".join(line) + " |" for line in lines))
