"""Add up the JUnit files that jobs/test.sh collected: FOLDER/<run>-<ranks>/rank-<rank>.xml.

A test of a parallel run counts once, by its worst outcome over the ranks; ranks that left no file count as one failure.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

OUTCOMES = ("skipped", "passed", "failed")   # from best to worst
MOST_SHOWN, LEAST_SHOWN = 6, 5.0             # files of a run by their seconds, and the seconds from which one is shown


def read_outcomes(path: Path) -> dict[str, str]:
    """Outcome by test id of one rank's JUnit file."""
    outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


def merge_ranks(run: Path) -> dict[str, str]:
    """Worst outcome over the ranks of one run, by test id."""
    merged, silent = {}, []
    for rank in range(int(run.name.rpartition("-")[2])):
        path = run / f"rank-{rank}.xml"
        if not path.exists():
            silent.append(str(rank))
            continue
        for test, outcome in read_outcomes(path).items():
            merged[test] = max(merged.get(test, outcome), outcome, key=OUTCOMES.index)
    if silent:
        merged[f"rank {', '.join(silent)} ended without a result"] = "failed"
    return merged


def slowest_files(run: Path) -> list[tuple[str, float]]:
    """The files of tests that took longest, and their seconds on the rank where they took longest."""
    seconds = Counter()
    for path in run.glob("rank-*.xml"):
        on_rank = Counter()
        for case in ElementTree.parse(path).iter("testcase"):
            on_rank[case.get("classname")] += float(case.get("time", 0))
        seconds |= on_rank
    return [(name, taken) for name, taken in seconds.most_common(MOST_SHOWN) if taken >= LEAST_SHOWN]


def main(folder: Path) -> int:
    """Print each run's counts, failures and slowest files, then the total alone on the last line; return 1 when any
    failed or none ran.

    A total of no test at all is a failure too: a wrong -k must not look like success.
    """
    total = Counter()
    for run in sorted(folder.iterdir()):
        outcomes = merge_ranks(run)
        counts = Counter(outcomes.values())
        total += counts
        print(f"{run.name:<12} " + ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped")))
        for test in sorted(test for test, outcome in outcomes.items() if outcome == "failed"):
            print(f"    failed: {test}")
        for name, taken in slowest_files(run):
            print(f"    {taken:4.0f} s: {name}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return int(total["failed"] > 0 or not total)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
