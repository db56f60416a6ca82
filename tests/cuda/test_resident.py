"""Arrays of plans on the device: copied once, kept while they live, the same memory on the CPU."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.exchange.plan import RowList
from hpcgnn.ops.aggregation import SparseRows
from hpcgnn.ops.quantization import MessageLayout
from hpcgnn.ops.resident import on_device, resident

META = torch.empty(0, device="meta")    # another device that every machine has


def test_the_cpu_shares_the_memory_of_the_array():
    array = np.arange(6, dtype=np.int64)
    tensor = on_device(array, torch.empty(0))
    assert tensor.data_ptr() == array.ctypes.data and tensor.tolist() == array.tolist()


def test_a_resident_array_is_copied_once_and_its_copy_lives_as_long():
    array, other = resident(np.arange(6)), resident(np.arange(6))
    copy = weakref.ref(on_device(array, META))
    assert copy() is on_device(array, META) and copy() is not on_device(other, META)
    assert copy().device.type == "meta" and resident(array) is array
    del array
    assert copy() is None


def test_a_slice_or_a_copy_of_a_resident_array_has_no_copies_of_the_whole():
    array = resident(np.arange(6))
    whole = on_device(array, META)
    for part in (array[:4], array[:], array + 1, array.copy()):
        assert on_device(part, META) is not whole and on_device(part, META).shape == part.shape
    assert on_device(array, META) is whole


def test_any_other_array_is_copied_anew():
    array = np.arange(6)
    assert on_device(array, META) is not on_device(array, META)


def test_arrays_of_matrices_and_row_lists_are_resident_and_shared_by_what_is_cut_from_them():
    matrix = SparseRows(np.array([0, 2]), np.array([2, 3]), np.array([0, 1, 1], np.int32), 2)
    part, rows = matrix.rows(0, 1), RowList(np.zeros(2, np.int32), np.arange(2), np.zeros(2, np.int32))
    layout = MessageLayout.build(np.array([1, 8], np.uint8), 3)
    assert on_device(matrix.indices, META) is on_device(part.indices, META)
    for array in (matrix.begin, matrix.end, rows.index, rows.node_id, layout.bit_width, layout.payload_offset):
        assert on_device(array, META) is on_device(array, META)


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
