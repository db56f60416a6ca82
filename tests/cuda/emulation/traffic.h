/* What the accesses of a launch would cost on a device; see traffic.cpp. */
#ifndef HPCGNN_TRAFFIC_H
#define HPCGNN_TRAFFIC_H
#include <cstddef>
#include <cstdint>

namespace emulation {
struct requests_of {
    int64_t requests, sectors, bytes; /* bytes that were asked for, of each request once */
};

struct turns_of {
    int64_t requests, turns, least_turns; /* at the banks, and if no two words shared one */
};

struct traffic {
    requests_of load, store;
    turns_of shared;
    int64_t touched_sectors, touched_bytes; /* different ones of the launch, read and written */
};

void count_access(uintptr_t address, size_t bytes, bool is_write, bool is_shared, uintptr_t place);
void end_traffic_of_block(traffic &counts);
void end_traffic(traffic &counts);
}
#endif
