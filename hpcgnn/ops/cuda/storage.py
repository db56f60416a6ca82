"""This module chooses kernels for a storage type: the suffix of their names, and how many columns a load may take."""

from __future__ import annotations

import torch

SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def alignment(*rows: torch.Tensor | None) -> int:
    """Elements that one load may take at once wherever it begins: the largest power of two that every given matrix's
    address and number of columns are a multiple of, at most 16 bytes.
    """
    elements = 16
    for matrix in rows:
        if matrix is not None:
            size = matrix.itemsize
            multiple = 16 | matrix.shape[1] * size | matrix.data_ptr()
            elements = min(elements, (multiple & -multiple) // size)
    return elements
