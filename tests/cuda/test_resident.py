"""Arrays of plans on the device: copied once, kept while they live, the same memory on the CPU."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda import resident
from hpcgnn.ops.cuda.resident import on_device

META = torch.empty(0, device="meta")    # another device that every machine has


def test_the_cpu_shares_the_memory_of_the_array():
    array = np.arange(6, dtype=np.int64)
    tensor = on_device(array, torch.empty(0))
    assert tensor.data_ptr() == array.ctypes.data and tensor.tolist() == array.tolist()


def test_an_array_is_copied_once_and_forgotten_with_its_last_reference():
    array, other = np.arange(6), np.arange(6)
    before = len(resident._copies)
    copy = on_device(array, META)
    assert copy is on_device(array, META) and copy is not on_device(other, META)
    assert copy.device.type == "meta"
    del array, other
    gc.collect()
    assert len(resident._copies) == before


@pytest.mark.parametrize("dtype, held", [(np.uint16, torch.int16), (np.uint32, torch.int32), (np.uint64, torch.int64),
                                         (bool, torch.uint8), (np.uint8, torch.uint8), (np.float32, torch.float32)])
def test_wide_unsigned_integers_keep_their_bits(dtype, held):
    array = np.array([0, 1, np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1], dtype)
    tensor = on_device(array, torch.empty(0))
    assert tensor.dtype == held and tensor.numpy().tobytes() == array.tobytes()


def test_a_read_only_array_is_taken_without_a_warning(recwarn):
    array = np.arange(3)
    array.flags.writeable = False
    assert on_device(array, torch.empty(0)).tolist() == [0, 1, 2]
    assert not recwarn.list


def test_an_array_with_gaps_is_refused():
    with pytest.raises(KernelError, match="contiguous"):
        on_device(np.arange(6)[::2], torch.empty(0))
