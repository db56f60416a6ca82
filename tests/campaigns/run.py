"""The command behind jobs/campaign.sh: which campaigns, how long, and where their results go."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaigns.runner import (
    ROOT,
    Limits,
    Result,
    Stopped,
    commit_name,
    progress_line,
    read_result,
    run_campaign,
    state_file,
    table,
)
from fork_server import FOLDER, served

CAMPAIGNS = ("kill", "disk", "corrupt", "reseal", "io", "memory", "adversarial", "soak", "sanitize")
LONGEST_FIRST = ("kill", "disk", "soak", "sanitize")    # cases of one are long, one runs to its end, one builds
AT_ONCE = 3       # kill waits for most of its time


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jobs/campaign.sh", description="Try hpcgnn with faults of one kind.")
    parser.add_argument("name", choices=(*CAMPAIGNS, "all"))
    parser.add_argument("--minutes", type=float, help="end after so many minutes; default: when all cases are tried")
    parser.add_argument("--cases", type=int, help="end after so many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="try this case alone; nothing is written")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "campaigns", help="folder of the results")
    parser.add_argument("--resume", action="store_true", help="go on after the last case that was tried")
    parser.add_argument("--mpi", choices=("openmpi", "mpich", "both"), default="openmpi")
    return parser.parse_args(arguments)


def run_one(given: argparse.Namespace) -> Result:
    """One campaign in this process."""
    kept = read_result(given.out, given.name, given.seed) if given.resume and given.case is None else None
    result = kept or Result(given.name, given.seed, commit_name())
    if given.resume and kept is None:
        print(f"{given.name}: there is nothing to resume of this commit and seed; starting anew", flush=True)
    limits = Limits(None if given.minutes is None else 60 * given.minutes, given.cases, given.case)
    module = importlib.import_module(f"campaigns.{given.name}")
    getattr(module, "prepare", lambda: None)()
    with tempfile.TemporaryDirectory(prefix=f"hpcgnn-{given.name}-") as scratch:
        out = Path(scratch) if given.case is not None else given.out
        out.mkdir(parents=True, exist_ok=True)
        return run_campaign(module.open_campaign(Path(scratch), given.seed, given.mpi), result, out, limits)


def run_all(given: argparse.Namespace, arguments: list[str]) -> list[Result]:
    """Every campaign in a process of its own, some at once; what one of them prints is shown when it has ended."""
    rest = [word for word in arguments if word != "all"]

    def start(name: str) -> Result:
        started = time.monotonic()
        done = subprocess.run(served(["-m", "campaigns.run", name, *rest]), stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT)
        print(f"\n-- {name}\n{done.stdout}", flush=True)
        found = read_result(given.out, name, given.seed)
        if done.returncode not in (0, 1) or found is None:
            found = found or Result(name, given.seed, commit_name(), seconds=time.monotonic() - started)
            found.failures.append({"case": None, "what": f"the campaign itself ended with {done.returncode}"})
        return found

    for name in CAMPAIGNS:
        if not given.resume:
            state_file(given.out, name).unlink(missing_ok=True)
    order = sorted(CAMPAIGNS, key=lambda name: name not in LONGEST_FIRST)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(order, pool.map(start, order), strict=True))
    return [found[name] for name in CAMPAIGNS]


def main(arguments: list[str]) -> int:
    """Run, print the table, and return 1 if a case failed."""
    given = parse(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="hpcgnn-fork-") as servers:
            # Commands that a campaign starts from are forks of a process that has torch loaded.
            os.environ.setdefault(FOLDER, servers)
            results = run_all(given, arguments) if given.name == "all" else [run_one(given)]
    except Stopped:
        print(f"{given.name}: stopped; the same command with --resume goes on", flush=True)
        return 130
    if len(results) == 1:
        print(progress_line(results[0]), flush=True)
    print(table(results), flush=True)
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
