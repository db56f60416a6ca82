"""Instruction set of the kernels. A shell over ext/src/simd.h."""

cdef extern from "simd.h":
    int HPCGNN_BUILT
    int simd_processor() nogil
    int simd_supported() nogil
    int simd_multiplies_bf16() nogil


def processor_level():
    """0 portable, 1 AVX2, 2 AVX-512: the highest that this processor has."""
    return simd_processor()


def supported_level():
    """The highest level that this processor and this build have; -1 where the build has none for it."""
    return simd_supported()


def is_built(int level):
    """Whether this build has the level, whatever the processor has."""
    return bool(HPCGNN_BUILT >> level & 1)


def multiplies_bfloat16():
    """Whether the processor has instructions that multiply bfloat16."""
    return bool(simd_multiplies_bf16())
