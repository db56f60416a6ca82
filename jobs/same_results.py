"""Train the same runs in two checkouts and compare what they computed to the last bit; see jobs/same_results.sh."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import h5py
from compare_checkouts import make_shards, run_in

SOURCE = "synthetic:nodes=3000,classes=4"
# The numbers of an epoch that do not depend on seconds: equal in two checkouts that compute the same.
SAME = ("loss", "sent_bytes_payload", "sent_bytes_parameters", "mean_bits", "staleness", "width_histogram", "mode",
        "base_bits", "sent_bytes_by_pair", "train_score", "val_score", "test_score", "val_loss")
COMMON = {"hidden": 16, "epochs": 12, "eval_every": 4}
FOLLOWS = {"deterministic": True, "descent_window": 1, "descent_smoothing": 0.5, "most_motion": 9.0}
SOLVES = {"deterministic": True, "period": 4, "group_size": 20}
# (ranks, settings): every method, the models that are built differently, 1 to 3 ranks, both storage types. Settings are
# given in a file, which checkouts of any age read.
RUNS = (
    (1, {"model": "sage", "method": "vanilla"}),
    (2, {"model": "gcn", "method": "vanilla", "precision": "bf16"}),
    (2, {"model": "sage", "method": "uniform", "bits": 2}),
    (3, {"model": "gat", "method": "uniform", "bits": 8}),
    (3, {"model": "gcn", "method": "random"}),
    (2, {"model": "sage", "method": "sylvie", **FOLLOWS}),
    (3, {"model": "gcn", "method": "sylvie", **FOLLOWS, "precision": "bf16"}),
    (3, {"model": "sage", "method": "adaqp", **SOLVES, "solver": "greedy"}),
    (2, {"model": "gat", "method": "joint", **FOLLOWS, **SOLVES}),
    (2, {"model": "gcn", "method": "pipegcn", "smoothing": 0.5}),
    (3, {"model": "sage", "method": "pipegcn", "precision": "bf16"}),
    (3, {"model": "gcn", "method": "bns", "share": 0.4}),
    (2, {"model": "sage", "method": "sancus", "skip_change": 0.5, "staleness": 3}),
    (2, {"model": "gcnii", "method": "uniform", "bits": 4, "predict": "previous"}),
    (2, {"model": "sage", "method": "vanilla", "rematerialize": True}),
    (2, {"model": "gin", "method": "vanilla", "quantize": "degree-aware"}),
)
TRAIN = 'source "$0/jobs/env.sh" && cd "$1" && ranks=$2 && shift 2 && hpcgnn_mpirun "$ranks" hpcgnn train "$@"'


def train(checkout: Path, folder: Path, ranks: int, settings: dict[str, object]) -> dict[str, object]:
    """Train once; what was computed, by name."""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in {**COMMON, **settings}.items()]
    (folder / "settings.toml").write_text("".join(lines))
    run_in(TRAIN, checkout, folder, ranks, f"shards-{ranks}", "--out", "run", "--overwrite", "--config",
           "settings.toml")
    found: dict[str, object] = {}
    for number, line in enumerate((folder / "run/metrics.jsonl").read_text().splitlines()):
        record = json.loads(line)
        found.update({f"epoch {number + 1} {name}": record[name] for name in SAME if name in record})
    with h5py.File(folder / "run/checkpoint.h5") as file:
        file.visititems(lambda name, entry: found.update({name: entry[()].tobytes()})
                        if isinstance(entry, h5py.Dataset) else None)
    return found


def compare(ours: Path, other: Path, scratch: Path) -> bool:
    """Print a row for each run; whether all are the same."""
    folders = {other: scratch / "other", ours: scratch / "ours"}
    for checkout, folder in folders.items():
        for ranks in sorted({run[0] for run in RUNS}):
            make_shards(checkout, folder / str(ranks), SOURCE, ranks)
            (folder / str(ranks) / "shards").rename(folder / f"shards-{ranks}")
    are_same = True
    print("| ranks | settings | numbers compared | differ |\n|---|---|---|---|")
    for ranks, settings in RUNS:
        before, after = (train(checkout, folder, ranks, settings) for checkout, folder in folders.items())
        differ = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        are_same = are_same and not differ
        named = ", ".join(f"{name} {value}" for name, value in settings.items())
        print(f"| {ranks} | {named} | {len(before)} | {', '.join(differ[:3]) or 'none'} |",
              flush=True)
    return are_same


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ours", type=Path)
    parser.add_argument("other", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(0 if compare(arguments.ours.resolve(), arguments.other.resolve(), Path(scratch)) else 1)


if __name__ == "__main__":
    main()
