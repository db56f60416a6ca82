"""Widths by node: the importance of a boundary node makes its level, and a level with the base width its width.

Pure functions on arrays, and the settings they need from text.
"""

from __future__ import annotations

import itertools

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.widths import BIT_WIDTHS, PACKED_WIDTHS


def levels(importance: np.ndarray, percentiles: tuple[float, ...]) -> np.ndarray:
    """Return the level of each boundary node: how many of the percentiles its importance has reached.

    Parameters
    ----------
    importance : (num_nodes,) float32     rank of the global in-degree among boundary nodes, in [0, 1]
    percentiles : ascending, in (0, 100)

    Returns
    -------
    levels : (num_nodes,) uint8, 0 .. len(percentiles)

    Reference: SYLVIE, section IV-A.
    """
    thresholds = np.asarray(percentiles, np.float64) / 100
    return np.searchsorted(thresholds.astype(np.float32), importance, side="right").astype(np.uint8)


def width_table(base: int, widths: tuple[int, ...]) -> np.ndarray:
    """Return the width of each level: its own, but never below the base width.

    Returns
    -------
    table : (len(widths),) uint8, so that `table[levels]` are the widths of nodes

    Reference: SYLVIE, section V-A and Fig. 7.
    """
    return np.maximum(np.asarray(widths, np.uint8), np.uint8(base))


def parse_widths(text: str) -> tuple[int, ...]:
    """Return widths of a list with commas; one alone may be any.

    Raises
    ------
    ConfigError      several of which one is not 1, 2, 4 or 8, or they don't ascend; one that no message has
    """
    words = [word.strip() for word in text.split(",")]
    known = {str(width): width for width in (BIT_WIDTHS if len(words) == 1 else PACKED_WIDTHS)}
    widths = tuple(known[word] for word in words if word in known)
    if len(widths) != len(words) or not _ascends(widths):
        raise ConfigError(f"widths is {text!r}; expected some of {', '.join(map(str, PACKED_WIDTHS))} in ascending "
                          f"order, as in 2,4,8, or one of {', '.join(map(str, BIT_WIDTHS))}")
    return widths


def parse_percentiles(text: str, num_levels: int = len(PACKED_WIDTHS)) -> tuple[float, ...]:
    """Return percentiles of a list with commas, one fewer than there are levels.

    Raises
    ------
    ConfigError      one is not a number between 0 and 100, they don't ascend, or there are too many or too few
    """
    try:
        percentiles = tuple(float(word) for word in text.split(",") if text.strip())
    except ValueError:
        percentiles = (float("nan"),)
    if not all(0 < percentile < 100 for percentile in percentiles) or not _ascends(percentiles):
        raise ConfigError(f"percentiles is {text!r}; expected numbers between 0 and 100 in ascending order, "
                          "as in 80,92.5,98")
    if len(percentiles) != num_levels - 1:
        raise ConfigError(f"percentiles is {text!r}, {len(percentiles)} of them; {num_levels} widths need "
                          f"{num_levels - 1}, so change percentiles or widths")
    return percentiles


def _ascends(numbers: tuple[float, ...]) -> bool:
    return all(low < high for low, high in itertools.pairwise(numbers))
