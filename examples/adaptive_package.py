"""Stores rows of 1 to 8 bits as Adaptive-Package, and reads some of them: python examples/adaptive_package.py"""

import numpy as np

from hpcgnn.lowbit.formats import sizes
from hpcgnn.lowbit.package import encode

rng = np.random.default_rng(0)
bit_width = np.sort(rng.choice([1, 2, 3, 4], 2000, p=[0.1, 0.5, 0.3, 0.1]))         # as nodes sorted by in-degree have
codes = rng.integers(0, 2 ** bit_width[:, None], (2000, 256)) * (rng.random((2000, 256)) < 0.5)
packages = encode(codes.astype(np.uint8), bit_width)
assert np.array_equal(packages.codes(), codes)                                      # all rows, in order
assert np.array_equal(packages.chosen(np.array([1500, 3])), codes[[1500, 3]])       # any row, through the index
print(", ".join(f"{name} {size.bits / 8e3:.0f} kB" for name, size in sizes(packages).items()))
