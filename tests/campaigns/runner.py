"""Runs a campaign: tries its cases one after another, remembers which, and writes down those that failed.

A case is a number; case k of a seed is the same case every time. What a case does is known to each campaign's own file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parents[2]
NOTE_SECONDS = 10.0       # between two lines that say how far a campaign is
SHOWN_FAILURES = 20       # in full; all are in the JSON file


class Campaign(Protocol):
    """What a campaign's file makes of a scratch folder and a seed.

    Attributes
    ----------
    cases : range          numbers of the cases; those of a corpus are negative and come first
    """

    cases: range

    def try_case(self, number: int) -> str | None:
        """Try one case: None where hpcgnn held, else one line that says what it did."""

    def close(self) -> None:
        """End the processes that the campaign has started."""


@dataclass(frozen=True)
class Limits:
    """When a campaign ends: after so many seconds or cases, or with this one case."""

    seconds: float | None = None
    num_cases: int | None = None
    case: int | None = None


@dataclass
class Result:
    """What became of a campaign so far; `next_case` is where --resume goes on."""

    campaign: str
    seed: int
    commit: str
    tried: int = 0
    failures: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    next_case: int | None = None

    @property
    def failed(self) -> int:
        return len(self.failures)

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "failed": self.failed, "seconds": round(self.seconds, 1)}, indent=1) + "\n"


class Stopped(Exception):
    """A signal asked the campaign to end; what it has tried is kept."""


def commit_name() -> str:
    """The commit that is tried, with a + where files differ from it."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "hpcgnn", "ext") else "")


def state_file(folder: Path, name: str) -> Path:
    """Where a campaign's result lies, also while it runs."""
    return folder / f"{name}.json"


def read_result(folder: Path, name: str, seed: int) -> Result | None:
    """The result of an earlier part of the same campaign; None where there is none, or of another seed or commit."""
    try:
        kept = json.loads(state_file(folder, name).read_text())
    except (OSError, ValueError):
        return None
    if (kept["seed"], kept["commit"]) != (seed, commit_name()):
        return None
    kept.pop("failed")
    return Result(**kept)


def write_result(folder: Path, result: Result) -> None:
    """Replace the JSON file of a campaign."""
    path = state_file(folder, result.campaign)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(result.as_json())
    os.replace(temporary, path)


def run_campaign(campaign: Campaign, result: Result, folder: Path, limits: Limits) -> Result:
    """Try cases until the limits or the end are reached; the result is written every few seconds.

    A signal ends it in order, so that --resume goes on.
    """
    started, noted, before = time.monotonic(), time.monotonic(), result.seconds
    try:
        with _stopping():
            for number in _numbers(campaign.cases, result, limits):
                if limits.seconds is not None and time.monotonic() - started >= limits.seconds:
                    break
                _note_case(result, number, campaign.try_case(number), getattr(campaign, "tries_of", _one)(number))
                result.seconds = before + time.monotonic() - started
                if time.monotonic() - noted >= NOTE_SECONDS:
                    noted = time.monotonic()
                    print(progress_line(result), flush=True)
                    write_result(folder, result)
    finally:
        campaign.close()
        write_result(folder, result)
    return result


def _numbers(cases: range, result: Result, limits: Limits) -> Iterator[int]:
    if limits.case is not None:
        yield limits.case
        return
    first = cases.start if result.next_case is None else result.next_case
    last = cases.stop if limits.num_cases is None else min(cases.stop, first + limits.num_cases)
    yield from range(first, last)


def _one(number: int) -> int:
    """A case is one try where its campaign says nothing else by `tries_of(number)`."""
    return 1


def _note_case(result: Result, number: int, fault: str | None, tries: int) -> None:
    result.tried += tries
    result.next_case = number + 1
    if fault is None:
        return
    result.failures.append({"case": number, "what": fault})
    if result.failed <= SHOWN_FAILURES:
        print(f"{result.campaign}: case {number} failed: {fault}\n    again: jobs/campaign.sh {result.campaign} "
              f"--seed {result.seed} --case {number}", flush=True)
    elif result.failed == SHOWN_FAILURES + 1:
        print(f"{result.campaign}: more failures are in {result.campaign}.json only", flush=True)


class _stopping:
    """Turns SIGTERM and SIGINT into Stopped, between cases or in one."""

    def __enter__(self) -> None:
        self._previous = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame) -> None:
        raise Stopped


def progress_line(result: Result) -> str:
    """How far a campaign is."""
    return f"{result.campaign}: {result.tried:,} tried, {result.failed:,} failed, {result.seconds:.0f} s"


def table(results: list[Result]) -> str:
    """One line a campaign."""
    lines = [f"{'campaign':<12} {'tried':>9} {'failed':>7} {'seconds':>8}"]
    lines += [f"{one.campaign:<12} {one.tried:>9,} {one.failed:>7,} {one.seconds:>8.0f}" for one in results]
    return "\n".join(lines)
