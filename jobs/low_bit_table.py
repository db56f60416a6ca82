"""The table of jobs/benchmark_low_bit.sh: a line a width, its scores from the whole graph and in batches."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import mean, stdev

from score_table import print_table

HEADER = ("dataset", "model", "bits", "seeds", "test score", "± std", "less fp32", "in batches", "in clusters alone")
FULL_BITS = 32


def scores_of(folder: Path) -> list[float]:
    """Test scores in percent of a folder's runs that are complete, one a seed."""
    return [100 * json.loads(path.read_text())["test_score"] for path in sorted(folder.glob("*/summary.json"))]


def answers_of(folder: Path, file: str) -> list[float]:
    """Test scores in percent that `hpcgnn infer` printed into a file of each run."""
    texts = [path.read_text() for path in sorted(folder.glob(f"*/{file}"))]
    return [float(found[1]) for found in (re.search(r"test ([\d.]+) %", text) for text in texts) if found]


def row(folder: Path) -> tuple[str, ...]:
    """The line of one width."""
    dataset, model, bits = folder.parts[-3:]
    scores, full = scores_of(folder), scores_of(folder.parent / str(FULL_BITS))
    difference = f"{mean(scores) - mean(full):+.2f}" if full and int(bits) != FULL_BITS else "-"
    answers = [f"{mean(found):.2f}" if found else "-"
               for found in (answers_of(folder, "batches.txt"), answers_of(folder, "clusters.txt"))]
    spread = f"{stdev(scores):.2f}" if len(scores) > 1 else "-"
    return dataset, model, bits, str(len(scores)), f"{mean(scores):.2f}", spread, difference, *answers


def table(out: Path) -> list[tuple[str, ...]]:
    """The lines of all widths below OUT/DATASET/MODEL/BITS that have a complete run, the widest first."""
    folders = sorted((path for path in out.glob("*/*/*") if scores_of(path)),
                     key=lambda path: (*path.parts[-3:-1], -int(path.name)))
    return [row(folder) for folder in folders]


if __name__ == "__main__":
    print_table(HEADER, table(Path(sys.argv[1])))
