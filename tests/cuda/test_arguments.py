"""What a kernel's parameter takes: numbers in the range of their C type, tensors of the pointee's bits."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.module import SCALAR_TYPES, TENSOR_DTYPES, ArgumentList, Parameter, argument_of

INTEGERS = [name for name, kind in SCALAR_TYPES.items() if issubclass(kind, np.integer)]


def number(kind, value):
    return argument_of(Parameter("n", kind, False, False), value, "cpu")


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_are_taken_up_to_the_ends_of_their_type(kind):
    limits = np.iinfo(SCALAR_TYPES[kind])
    for value in (limits.min, limits.max, np.int8(3), True):
        converted = number(kind, value)
        assert type(converted) is SCALAR_TYPES[kind] and converted == value
    for value in (limits.min - 1, limits.max + 1):
        with pytest.raises(KernelError, match="out of its range"):
            number(kind, value)


@pytest.mark.parametrize("value", [0, -3, 0.1, 1e-45, 3e38, float("inf"), np.float32(2.5), np.int64(7)])
def test_floats_are_rounded_to_their_type(value):
    assert type(number("float", value)) is np.float32 and number("float", value) == np.float32(value)
    assert type(number("double", value)) is np.float64 and number("double", value) == value


def test_a_float_that_would_become_infinite_is_refused():
    with pytest.raises(KernelError, match="out of its range"):
        number("float", 1e39)
    assert number("double", 1e39) == 1e39


@pytest.mark.parametrize("kind, value", [("float", "1"), ("float", None), ("int", 1.0), ("int", torch.ones(1)),
                                         ("float", np.ones(1)), ("bool", True), ("size_t", 1)])
def test_what_is_no_number_of_the_type_is_refused(kind, value):
    with pytest.raises(KernelError):
        number(kind, value)


@pytest.mark.parametrize("pointee, dtype", TENSOR_DTYPES.items())
def test_a_pointer_takes_the_torch_type_of_its_bits_and_no_other(pointee, dtype):
    parameter = Parameter("rows", pointee, True, True)
    tensor = torch.zeros(3, dtype=dtype)
    assert argument_of(parameter, tensor, "cpu") is tensor and argument_of(parameter, None, "cpu") is None
    for other in set(TENSOR_DTYPES.values()) - {dtype}:
        with pytest.raises(KernelError, match=f"a tensor of {other}"):
            argument_of(parameter, torch.zeros(3, dtype=other), "cpu")


PARAMETERS = (Parameter("flag", "uint8_t", False, False), Parameter("rows", "float", True, True),
              Parameter("n", "int", False, False), Parameter("size", "int64_t", False, False),
              Parameter("scale", "float", False, False), Parameter("draws", "uint32_t", False, False),
              Parameter("rate", "double", False, False))


def test_arguments_are_packed_as_the_fields_of_a_structure_in_c():
    class Fields(ctypes.Structure):
        _fields_ = [("flag", ctypes.c_uint8), ("rows", ctypes.c_void_p), ("n", ctypes.c_int), ("size", ctypes.c_int64),
                    ("scale", ctypes.c_float), ("draws", ctypes.c_uint32), ("rate", ctypes.c_double)]

    listed, rows = ArgumentList("some", PARAMETERS, "cpu"), torch.zeros(3)
    assert listed.offset == tuple(getattr(Fields, name).offset for name, _ in Fields._fields_)
    for numbers in ((255, rows, -3, 2**63 - 1, 0.1, 2**32 - 1, 0.1), (True, None, np.int64(4), np.int8(-1), 1, 0, 2),
                    (0, rows, -2**31, -2**63, float("-inf"), 7, np.float32(0.5))):
        packed, device = listed.packed(numbers)
        found = Fields.from_buffer_copy(packed)
        address = None if numbers[1] is None else rows.data_ptr()
        assert (found.flag, found.rows, found.n, found.size) == (int(numbers[0]), address, *map(int, numbers[2:4]))
        assert (found.scale, found.draws, found.rate) == (np.float32(numbers[4]), numbers[5], numbers[6])
        assert device == (None if numbers[1] is None else torch.device("cpu"))


@pytest.mark.parametrize("place, wrong, says", [
    (0, 256, "256, out of its range"), (0, -1, "-1, out of its range"), (2, 2**31, "out of its range"),
    (3, 1.0, "no integer"), (4, 1e39, "out of its range"), (2, torch.tensor(3), "Tensor"),
    (4, torch.tensor(3.0), "Tensor"), (1, 8, "no tensor"),
    (3, np.array(3), "ndarray"), (6, None, "NoneType"), (1, torch.zeros(3, dtype=torch.float64), "torch.float64"),
    (1, torch.zeros(3, 2).T, "not contiguous"), (1, torch.empty(3, device="meta"), "a tensor on meta")])
def test_what_one_argument_may_not_be_is_refused_also_after_it_was_right(place, wrong, says):
    """Types that were seen together are not looked at again; values are."""
    listed = ArgumentList("some", PARAMETERS, "cpu")
    right = [1, torch.zeros(3), 2, 3, 4.0, 5, 6.0]
    for _ in range(2):
        listed.packed(right)
        with pytest.raises(KernelError, match=f"kernel some needs .*{PARAMETERS[place].name}, found .*{says}"):
            listed.packed([*right[:place], wrong, *right[place + 1:]])
    with pytest.raises(KernelError, match="takes 7 arguments, found 6"):
        listed.packed(right[:6])
