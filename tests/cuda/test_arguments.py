"""What a kernel's parameter takes: numbers in the range of their C type, tensors of the pointee's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.arguments import SCALAR_TYPES, TENSOR_DTYPES, argument_of
from hpcgnn.ops.cuda.signatures import Parameter

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
