"""Device copies of the immutable arrays that plans and graphs hold, made once and kept while the array lives.

Tensors that change are never copied here.
"""

from __future__ import annotations

import warnings
import weakref

import numpy as np
import torch

from hpcgnn.errors import KernelError

# torch computes little on wide unsigned integers; kernels read their bits through signed ones.
SAME_BITS = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32, np.dtype(np.uint64): np.int64,
             np.dtype(bool): np.uint8}

_copies: dict[tuple[int, torch.device], torch.Tensor] = {}


def on_device(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """The array on the device of `like`: a copy that is made once, or the same memory on the CPU.

    Parameters
    ----------
    array : NumPy, contiguous, never written again; wide unsigned integers arrive as the signed ones of their bits
    like : torch.Tensor

    Raises
    ------
    KernelError      an array that is not contiguous
    """
    if like.device.type == "cpu":
        return _copy(array, like.device)    # kept, it would keep its array
    key = (id(array), like.device)
    if key not in _copies:
        _copies[key] = _copy(array, like.device)
        weakref.finalize(array, _copies.pop, key, None)
    return _copies[key]


def _copy(array: np.ndarray, device: torch.device) -> torch.Tensor:
    if not array.flags.c_contiguous:
        raise KernelError(f"only contiguous arrays are kept on the device, found strides {array.strides}")
    with warnings.catch_warnings():
        # Read-only arrays are welcome: kernels take them by pointers to const.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array.view(SAME_BITS.get(array.dtype, array.dtype))).to(device)
