"""LinkModel: seconds of a rank's messages to its peers, theta per byte plus gamma per message; fitted or fixed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

TINY_SECONDS = 1e-9


@dataclass(frozen=True)
class LinkModel:
    """Seconds of a message from a rank to each peer: theta per byte plus gamma. Reference: AdaQP, Eq. (10)."""

    theta: np.ndarray         # (num_peers,) float64, seconds per byte, not negative
    gamma: np.ndarray         # (num_peers,) float64, seconds per message, not negative
    is_measured: bool = True  # False for links known in advance: then no decision may depend on a clock


def fixed_links(num_peers: int, bytes_per_second: float = 1e9, latency_seconds: float = 2e-5) -> LinkModel:
    """Return equal links known in advance, for runs that must not depend on a clock."""
    return LinkModel(np.full(num_peers, 1 / bytes_per_second), np.full(num_peers, latency_seconds), is_measured=False)


def fit(num_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Non-negative theta and gamma of one pair from timed messages, (samples,) int64 bytes and float64 seconds."""
    from scipy.optimize import nnls  # the import takes a fifth of a second, only when links are measured

    sizes, which = np.unique(num_bytes, return_inverse=True)
    # Repetitions of one size count as their median, so that a slow outlier does not matter.
    typical = np.array([np.median(seconds[which == place]) for place in range(len(sizes))])
    typical = np.maximum(typical, TINY_SECONDS)
    if len(sizes) == 0 or sizes[-1] == 0:
        return 0.0, float(typical[0]) if len(sizes) else 0.0
    if len(sizes) == 1:
        return float(typical[0] / sizes[0]), 0.0
    largest = float(sizes[-1])
    # Errors are relative to the seconds, so small messages, which show gamma, count as much as large ones.
    columns = np.stack([sizes / largest, np.ones(len(sizes))], axis=1) / typical[:, None]
    # Both columns scale with the seconds, so one factor brings both near 1.
    scale = np.median(typical)
    (per_largest, once), _ = nnls(columns * scale, np.ones(len(sizes)))
    return float(per_largest * scale / largest), float(once * scale)


def fit_links(peers: Sequence[int], near: Collection[int], source: np.ndarray, num_bytes: np.ndarray,
              seconds: np.ndarray) -> np.ndarray:
    """Fit the cost of messages from each peer, (num_peers, 2) float64 theta and gamma.

    Per message, `source` is its sender; `seconds` are best taken while all pairs of a round are busy. `near` are
    the ranks of this rank's node. An untimed peer gets the median of the timed ranks on its side, near or not near; if
    none was timed there, of all timed ranks.
    """
    fitted = {int(one): fit(num_bytes[source == one], seconds[source == one]) for one in np.unique(source)}
    if not fitted:
        fixed = fixed_links(len(peers))
        return np.stack([fixed.theta, fixed.gamma], axis=1)
    of_side = [[cost for one, cost in fitted.items() if (one in near) == is_near] for is_near in (False, True)]
    typical = [np.median(costs or list(fitted.values()), axis=0) for costs in of_side]
    return np.array([fitted.get(peer, typical[peer in near]) for peer in peers])


def pair_round(num_ranks: int) -> np.ndarray:
    """Return (num_ranks ** 2,) int64, the ring round of pair source * num_ranks + destination; 0 within a rank."""
    rank = np.arange(num_ranks)
    return ((rank[None, :] - rank[:, None]) % num_ranks).ravel()
