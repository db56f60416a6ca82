"""Multiplies a 3-bit by a 2-bit matrix, plane of bits by plane of bits: python examples/bit_tensor.py"""

import torch

from hpcgnn.lowbit import bit_mm_to_bit, bit_mm_to_float, bit_mm_to_int, to_bit

features, weight = torch.rand(300, 128), torch.randn(128, 128)
left, right = to_bit(features, 3), to_bit(weight, 2, packing="row")
sums = bit_mm_to_int(left, right)                                     # codes times codes, exact
assert torch.equal(sums, left.to_codes().int() @ right.to_codes().int())
values = bit_mm_to_float(left, right, relu=True)                      # what the codes stand for
assert torch.allclose(values, torch.relu(left.to_val() @ right.to_val()), atol=1e-3)
codes = bit_mm_to_bit(left, right, 4, low=0.0, high=8.0, relu=True)   # what the next layer takes
print(f"{features.nbytes} bytes of features became {left.nbytes}, and their product {codes.nbytes} instead of "
      f"{values.nbytes}")
