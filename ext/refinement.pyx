"""Moves of nodes between parts that lower the communication volume. A shell over ext/src/refinement.c; contracts are
checked in hpcgnn.partition.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "refinement.h":
    ctypedef struct part_count:
        pass
    ctypedef struct part_neighbors:
        int64_t num_nodes
        int32_t num_parts, num_weights
        const int64_t *indptr
        const int32_t *indices
        const int64_t *weight
        int32_t *owner
        const int64_t *near_start
        int32_t *near_length
        part_count *near
        int64_t *size
        int64_t *load
        int64_t *limit
        int32_t *noted
        uint8_t *is_noted
        int32_t *served
        int32_t *queue
        uint8_t *is_queued
        double *key
        int64_t volume
    void c_count_part_neighbors "count_part_neighbors" (part_neighbors *) nogil
    int64_t c_count_cut_edges "count_cut_edges" (const part_neighbors *) nogil
    int64_t c_lower_volume "lower_volume" (part_neighbors *, int64_t) nogil
    int64_t c_relieve_parts "relieve_parts" (part_neighbors *, int64_t, double) nogil


cdef class PartNeighbors:
    """The parts of every node's neighbors, updated as nodes move. Arrays are the caller's; owner changes in place."""

    cdef part_neighbors state
    cdef tuple kept
    cdef int64_t[::1] limit

    def __init__(self, const int64_t[::1] indptr, const int32_t[::1] indices, const int64_t[:, ::1] weight,
                 int32_t[::1] owner, const int64_t[::1] near_start, int32_t[::1] near_length, int32_t[:, ::1] near,
                 int64_t[::1] size, int64_t[:, ::1] load, int64_t[::1] limit, int32_t[::1] noted,
                 uint8_t[::1] is_noted, int32_t[::1] served, int32_t[::1] queue, uint8_t[::1] is_queued, double[::1] key):
        """near has one row more than its entries need; the other arrays have the sizes that the header states."""
        self.kept = (indptr, indices, weight, owner, near_start, near_length, near, size, load, noted, is_noted,
                     served, queue, is_queued, key)
        self.limit = limit
        self.state.num_nodes, self.state.num_parts = owner.shape[0], <int32_t>size.shape[0]
        self.state.num_weights = <int32_t>weight.shape[1]
        self.state.indptr = &indptr[0]
        self.state.indices = &indices[0] if indices.shape[0] else NULL
        self.state.weight = &weight[0, 0]
        self.state.owner = &owner[0]
        self.state.near_start, self.state.near_length = &near_start[0], &near_length[0]
        self.state.near = <part_count *>&near[0, 0]
        self.state.size, self.state.load, self.state.limit = &size[0], &load[0, 0], &limit[0]
        self.state.noted, self.state.is_noted = &noted[0], &is_noted[0]
        self.state.served = &served[0]
        self.state.queue, self.state.is_queued, self.state.key = &queue[0], &is_queued[0], &key[0]
        with nogil:
            c_count_part_neighbors(&self.state)

    @property
    def volume(self):
        """Rows that cross between parts in an exchange."""
        return self.state.volume

    @property
    def num_cut_edges(self):
        """Edges between parts, counted anew."""
        return c_count_cut_edges(&self.state)

    def lower_volume(self, int64_t max_rounds):
        """Moves nodes that lower the volume and keep the limits; returns how many."""
        cdef int64_t moves
        with nogil:
            moves = c_lower_volume(&self.state, max_rounds)
        return moves

    def relieve_parts(self, int64_t max_rounds, double largest=INFINITY):
        """Moves nodes of at most `largest` times the limit out of parts beyond a limit; returns how many."""
        cdef int64_t moves
        with nogil:
            moves = c_relieve_parts(&self.state, max_rounds, largest)
        return moves
