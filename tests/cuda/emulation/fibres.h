/* Threads of the running block, as the scheduler (execution.cpp) and the checks of memory (memory.cpp) share them. */
#ifndef HPCGNN_FIBRES_H
#define HPCGNN_FIBRES_H
#include <csetjmp>
#include <ucontext.h>
#include "warp_primitives.h"

namespace emulation {
constexpr int MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 32, BLOCK_BARRIER = -1;
constexpr size_t STACK_BYTES = 256 << 10;

enum class state { runnable, waiting, exited };

struct fibre {
    ucontext_t first;
    jmp_buf later;
    bool is_made;
    state now;
    int which, line, tally; /* what it waits at: a primitive, or BLOCK_BARRIER */
    uint32_t mask;
    uint32_t words[LANE_WORDS];
    uintptr_t place;
    uint3 index;
};

extern fibre fibres[MAX_THREADS];
extern int running;                    /* number of the thread in its block */
extern int num_threads;
extern uint64_t block_number;          /* in the grid, x fastest */
extern uintptr_t stacks, stacks_end;
extern const launch *current;

/* Ends the launch with a fault of the running thread, at a place in its code. */
[[noreturn]] void raise(uintptr_t place, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *name_of(int which);

/* What memory.cpp is told: order between threads, and lives of arrays. */
void begin_launch(const launch &launch);
void end_launch();
void begin_block();
void order_block();
void order_lanes(int warp, uint32_t mask);
}
#endif
