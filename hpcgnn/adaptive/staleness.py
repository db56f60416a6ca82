"""Find out which rows may be an epoch old: those that move little in an epoch, measured, by layer and direction.

Pure functions of sums of squares; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Site = tuple[int, int]          # layer, purpose
MEMORY = 0.8                    # weight of the past in the running sums


@dataclass(frozen=True)
class Drift:
    """Remember how far the rows of each exchange moved: running sums over all ranks.

    Attributes
    ----------
    sums : dict      site -> squares of the rows' values, of their change over one epoch, and over two

    What changes from one epoch to the next is motion and noise: dropout draws another mask. Noise does no harm, since
    rows of the epoch before have the same mean with another mask; only motion makes them wrong. Over two epochs motion
    has gone twice as far and noise has not, so if an epoch's change is m + n in square, that of two is 4 m + n, and a
    third of their difference is m.
    """

    sums: dict[Site, tuple[float, float, float]] = field(default_factory=dict)

    def observe(self, sums: Mapping[Site, tuple[float, float, float]]) -> Drift:
        """Return the state after one more epoch, whose `sums` are over all ranks. All of a site's are 0 where its rows
        were not compared yet.
        """
        after = dict(self.sums)
        for site, now in sums.items():
            if any(now):
                before = after.get(site, now)
                after[site] = tuple(MEMORY * old + (1 - MEMORY) * new for old, new in zip(before, now, strict=True))
        return Drift(after)

    def of(self, site: Site) -> float:
        """Return the motion of a site's rows in one epoch as a share of the rows, both in the 2-norm; infinite before
        it is known.
        """
        if site not in self.sums:
            return math.inf
        squares, once, twice = self.sums[site]
        motion = max(0.0, twice - once) / 3
        if motion == 0:
            return 0.0
        return math.sqrt(motion / squares) if squares else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Return the state in plain lists and numbers, for a checkpoint."""
        return {f"{layer}-{purpose}": list(sums) for (layer, purpose), sums in self.sums.items()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Drift:
        """Return the state that `as_dict` wrote."""
        return cls({tuple(map(int, name.split("-"))): tuple(sums) for name, sums in state.items()})
