# What shells over ext/src/dram_service.h share.

cdef extern from "dram_service.h":
    enum: MAX_BANKS, MAX_GROUPS, MAX_QUEUE, NUM_COUNTS
    ctypedef struct dram_parameters:
        int64_t num_channels, num_groups, banks_per_group, num_rows
        int64_t burst_shift, channel_shift, group_shift, bank_shift, row_shift
        int64_t run_length, run_groups, run_spacing, queue_depth, first_ready
        int64_t[2] latency, activate_to_column, column_to_precharge, turnaround, turnaround_in_group
        int64_t spacing, spacing_in_group, activate_spacing, activate_spacing_in_group, four_activates
        int64_t activate_to_precharge, activate_to_activate, precharge_to_activate, refresh_interval, refresh_time
    ctypedef struct dram_channel:
        pass
    ctypedef struct dram_window:
        pass
    ctypedef struct dram_state:
        const dram_parameters *dram
        dram_channel *channel
        dram_window *window
    ctypedef struct request_list:
        int64_t num_requests
        const int32_t *block
        const int64_t *address
        const int64_t *num_bytes
        const uint8_t *kind
    ctypedef int64_t[NUM_COUNTS] kind_counts

cdef dram_state dram_state_of(const dram_parameters *dram, int64_t[::1] words):
    cdef dram_state state
    state.dram, state.channel = dram, <dram_channel *>&words[0]
    state.window = <dram_window *>(state.channel + dram.num_channels)
    return state

cdef request_list request_list_of(const int32_t[::1] block, const int64_t[::1] address, const int64_t[::1] num_bytes,
                                  const uint8_t[::1] kind):
    cdef request_list listed
    listed.num_requests = block.shape[0]
    listed.block, listed.address, listed.num_bytes, listed.kind = NULL, NULL, NULL, NULL
    if block.shape[0]:
        listed.block, listed.address, listed.num_bytes, listed.kind = &block[0], &address[0], &num_bytes[0], &kind[0]
    return listed
