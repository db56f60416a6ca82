"""Combination of rows that are stored as packages: read in place, value by value, and never expanded to a matrix.

What codes and sums stand for is not known here.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.ops.bit_gemm import check_bit_width
from hpcgnn.ops.combination import check_sums, check_weight
from hpcgnn.ops.dispatch import backend_of
from hpcgnn.quantized.package import MAX_BIT_WIDTH, PackagedRows


def combine_packages(packages: PackagedRows, weight_codes: np.ndarray, first: int = 0, last: int | None = None, *,
                     weight_bits: int = 8, is_serial: bool = False) -> np.ndarray:
    """Return rows [first, last) of the codes times weight_codes.T; codes that are zero cost no product.

    Parameters
    ----------
    packages : PackagedRows of dim columns
    weight_codes : (num_outputs, dim) int8
    weight_bits : int, 1 to 8       that hold every weight, a sign included
    is_serial : bool                take codes one bit at a time instead of whole; for comparison

    Returns
    -------
    (last - first, num_outputs) int32

    Raises
    ------
    KernelError      the packages of these rows are malformed; weights of another type, shape or width; or sums that
                     could pass 2^31 - 1, from dim and the bits

    Reference: MEGA, section V-C: decoder, weights indexed by the bitmap, row product.
    """
    weight = torch.from_numpy(np.ascontiguousarray(weight_codes))
    check_weight(weight, packages.dim)
    check_bit_width(weight_bits)
    check_sums(packages.dim, MAX_BIT_WIDTH, weight_bits, packages.format.is_signed)
    first, last = packages.range_of(first, last)
    kernels = backend_of("combination", weight)
    out, fault, row = kernels.combine_stream(packages.source, first, last, weight, weight_bits, is_serial)
    packages.refuse(fault, row)
    return out.numpy()
