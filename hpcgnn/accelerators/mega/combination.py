"""Cycles of the Combination Engine: 4 tiles of bit-serial C-PEs, each with a slice of a row's columns.

Where rows and weights come from is not known here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.accelerators.mega.rules import Rules


def fed_bits(width: np.ndarray, rules: Rules) -> np.ndarray:
    """Return the bits as which each value of a row is fed, (num_rows,) int64."""
    return np.maximum(width, rules.least_width()).astype(np.int64)


def row_cycles(nonzeros: np.ndarray, width: np.ndarray, combined_dim: int, rules: Rules) -> np.ndarray:
    """Return the cycles from a row to the next one, (num_rows,) int64; the last row needs rules.combination_fill more.

    A tile takes n values at a time, bit after bit, for the m columns of W whose C-PEs it has; the row ends with its
    longest tile and passes again for the next m columns. Assumed: a row without values takes a cycle a pass, in which
    its positions are read; the Weight Reg is filled for the next columns, and the next row is decoded, meanwhile.

    Parameters
    ----------
    nonzeros : (num_rows, 4) integer      values of each tile's slice that are not zero
    width : (num_rows,) integer           bits of a value

    Reference: MEGA, §V-C.
    """
    groups = -(-nonzeros.max(axis=1, initial=0).astype(np.int64) // rules["bse_per_pe"])
    return np.maximum(groups * fed_bits(width, rules), 1) * rules.column_passes(combined_dim)
