"""Products of coded rows and weights, exact, by whatever way the machine is fastest. Scales are not known here."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.combination import combine
from hpcgnn.quantized.combination import combine_packages
from hpcgnn.quantized.integer_model import IntegerMap
from hpcgnn.quantized.package import PackagedRows


def product_of(codes: np.ndarray, code_bits: int, weights: IntegerMap) -> np.ndarray:
    """codes @ weights.codes.T, (n, out_dim) int32.

    Parameters
    ----------
    codes : (n, in_dim) int8 or uint8, contiguous
    code_bits : int                  that hold every code, a sign included

    Raises
    ------
    KernelError      widths that don't fit, or so many columns that a sum could pass 32 bits
    """
    return combine(torch.from_numpy(codes), torch.from_numpy(weights.codes), code_bits=code_bits,
                   weight_bits=weights.scale.bit_width).numpy()


def package_product(packed: PackagedRows, first: int, stop: int, weights: IntegerMap) -> np.ndarray:
    """Rows first .. stop - 1 of packages times weights.codes.T, (stop - first, out_dim) int32.

    Raises
    ------
    KernelError      a package is malformed, or so many columns that a sum could pass 32 bits
    """
    return combine_packages(packed, weights.codes, first, stop, weight_bits=weights.scale.bit_width)
