"""Finding: one thing that was seen of this machine, and what to change. Nothing is looked at here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Hold what was seen.

    Attributes
    ----------
    subject : str              MPI, cores, Slurm, …
    seen : str                 a phrase
    remedy : str               what to change, one sentence; "" where all is well
    is_broken : bool           hpcgnn can't train on several ranks, or at all, before that is changed
    """

    subject: str
    seen: str
    remedy: str = ""
    is_broken: bool = False


def lines_of(findings: Iterable[Finding]) -> Iterator[str]:
    """Write a line a finding, its subject first, and below it what to change."""
    findings = list(findings)
    width = max((len(one.subject) for one in findings), default=0)
    for one in findings:
        yield f"{one.subject:{width}}  {one.seen}"
        if one.remedy:
            yield f"{'':{width}}  {'MUST CHANGE' if one.is_broken else 'to change'}: {one.remedy}"
