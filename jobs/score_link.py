"""Of jobs/benchmark_score_link.sh: `export SHARDS FOLDER` writes their graph and who owns its nodes, `settings
FANOUT BATCH EPOCHS DROPOUT` prints what the peer is told, `table FOLDER "RATE.." "SCORE.."` what was reached when.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from measurements.race.contestants import PeerSettings
from measurements.race.curve import Point, Training
from measurements.race.runs import points_of, read_records

from hpcgnn.bench.epoch_work import export_arrays
from hpcgnn.shards.reader import read_graph_info, read_owner


def export(shards: Path, folder: Path) -> None:
    """Write graph.npz and owner.npy."""
    export_arrays(shards, folder / "graph.npz")
    np.save(folder / "owner.npy", read_owner(shards, read_graph_info(shards)))


def settings(fanout: str, batch: str, epochs: str, dropout: str) -> str:
    """Return the settings of the peer as JSON; `dropout` is of the hidden rows, then of the input, as in 0.5:0."""
    drawn, (hidden, of_input) = tuple(int(number) for number in fanout.split(",")), map(float, dropout.split(":"))
    return json.dumps(asdict(PeerSettings("sage", int(epochs), float("inf"), lr=0.003, dropout=hidden,
                                          input_dropout=of_input, batch=int(batch), fanout=drawn)))


def trainings(folder: Path) -> Iterator[tuple[str, Training]]:
    """Yield the name and the training of each run of a rate."""
    for run in sorted(folder.iterdir()):
        if run.is_dir():
            points = list(points_of(read_records(run / "metrics.jsonl"), "auto"))
            yield (run / "name.txt").read_text().strip(), Training(points, 0, "")
        else:
            points = [Point(**point) for point in json.loads(run.read_text())["points"]]
            yield f"DGL sampler {run.stem.removeprefix('dgl-')}, remote features", Training(points, 0, "")


def table(folder: Path, rates: list[str], scores: list[float]) -> None:
    """Print seconds (epochs) to each score, an epoch's seconds and bytes, and the best validation score."""
    headings = ["rate", "program", *(f"{100 * score:.2f} %" for score in scores), "s an epoch", "MB an epoch", "best"]
    print("| " + " | ".join(headings) + " |\n|" + "---|" * len(headings))
    for rate in rates:
        for name, training in trainings(folder / rate):
            reached = [training.reach(score) for score in scores]
            cells = ["-" if point is None else f"{point.seconds:.1f} ({point.epoch})" for point in reached]
            print("| " + " | ".join([rate, name, *cells, f"{training.epoch_seconds:.2f}",
                                     f"{training.epoch_bytes / 1e6:.1f}", f"{100 * training.best.val_score:.2f}"])
                  + " |")


def main() -> None:
    """See the module."""
    command, *arguments = sys.argv[1:]
    if command == "export":
        export(Path(arguments[0]), Path(arguments[1]))
    elif command == "settings":
        print(settings(*arguments))
    else:
        table(Path(arguments[0]), arguments[1].split(), [float(score) for score in arguments[2].split()])


if __name__ == "__main__":
    main()
