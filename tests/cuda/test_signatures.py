"""Parameter lists read from the text of a .cu file."""

from __future__ import annotations

import pytest

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda.module import Parameter, signatures_of

PLAIN = """
// extern "C" __global__ void commented_out(int n) {}
#include "device.cuh"
__global__ void not_of_c_linkage(int n) {}
extern "C" __global__ void __launch_bounds__(128, 2) scale(const float *__restrict__ rows, __half* out,
                                                           /* columns, not rows */ int64_t dim,
                                                           float factor) { body(); }
extern "C" __global__ void nothing() {}
"""


def test_numbers_and_pointers_are_told_apart():
    assert signatures_of(PLAIN) == {
        "scale": (Parameter("rows", "float", True, True), Parameter("out", "__half", True, False),
                  Parameter("dim", "int64_t", False, False), Parameter("factor", "float", False, False)),
        "nothing": (),
    }


def test_a_macro_makes_a_kernel_each_storage():
    made = signatures_of("""
    #define SUM(T, suffix)                                              \\
        extern "C" __global__ void sum_##suffix(const T *rows, int n) { \\
            sum<T>(rows, n);                                            \\
        }
    FOR_EACH_STORAGE(SUM)
    """)
    assert {name: parameters[0].type for name, parameters in made.items()} == {
        "sum_f32": "float", "sum_bf16": "__nv_bfloat16", "sum_f16": "__half"}


def test_macros_that_make_kernels_may_use_one_another():
    made = signatures_of("""
    #define ONE(T, name) extern "C" __global__ void name(T *rows) {}
    #define BOTH(T, suffix) ONE(T, first_##suffix) \\
        ONE(const T, second_##suffix)
    BOTH(float, f32)
    """)
    assert made == {"first_f32": (Parameter("rows", "float", True, False),),
                    "second_f32": (Parameter("rows", "float", True, True),)}


@pytest.mark.parametrize("parameter", ["float4 *const rows[3]", "float **rows", "unsigned long long n", "int n = 3"])
def test_a_parameter_that_python_could_not_check_is_refused(parameter):
    with pytest.raises(KernelError, match="kernel odd has a parameter"):
        signatures_of(f'extern "C" __global__ void odd(int first, {parameter}) {{}}')
