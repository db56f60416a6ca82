"""LinkModel: what a message costs in seconds between each pair of ranks, fitted from timed rounds or fixed.

Numbers in, numbers out; timing messages is the exchange's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TINY_SECONDS = 1e-9


@dataclass(frozen=True)
class LinkModel:
    """Seconds of a message from one rank to another: theta a byte and gamma once.

    A directed pair has the index source * num_ranks + destination; a rank's pair with itself is never asked for.

    Attributes
    ----------
    num_ranks : int
    theta : (num_ranks ** 2,) float64     seconds a byte, not negative
    gamma : (num_ranks ** 2,) float64     seconds a message, not negative
    is_measured : bool                    False where they are known in advance: then no decision may ask a clock

    Reference: AdaQP, Eq. (10).
    """

    num_ranks: int
    theta: np.ndarray
    gamma: np.ndarray
    is_measured: bool = True


def fixed_links(num_ranks: int, bytes_per_second: float = 1e9, latency_seconds: float = 2e-5) -> LinkModel:
    """Return links that are all alike and known in advance, for runs that must not depend on a clock."""
    num_pairs = num_ranks * num_ranks
    return LinkModel(num_ranks, np.full(num_pairs, 1 / bytes_per_second), np.full(num_pairs, latency_seconds),
                     is_measured=False)


def fit(num_bytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Return non-negative theta and gamma of one pair from timed messages.

    Repetitions of one size count as their median, so a stray slow one has no say. Errors are weighed relative to the
    seconds, so that small messages, which show gamma, count as much as large ones.

    Parameters
    ----------
    num_bytes : (samples,) int64
    seconds : (samples,) float64

    Returns
    -------
    theta, gamma : float     seconds a byte, seconds; with a single size all is put on theta
    """
    from scipy.optimize import nnls  # a fifth of a second, for which only a measurement waits

    sizes, which = np.unique(num_bytes, return_inverse=True)
    typical = np.array([np.median(seconds[which == place]) for place in range(len(sizes))])
    typical = np.maximum(typical, TINY_SECONDS)
    if len(sizes) == 0 or sizes[-1] == 0:
        return 0.0, float(typical[0]) if len(sizes) else 0.0
    if len(sizes) == 1:
        return float(typical[0] / sizes[0]), 0.0
    largest = float(sizes[-1])
    columns = np.stack([sizes / largest, np.ones(len(sizes))], axis=1) / typical[:, None]
    # The columns differ by the seconds' magnitude only together, so one factor brings both near 1.
    scale = np.median(typical)
    (per_largest, once), _ = nnls(columns * scale, np.ones(len(sizes)))
    return float(per_largest * scale / largest), float(once * scale)


def fit_links(num_ranks: int, pair: np.ndarray, num_bytes: np.ndarray, seconds: np.ndarray) -> LinkModel:
    """Return the model of all pairs from the timed messages of some; the others get the median of those.

    Parameters
    ----------
    pair : (samples,) int64          source * num_ranks + destination
    num_bytes : (samples,) int64
    seconds : (samples,) float64     best taken while all pairs of a round are busy
    """
    measured = np.unique(pair)
    if len(measured) == 0:
        return fixed_links(num_ranks)
    fitted = np.array([fit(num_bytes[pair == one], seconds[pair == one]) for one in measured])
    table = np.tile(np.median(fitted, axis=0), (num_ranks * num_ranks, 1))
    table[measured] = fitted
    return LinkModel(num_ranks, table[:, 0].copy(), table[:, 1].copy())


def pair_round(num_ranks: int) -> np.ndarray:
    """Return (num_ranks ** 2,) int64, the ring round of each pair: destination - source, 0 for a rank with itself."""
    rank = np.arange(num_ranks)
    return ((rank[None, :] - rank[:, None]) % num_ranks).ravel()
