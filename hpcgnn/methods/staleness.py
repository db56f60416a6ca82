"""Find out which rows may be an epoch old: those that move little in an epoch, measured, by layer and direction.

Pure functions of sums of squares; who measures them and who acts on the answer is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Site = tuple[int, int]          # layer, purpose
Sums = tuple[float, float, float, float]
MEMORY = 0.8                    # weight of the past in the running sums
DEVIATIONS = 2.0                # of the estimate, within which motion is believed to lie


@dataclass(frozen=True)
class Drift:
    """Remember how far the rows of each exchange moved: running sums over all ranks.

    Attributes
    ----------
    sums : dict      site -> squares of the rows' values, of their change over one epoch, and over two, and the variance
                     of the difference of the last two

    What changes from one epoch to the next is motion and noise: dropout draws another mask. Noise does no harm, since
    rows of the epoch before have the same mean with another mask; only motion makes them wrong. Over two epochs motion
    has gone twice as far and noise has not, so if an epoch's change is m + n in square, that of two is 4 m + n, and a
    third of their difference is m. Where noise is large that difference of two large sums says little, and may be
    negative; its variance, from how it varies over rows, says how little.
    """

    sums: dict[Site, Sums] = field(default_factory=dict)

    def observe(self, sums: Mapping[Site, Sums]) -> Drift:
        """Return the state after one more epoch, whose `sums` are over all ranks (`Movement.sums`). All of a site's are
        0 where its rows were not compared yet.
        """
        after = dict(self.sums)
        for site, now in sums.items():
            if any(now):
                after[site] = _joined(after[site], now) if site in after else now
        return Drift(after)

    def of(self, site: Site) -> float:
        """Return the motion of a site's rows in one epoch as a share of the rows, both in the 2-norm; infinite before
        it is known.
        """
        return self._share(site, 0.0)

    def at_most(self, site: Site) -> float:
        """Return the motion that a site's rows may have: the estimate and DEVIATIONS standard errors of it."""
        return self._share(site, DEVIATIONS)

    def _share(self, site: Site, deviations: float) -> float:
        if site not in self.sums:
            return math.inf
        squares, once, twice, variance = self.sums[site]
        motion = max(0.0, twice - once + deviations * math.sqrt(variance)) / 3
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


def _joined(before: Sums, now: Sums) -> Sums:
    """Return running means; the variance is that of a mean, of epochs that err independently."""
    means = (MEMORY * old + (1 - MEMORY) * new for old, new in zip(before[:-1], now[:-1], strict=True))
    variance = MEMORY ** 2 * before[-1] + (1 - MEMORY) ** 2 * now[-1]
    return (*means, variance)
