"""Cycles of the Aggregation Engine: 256 units that multiply-add one source's row into the sums of its destinations.

Where rows, arcs and sums lie is not known here.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.accelerators.mega.rules import Rules


def source_cycles(num_arcs: np.ndarray, aggregated_dim: int, rules: Rules) -> np.ndarray:
    """Return the cycles in which sources are added to the sums of their destinations, of the shape of `num_arcs`.

    Columns lie over the units. Where a row leaves some free, they take further destinations of the same source
    (§V-D: "free units can be assigned to aggregate other nodes"); a row of more columns than units takes several
    cycles an arc. Sources follow each other without a gap; a block ends rules.aggregation_fill cycles later. Assumed:
    no two arcs meet at a bank of the Aggregation Buffer.
    """
    units = rules.units("aggregation_unit")
    if aggregated_dim > units:
        return num_arcs * -(-aggregated_dim // units)
    return -(-num_arcs // (units // aggregated_dim))


def encoder_cycles(num_rows: np.ndarray | int, dim: int, rules: Rules):
    """Return the cycles in which rows are quantized and encoded, 32 values at a time and row by row (§V-D)."""
    return num_rows * -(-dim // rules.units("encoder"))
