"""Multiplies bag-of-words rows with 4-bit weights, without their zeros: python examples/combination.py"""

import numpy as np
import torch

from hpcgnn.lowbit.package import encode
from hpcgnn.lowbit.package_features import combine_packages
from hpcgnn.ops.combination import combine

rng = np.random.default_rng(0)
codes = (rng.random((2708, 1433)) < 0.0127).astype(np.uint8)
weight = rng.integers(-8, 8, (64, 1433)).astype(np.int8)
sums = combine(torch.from_numpy(codes), torch.from_numpy(weight), code_bits=1, weight_bits=4)
for way in ("dense", "bits", "sparse"):                # "auto", above, takes the fastest; all give the same integers
    assert torch.equal(combine(torch.from_numpy(codes), torch.from_numpy(weight), way=way), sums)
packages = encode(codes, np.ones(len(codes), int))     # 1 bit a row; multiplied as they are read
assert np.array_equal(combine_packages(packages, weight, weight_bits=4), sums)
print(f"{len(sums)} rows of {codes.shape[1]} codes became {sums.shape[1]} exact sums each")
