"""Submits the job scripts to the Slurm of SLURM_CONF, disturbs them at seeded moments and checks what they leave.

Called by run.sh, which starts that Slurm. Runs of two scenarios are compared with one that nothing disturbed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs_on_slurm import ROOT, Job, Outcome, Study, urgent_job

# The time between the first line of an undisturbed job and its end, of which moments are drawn, is measured first.
SCENARIOS: dict[str, Callable[[Job, float], None]] = {}


def scenario(function: Callable[[Job, float], None]) -> Callable[[Job, float], None]:
    """Register a way to disturb a job under its function's name."""
    SCENARIOS[function.__name__] = function
    return function


@scenario
def usr1(job: Job, moment: float) -> None:
    """USR1 to the script, as Slurm sends it before the time limit."""
    job.wait_for_first_line()
    time.sleep(moment)
    job.signal("USR1")


@scenario
def preempt(job: Job, moment: float) -> None:
    """A job of a higher partition takes the nodes; Slurm sends TERM to the steps, and waits 10 s."""
    job.wait_for_first_line()
    time.sleep(moment)
    urgent_job()


@scenario
def limit(job: Job, moment: float) -> None:
    """The job's time limit of a minute, announced by USR1 when Slurm next looks, up to 30 s after the start."""
    job.wait_for_first_line()


@scenario
def requeue(job: Job, moment: float) -> None:
    """Slurm queues the job again without asking it, as for a failed node: TERM, and KILL a little later."""
    job.wait_for_first_line()
    time.sleep(moment)
    job.requeue()


def plan(names: list[str], repeat: int, seed: int) -> list[tuple[str, str, int, float]]:
    """(scenario, kind of job, number, moment as a share of an undisturbed job) of all runs.

    Shares cover 0 to 0.85: a job that runs faster than the measured one would have ended before.
    """
    runs = []
    for number in range(repeat):
        for name in names:
            share = 0.85 * (number + random.Random(f"{seed} {name} {number}").random()) / repeat
            runs.append((*name.split("-"), number, 0.0 if number == 0 else share))
    return runs


def table(outcomes: list[Outcome]) -> str:
    """Tried, failed, and those that were queued again, of each scenario, and what the failures were."""
    lines = [f"{'scenario':<22}{'tried':>6}{'failed':>8}{'requeued':>10}{'requeues':>10}{'seconds':>9}"]
    for name in dict.fromkeys(outcome.name for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.name == name]
        lines.append(f"{name:<22}{len(mine):>6}{sum(bool(outcome.faults) for outcome in mine):>8}"
                     f"{sum(outcome.restarts > 0 for outcome in mine):>10}"
                     f"{sum(outcome.restarts for outcome in mine):>10}{sum(outcome.seconds for outcome in mine):>9.0f}")
    lines += [f"{outcome.name} {outcome.number} at {outcome.moment:.2f} s: {'; '.join(outcome.faults)}"
              for outcome in outcomes if outcome.faults]
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for; the exit status is 1 where a run failed."""
    every = [f"{name}-{kind}" for name in ("usr1", "preempt", "limit", "requeue") for kind in ("srun", "mpirun")]
    every.append("requeue-preprocess")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "build/slurm")
    parser.add_argument("--only", default=",".join(every), help="scenarios, of " + ", ".join(every))
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    study = Study(options.out.resolve())
    runs = [run for run in plan(options.only.split(","), options.repeat, options.seed)
            if not study.has(f"{run[0]}-{run[1]}", run[2])]
    for kind in dict.fromkeys(run[1] for run in runs):
        study.run_undisturbed(kind)

    def attempt(run: tuple[str, str, int, float]) -> None:
        if time.monotonic() < until:
            outcome = study.run(*run, SCENARIOS[run[0]])
            print(f"{outcome.name} {outcome.number} at {outcome.moment:.2f} s: {outcome.restarts} requeues, "
                  f"{outcome.seconds:.0f} s, {'; '.join(outcome.faults) or 'as undisturbed'}", flush=True)

    # A preemption takes all nodes, so it would disturb another job too; the others run two at a time.
    alone = [run for run in runs if run[0] == "preempt"]
    for workers, batch in ((1, alone), (2, [run for run in runs if run not in alone])):
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(attempt, batch))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    result = options.out / "slurm.json"
    result.write_text(json.dumps({"commit": commit.stdout.strip(), "seed": options.seed,
                                  "runs": [vars(outcome) for outcome in study.outcomes]}, indent=1) + "\n")
    print(table(study.outcomes), f"all runs: {result}", sep="\n")
    return int(any(outcome.faults for outcome in study.outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
