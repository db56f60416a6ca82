"""Drift: decides by layer and direction which rows may be an epoch old, because they move little per epoch.

A row changes between epochs by motion and by noise, since dropout draws another mask. Only motion makes an old row
wrong. Over two epochs motion goes twice as far and noise does not grow: if the squared change is m + n over one epoch,
it is 4 m + n over two, and a third of the difference is m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Site = tuple[int, int]          # layer, purpose
Sums = tuple[float, float, float, float]
MEMORY = 0.8                    # weight of the past in the running sums
DEVIATIONS = 2.0                # standard deviations from the estimate up to which motion is believed


@dataclass(frozen=True)
class Drift:
    """Running sums of how far the rows of each exchange moved, over all ranks."""

    # site -> squared values, squared change over one epoch, over two, and the variance of the difference of the last
    # two, which measures the uncertainty of the estimated motion
    sums: dict[Site, Sums] = field(default_factory=dict)

    def observe(self, sums: Mapping[Site, Sums]) -> Drift:
        """Return the state after one more epoch; a site with all sums 0 had nothing to compare yet."""
        after = dict(self.sums)
        for site, now in sums.items():
            if any(now):
                after[site] = _joined(after[site], now) if site in after else now
        return Drift(after)

    def of(self, site: Site) -> float:
        """Return the motion of a site's rows in one epoch, relative to the rows in the 2-norm; infinity if unknown."""
        return self._share(site, 0.0)

    def at_most(self, site: Site) -> float:
        """Return an upper estimate of the motion: the estimate plus DEVIATIONS standard errors."""
        return self._share(site, DEVIATIONS)

    def changes_less(self, site: Site) -> bool:
        """Whether the change of a site's rows over one epoch, noise included, is smaller than the rows; False if
        unknown.
        """
        squares, once, *_ = self.sums.get(site, (0.0, 0.0))
        return once < squares

    def _share(self, site: Site, deviations: float) -> float:
        if site not in self.sums:
            return math.inf
        squares, once, twice, variance = self.sums[site]
        motion = max(0.0, twice - once + deviations * math.sqrt(variance)) / 3
        if motion == 0:
            return 0.0
        return math.sqrt(motion / squares) if squares else math.inf

    def as_dict(self) -> dict[str, Any]:
        return {f"{layer}-{purpose}": list(sums) for (layer, purpose), sums in self.sums.items()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Drift:
        sums = {}
        for name, values in state.items():
            layer, purpose = map(int, name.split("-"))
            sums[layer, purpose] = tuple(values)
        return cls(sums)


def _joined(before: Sums, now: Sums) -> Sums:
    # Variance of a weighted mean of independent epochs.
    first, second, third = (MEMORY * old + (1 - MEMORY) * new for old, new in zip(before[:-1], now[:-1], strict=True))
    variance = MEMORY ** 2 * before[-1] + (1 - MEMORY) ** 2 * now[-1]
    return first, second, third, variance
