"""Peaks of instructions. A shell over ext/src/peaks.c; hpcgnn.bench.host decides what is measured."""

from libc.stdint cimport int64_t

cdef extern from "peaks.h":
    int64_t peak_bit_products(int64_t) nogil
    int64_t peak_byte_products(int64_t) nogil
    int64_t peak_float_products(int64_t) nogil
    int64_t peak_bfloat16_products(int64_t, int) nogil


def bit_products(int64_t num_products):
    """Do at least so many products of bits, on all threads, and return how many."""
    cdef int64_t done
    with nogil:
        done = peak_bit_products(num_products)
    return done


def byte_products(int64_t num_products):
    """Do at least so many products of bytes, or of what the kernels use instead, and return how many."""
    cdef int64_t done
    with nogil:
        done = peak_byte_products(num_products)
    return done


def float_products(int64_t num_products):
    """Do at least so many products of float32, on all threads, and return how many."""
    cdef int64_t done
    with nogil:
        done = peak_float_products(num_products)
    return done


def bfloat16_products(int64_t num_products, bint allows_tiles):
    """Do at least so many products of bfloat16, by the best instructions that are allowed, and return how many."""
    cdef int64_t done
    with nogil:
        done = peak_bfloat16_products(num_products, allows_tiles)
    return done
