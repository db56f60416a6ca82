"""Widths by node: importance decides a boundary node's level; level and base width decide its width.

With percentiles 0.85, 0.95 and 0.99, the most important 1 % of the boundary nodes have level 3: at base width 1 their
rows travel at 8 bits, and rows of level 0 at 1 bit (SYLVIE, section IV-A).
"""

from __future__ import annotations

import itertools

import numpy as np

from hpcgnn.errors import ConfigError
from hpcgnn.widths import BIT_WIDTHS, PACKED_WIDTHS


def levels(importance: np.ndarray, percentiles: tuple[float, ...]) -> np.ndarray:
    """Level of each boundary node, (num_nodes,) uint8: how many percentiles its importance reaches.

    `importance`, (num_nodes,) float32, is the rank of the global in-degree among boundary nodes, in [0, 1];
    `percentiles` ascend. Reference: SYLVIE, section IV-A.
    """
    thresholds = np.asarray(percentiles, np.float64) / 100
    return np.searchsorted(thresholds.astype(np.float32), importance, side="right").astype(np.uint8)


def width_table(base: int, widths: tuple[int, ...]) -> np.ndarray:
    """Width of each level, (len(widths),) uint8, at least `base`. Reference: SYLVIE, section V-A and Fig. 7."""
    return np.maximum(np.asarray(widths, np.uint8), np.uint8(base))


def parse_widths(text: str) -> tuple[int, ...]:
    """Return the widths of a comma-separated list: ascending ones of 1, 2, 4, 8, or any single one."""
    words = [word.strip() for word in text.split(",")]
    known = {str(width): width for width in (BIT_WIDTHS if len(words) == 1 else PACKED_WIDTHS)}
    widths = tuple(known[word] for word in words if word in known)
    if len(widths) != len(words) or not _ascends(widths):
        raise ConfigError(f"widths is {text!r}; expected some of {', '.join(map(str, PACKED_WIDTHS))} in ascending "
                          f"order, as in 2,4,8, or one of {', '.join(map(str, BIT_WIDTHS))}")
    return widths


def parse_percentiles(text: str, num_levels: int = len(PACKED_WIDTHS)) -> tuple[float, ...]:
    """Return the ascending percentiles of a comma-separated list, one fewer than there are levels; else ConfigError."""
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
