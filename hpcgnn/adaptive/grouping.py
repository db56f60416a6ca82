"""Messages of one pair of ranks in groups that share a width: how rows are put into them and widths taken out again.

Only arrays of one pair; what a group's width should be is the solvers' business.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.errors import KernelError


def group_rows(beta: np.ndarray, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort the rows of one pair by beta and cut them into groups; the last one may be smaller.

    Parameters
    ----------
    beta : (num_rows,) float64     the variance that one bit would give each row's message

    Returns
    -------
    order : (num_rows,) int64                rows in ascending beta, equal ones in their order
    group_start : (num_groups + 1,) int64    group g has the rows order[group_start[g]:group_start[g + 1]]

    Raises
    ------
    KernelError      a beta is negative, infinite or NaN

    Reference: AdaQP, section 4.2.
    """
    if not (np.isfinite(beta).all() and (beta >= 0).all()):
        raise KernelError("a row's beta is negative or not finite; expected the variance of finite messages, "
                          "so look for a loss that diverges")
    num_groups = -(-len(beta) // group_size)
    starts = np.minimum(np.arange(num_groups + 1, dtype=np.int64) * group_size, len(beta))
    return np.argsort(beta, kind="stable"), starts


def group_sums(beta: np.ndarray, order: np.ndarray, group_start: np.ndarray) -> np.ndarray:
    """Return (num_groups,) float64, the sum of beta over each group's rows."""
    if len(group_start) == 1:
        return np.zeros(0)
    return np.add.reduceat(beta[order].astype(np.float64), group_start[:-1])


def row_widths(widths: np.ndarray, order: np.ndarray, group_start: np.ndarray) -> np.ndarray:
    """Return (num_rows,) uint8, each row's width from (num_groups,) uint8 of its groups."""
    rows = np.empty(len(order), np.uint8)
    rows[order] = np.repeat(widths, np.diff(group_start))
    return rows
