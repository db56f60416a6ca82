"""Ranks: the crew of a communicator, for making shards on several ranks. What they make is not known here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hpcgnn.errors import HpcgnnError
from hpcgnn.launch import MPI, together

Result = TypeVar("Result")
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ranks:
    """All ranks of a communicator, as hpcgnn.shards.crew.Crew describes them."""

    comm: MPI.Comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def together(self, step: Callable[[], Result]) -> Result:
        """Collective: run a step on each rank; an error of any is raised on all, as launch.together does."""
        def waiting() -> Result:
            try:
                result = step()
            except HpcgnnError:
                self._wait()
                raise
            self._wait()
            return result

        return together(self.comm, waiting)

    def _wait(self) -> None:
        # Others may work for minutes, and a rank that waits in MPI would take a core from them.
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(POLL_SECONDS)

    def share(self, value: Any) -> Any:
        """Collective: return what rank 0 has."""
        return self.comm.bcast(value)

    def gather(self, value: Any) -> list:
        """Collective: return what all ranks have, by rank."""
        return self.comm.allgather(value)
