"""Crew: the ranks that make shards together, as the writer sees them; one process is a crew of its own.

No message is sent here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Crew(Protocol):
    """Several ranks at the same work. Every method is collective."""

    rank: int
    size: int

    def together(self, step: Callable[[], Result]) -> Result:
        """Collective: run a step that each rank does alone; an error of any rank is raised on all."""

    def share(self, value: Any) -> Any:
        """Collective: return what rank 0 has."""

    def gather(self, value: Any) -> list:
        """Collective: return what all ranks have, by rank."""


class Alone:
    """The crew of one process."""

    rank, size = 0, 1

    def together(self, step: Callable[[], Result]) -> Result:
        """Run the step."""
        return step()

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def gather(self, value: Any) -> list:
        """Return the value in a list."""
        return [value]


ALONE = Alone()


def by_leader(crew: Crew, step: Callable[[], Result]) -> Result:
    """Collective: run a step on rank 0 and return its result on all."""
    return crew.share(crew.together(step if crew.rank == 0 else lambda: None))
