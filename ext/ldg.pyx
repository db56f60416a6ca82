"""Linear Deterministic Greedy partitioning. A shell over ext/src/ldg.c; contracts are checked in hpcgnn.partition."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "ldg.h":
    ctypedef struct neighbor_rows:
        int64_t num_nodes
        const int64_t *indptr
        const int32_t *indices
    void c_ldg_assign "ldg_assign" (neighbor_rows, const int32_t *, int32_t, double, int64_t *, int64_t *,
                                    int32_t *) nogil


def ldg_assign(const int64_t[::1] indptr, const int32_t[::1] indices, const int32_t[::1] order, double capacity,
               int64_t[::1] neighbor_count, int64_t[::1] size, int32_t[::1] owner):
    """Fill owner, -1 at entry, in the given order; neighbor_count and size hold one zero per part at entry."""
    if order.shape[0] == 0:
        return
    cdef neighbor_rows graph
    graph.num_nodes = order.shape[0]
    graph.indptr = &indptr[0]
    graph.indices = &indices[0] if indices.shape[0] else NULL
    with nogil:
        c_ldg_assign(graph, &order[0], <int32_t>size.shape[0], capacity, &neighbor_count[0], &size[0], &owner[0])
