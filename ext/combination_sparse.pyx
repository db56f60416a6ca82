"""Products of codes with weight codes that skip zeros. A shell over ext/src/combination_sparse.c.

Contracts are checked in hpcgnn.ops and hpcgnn.lowbit.package_features.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

include "combination_sides.pxi"
include "package_source.pxi"

cdef extern from "combination_sparse.h":
    enum:
        NO_MEMORY
    int c_combine_sparse "combine_sparse" (code_rows, weight_rows, int, int32_t *) nogil
    package_fault c_combine_packages "combine_packages" (const packages *, int64_t, int64_t, weight_rows, int,
                                                         int32_t *) nogil


def combine(const uint8_t[:, ::1] codes, bint is_signed, const int8_t[:, ::1] weight, bint is_by_bit,
            int32_t[:, ::1] out):
    """codes @ weight.T into out, (num_rows, num_outputs)."""
    cdef code_rows rows = rows_of(codes, is_signed)
    cdef weight_rows weights = weights_of(weight)
    cdef int is_done
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    with nogil:
        is_done = c_combine_sparse(rows, weights, is_by_bit, &out[0, 0])
    if not is_done:
        raise MemoryError("no memory for the weights of a combination")


def combine_packages(source, int64_t first, int64_t last, const int8_t[:, ::1] weight, bint is_by_bit,
                     int32_t[:, ::1] out):
    """Rows [first, last) of packages times weight.T into out, (last - first, num_outputs); returns (fault, row)."""
    cdef packages p = packages_of(source)
    cdef weight_rows weights = weights_of(weight)
    cdef int32_t *sums = &out[0, 0] if out.shape[0] and out.shape[1] else NULL
    cdef package_fault fault
    with nogil:
        fault = c_combine_packages(&p, first, last, weights, is_by_bit, sums)
    if fault.code == NO_MEMORY:
        raise MemoryError("no memory for the weights of a combination")
    return fault.code, fault.row
