"""Instruction set of the kernels. A shell over ext/src/simd.h."""

cdef extern from "simd.h":
    int simd_supported() nogil
    int simd_multiplies_bf16() nogil


def supported_level():
    """0 portable, 1 AVX2, 2 AVX-512: the highest that this processor and this build have."""
    return simd_supported()


def multiplies_bfloat16():
    """Whether the processor has instructions that multiply bfloat16."""
    return bool(simd_multiplies_bf16())
