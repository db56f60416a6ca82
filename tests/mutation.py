"""What a planted fault is, and which tests must catch it. Only data: nothing here runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tests:
    """Arguments of pytest, files below tests/ first, and the ranks that run them."""

    __test__ = False

    arguments: str
    ranks: int = 1


@dataclass(frozen=True)
class Mutation:
    """A fault in a file below hpcgnn/: `old`, which stands there exactly once, becomes `new`."""

    file: str
    fault: str
    old: str
    new: str
    caught_by: Tests
