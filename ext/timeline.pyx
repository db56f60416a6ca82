"""Times of the blocks of a pass. A shell over ext/src/timeline.c; contracts are checked in hpcgnn.accelerators."""

from libc.stdint cimport int32_t, int64_t, uint8_t

include "dram_types.pxi"

cdef extern from "timeline.h":
    enum: MAX_STAGES, NUM_CAUSES
    ctypedef struct stage_times:
        int64_t[2] end, ideal_end
        int64_t busy
        int64_t[NUM_CAUSES] stalled
    ctypedef struct pass_times:
        int64_t begin, num_stages, buffered_until, arrived, served, dram_busy, written
        stage_times[MAX_STAGES] stage
    ctypedef struct clock_ratio:
        int64_t cycles, clocks
    ctypedef struct timed_dram:
        dram_state dram
        clock_ratio ratio
        kind_counts *counts[2]
    void c_run_blocks "run_blocks" (pass_times *, timed_dram, int64_t, const int64_t *, request_list,
                                    request_list) nogil
    int64_t c_finish_pass "finish_pass" (pass_times *, timed_dram, request_list) nogil

LARGEST_NUM_STAGES = MAX_STAGES

cdef timed_dram timed(const dram_parameters *dram, int64_t[::1] channels, ratio, int64_t[:, :, ::1] counts):
    cdef timed_dram t
    t.dram = dram_state_of(dram, channels)
    t.ratio.cycles, t.ratio.clocks = ratio
    t.counts[0], t.counts[1] = <kind_counts *>&counts[0, 0, 0], <kind_counts *>&counts[1, 0, 0]
    return t


def new_pass(int64_t begin, int64_t num_stages, int64_t buffered_until):
    """Return a pass's times before its first block, a dict by the names of the struct."""
    stage = {"end": [begin] * 2, "ideal_end": [0] * 2, "busy": 0, "stalled": [0] * NUM_CAUSES}
    return {"begin": begin, "num_stages": num_stages, "buffered_until": buffered_until, "arrived": begin,
            "served": begin, "dram_busy": 0, "written": begin, "stage": [stage] * MAX_STAGES}


def run_blocks(pass_times times, dram_parameters dram, int64_t[::1] channels, ratio, int64_t[:, :, ::1] counts,
               const int64_t[:, ::1] cycles, reads, writes):
    """Return the times after more blocks, see ext/src/timeline.h. counts[0] counts reads by kind, counts[1] writes."""
    cdef request_list read = request_list_of(reads[0], reads[1], reads[2], reads[3])
    cdef request_list written = request_list_of(writes[0], writes[1], writes[2], writes[3])
    cdef timed_dram t = timed(&dram, channels, ratio, counts)
    if cycles.shape[0]:
        with nogil:
            c_run_blocks(&times, t, cycles.shape[0], &cycles[0, 0], read, written)
    return times


def finish_pass(pass_times times, dram_parameters dram, int64_t[::1] channels, ratio, int64_t[:, :, ::1] counts,
                writes):
    """Serve the last block's writes; return the times after them, and the cycle at which the pass ends."""
    cdef request_list written = request_list_of(writes[0], writes[1], writes[2], writes[3])
    cdef timed_dram t = timed(&dram, channels, ratio, counts)
    cdef int64_t end
    with nogil:
        end = c_finish_pass(&times, t, written)
    return times, end
