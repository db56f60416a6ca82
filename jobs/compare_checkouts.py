"""Time `hpcgnn train` of two checkouts in turn; see jobs/compare_checkouts.sh."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLL_SECONDS = 0.005
LIMIT_SECONDS = 600
# Each checkout brings its environment along; the clock starts behind it.
IN_ENVIRONMENT = 'source "$0/jobs/env.sh" && cd "$1" && shift && "$@"'
LAUNCH = ('source "$0/jobs/env.sh" && cd "$1" && ranks=$2 && shift 2 && touch started && '
          'hpcgnn_mpirun "$ranks" hpcgnn train "$@"')


def make_shards(checkout: Path, folder: Path, source: str, ranks: int) -> None:
    """Write `folder`/shards in the checkout's own format."""
    folder.mkdir(parents=True)
    run_in(IN_ENVIRONMENT, checkout, folder, "hpcgnn", "preprocess", source, "--parts", str(ranks), "--out", "shards")


def run_in(script: str, checkout: Path, *arguments: object) -> None:
    """Run a script of bash in a checkout's environment; end with what it said where it fails."""
    others = ("HPCGNN_VENV", "HPCGNN_ROOT", "VIRTUAL_ENV", "MPIRUN", "LD_LIBRARY_PATH", "MPI4PY_MPIABI")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    ended = subprocess.run(["bash", "-c", script, checkout, *map(str, arguments)], env=environment, text=True,
                           capture_output=True, timeout=LIMIT_SECONDS)
    if ended.returncode:
        sys.exit(f"{checkout} failed with status {ended.returncode}: {ended.stderr[-2000:]}")


def time_training(checkout: Path, folder: Path, ranks: int, flags: list[str]) -> dict[str, float]:
    """Train once: median seconds of an epoch, and of the start, which is all from mpirun to the first epoch."""
    metrics, started = folder / "run" / "metrics.jsonl", folder / "started"
    for old in (metrics, started):
        old.unlink(missing_ok=True)
    watcher = subprocess.Popen([sys.executable, __file__, "--watch", metrics], stdout=subprocess.PIPE, text=True)
    run_in(LAUNCH, checkout, folder, ranks, "shards", "--out", "run", "--overwrite", *flags)
    first_line_at = float(watcher.communicate(timeout=10)[0])
    seconds = [json.loads(line)["epoch_seconds"] for line in metrics.read_text().splitlines()]
    return {"epoch": statistics.median(seconds), "start": first_line_at - started.stat().st_mtime - seconds[0]}


def watch(metrics: Path) -> None:
    """Print the time at which the file holds its first line."""
    while not (metrics.exists() and metrics.stat().st_size):
        time.sleep(POLL_SECONDS)
    print(time.time())


def compare(ours: Path, other: Path, arguments: argparse.Namespace) -> None:
    """Print a row for each number of ranks and figure."""
    print(f"{arguments.source}, {arguments.repeat} runs each, in turn; load {os.getloadavg()[0]:.2f}; "
          f"flags {' '.join(arguments.flags)}")
    print("| ranks | seconds of | before | after | ratio, median of pairs | ratios |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in map(int, arguments.ranks.split(",")):
            folders = {other: Path(scratch) / f"old-{ranks}", ours: Path(scratch) / f"new-{ranks}"}
            for checkout, folder in folders.items():
                make_shards(checkout, folder, arguments.source, ranks)
            pairs = [[time_training(checkout, folder, ranks, arguments.flags) for checkout, folder in folders.items()]
                     for _ in range(arguments.repeat + 1)][1:]     # the first pair warms the page cache
            for figure in ("epoch", "start"):
                before, after = ([pair[side][figure] for pair in pairs] for side in (0, 1))
                ratios = sorted(new / old for old, new in zip(before, after, strict=True))
                print(f"| {ranks} | {figure} | {statistics.median(before):.4f} | {statistics.median(after):.4f} | "
                      f"{statistics.median(ratios):.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} |", flush=True)


def main() -> None:
    """See the module."""
    if sys.argv[1] == "--watch":
        watch(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", type=Path)
    parser.add_argument("other", type=Path, help="the checkout before the change")
    parser.add_argument("--source", default="synthetic:nodes=20000,mean_degree=15,classes=8,features=64")
    parser.add_argument("--ranks", default="1,4")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--flags", type=str.split, default="--model sage --hidden 64 --epochs 40 --checkpoint-every 10",
                        help="of hpcgnn train, the same for both, in one word")
    arguments = parser.parse_args()
    if isinstance(arguments.flags, str):
        arguments.flags = arguments.flags.split()
    compare(arguments.ours.resolve(), arguments.other.resolve(), arguments)


if __name__ == "__main__":
    main()
