"""Products of rows and weights. A shell over ext/src/dense.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

cdef extern from "dense.h":
    ctypedef struct dense_matrix:
        const void *data
        int64_t num_rows, num_columns
        int storage
    int64_t c_product_bytes "dense_product_bytes" (int64_t, int, int64_t) nogil
    int64_t c_gradient_bytes "dense_gradient_bytes" (int64_t, int64_t, int64_t) nogil
    void c_product "dense_product" (dense_matrix, dense_matrix, int, int, void *, void *) nogil
    void c_combination "dense_combination" (const dense_matrix *, const dense_matrix *, int, const float *, void *,
                                            void *) nogil
    void c_gradient "dense_gradient" (dense_matrix, dense_matrix, float *, void *) nogil


cdef dense_matrix matrix_of(const uint8_t[:, ::1] rows, int storage) noexcept nogil:
    cdef dense_matrix matrix
    matrix.data = &rows[0, 0]
    matrix.num_rows = rows.shape[0]
    matrix.num_columns = rows.shape[1] // (4 if storage == 0 else 2)
    matrix.storage = storage
    return matrix


cdef void *memory_of(int64_t num_bytes) except NULL:
    cdef void *memory = malloc(num_bytes)
    if memory == NULL:
        raise MemoryError(f"no memory for the {num_bytes:,} bytes of a product's blocks")
    return memory


def product(const uint8_t[:, ::1] left, const uint8_t[:, ::1] right, int storage, bint is_transposed, bint is_added,
            uint8_t[:, ::1] out):
    """out = left @ right, or left @ right.T where is_transposed, added to out where is_added; none is empty."""
    cdef dense_matrix a = matrix_of(left, storage), b = matrix_of(right, storage)
    cdef int64_t num_columns = b.num_rows if is_transposed else b.num_columns
    cdef void *memory = memory_of(c_product_bytes(a.num_columns, 1, num_columns))
    with nogil:
        c_product(a, b, is_transposed, is_added, &out[0, 0], memory)
    free(memory)


def combination(const uint8_t[:, ::1] left, const uint8_t[:, ::1] right, const uint8_t[:, ::1] own,
                const uint8_t[:, ::1] own_right, int storage, const float[::1] bias, uint8_t[:, ::1] out):
    """out = bias + left @ right.T + own @ own_right.T; own may be None, out may be left, and no matrix is empty."""
    cdef dense_matrix[2] lefts, rights
    cdef int num_sides = 1 if own is None else 2
    lefts[0], rights[0] = matrix_of(left, storage), matrix_of(right, storage)
    if num_sides == 2:
        lefts[1], rights[1] = matrix_of(own, storage), matrix_of(own_right, storage)
    cdef int64_t depth = lefts[0].num_columns + (lefts[1].num_columns if num_sides == 2 else 0)
    cdef void *memory = memory_of(c_product_bytes(depth, num_sides, rights[0].num_rows))
    with nogil:
        c_combination(lefts, rights, num_sides, &bias[0], &out[0, 0], memory)
    free(memory)


def gradient(const uint8_t[:, ::1] left, const uint8_t[:, ::1] right, int storage, float[:, ::1] out):
    """out = left.T @ right; none is empty."""
    cdef dense_matrix a = matrix_of(left, storage), b = matrix_of(right, storage)
    cdef void *memory = memory_of(c_gradient_bytes(a.num_rows, a.num_columns, b.num_columns))
    with nogil:
        c_gradient(a, b, &out[0, 0], memory)
    free(memory)
