"""DRAM's commands, burst by burst. A shell over ext/src/dram_timing.c; contracts are checked in hpcgnn.accelerators."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t

include "dram_types.pxi"

cdef extern from "dram_timing.h":
    void c_close_channels "close_channels" (dram_state) nogil
    int64_t c_first_bad_request "first_bad_request" (request_list, int64_t, int64_t, int64_t, int64_t) nogil
    int64_t c_serve_all "serve_all" (dram_state, request_list, int64_t, int, kind_counts *) nogil

LIMITS = {"banks": MAX_BANKS, "groups": MAX_GROUPS, "queue": MAX_QUEUE}
CHANNEL_WORDS = sizeof(dram_channel) // sizeof(int64_t)


def closed_channels(dram_parameters dram):
    """Return the state of all channels, then that of their windows, before the first command; parameters are a dict, by
    the names of the struct.
    """
    cdef int64_t num_bytes = dram.num_channels * (sizeof(dram_channel) + sizeof(dram_window))
    cdef int64_t[::1] words = np.zeros(num_bytes // sizeof(int64_t), np.int64)
    c_close_channels(dram_state_of(&dram, words))
    return np.asarray(words)


def first_bad_request(requests, int64_t first_block, int64_t end_block, int64_t num_kinds, int64_t capacity):
    """The first request outside the contract, or -1. See ext/src/dram_timing.h."""
    cdef request_list listed = request_list_of(requests[0], requests[1], requests[2], requests[3])
    cdef int64_t bad
    with nogil:
        bad = c_first_bad_request(listed, first_block, end_block, num_kinds, capacity)
    return bad


def serve_all(dram_parameters dram, int64_t[::1] channels, requests, int64_t ready, bint is_write,
              int64_t[:, ::1] counts):
    """Serve at least one request; return the clock at which the last data has moved."""
    cdef request_list listed = request_list_of(requests[0], requests[1], requests[2], requests[3])
    cdef dram_state state = dram_state_of(&dram, channels)
    cdef int64_t done
    with nogil:
        done = c_serve_all(state, listed, ready, is_write, <kind_counts *>&counts[0, 0])
    return done
