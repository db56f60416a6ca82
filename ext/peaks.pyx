"""Peaks of integer instructions. A shell over ext/src/peaks.c; hpcgnn.bench.ceilings decides what is measured."""

from libc.stdint cimport int64_t

cdef extern from "peaks.h":
    int64_t peak_bit_products(int64_t) nogil
    int64_t peak_byte_products(int64_t) nogil


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
