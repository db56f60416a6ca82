"""The bit-widths that a row of a message may have, and the errors of rotated codes at each. A new width begins here;
the kernels for host and device follow.
"""

import math
from typing import Any

BIT_WIDTHS = (1, 2, 4, 8, 16, 32)      # 16 is bfloat16, 32 float32
PACKED_WIDTHS = BIT_WIDTHS[:4]         # widths of rows that are codes with parameters

# The even step between the codes of a rotated row, in units of its columns' root mean square: it leaves the least
# squared error if columns are normally distributed, as they nearly are after a rotation (Max, 1960).
GAUSSIAN_STEP = {2: 0.9957, 4: 0.3352, 8: 0.0308}
# Squared error of such rows as a share of their squared norm, if rounded by draws; rounding to the nearest code leaves
# e / (1 + e).
ROTATED_ERROR = {1: math.pi / 2 - 1, 2: 0.1188 / (1 - 0.1188), 4: 0.01154 / (1 - 0.01154), 8: 8.77e-5}
# Norm of such rows in units of step * sqrt(columns), if rounded by draws.
ROTATED_NORM = {1: 1 / math.sqrt(2 * math.pi), **{bits: 1 / (step * (1 + ROTATED_ERROR[bits]))
                                                  for bits, step in GAUSSIAN_STEP.items()}}


def rows_sent(share: float, num_rows: Any) -> Any:
    """Number of rows of a message that travel, a share of `num_rows` rounded up; of a number or of an array."""
    return -((1e-6 - share * num_rows) // 1)      # 0.1 * 30 is a little more than 3
