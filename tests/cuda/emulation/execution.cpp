/* Runs the blocks of a grid one after another, the threads of a block as fibres that stop where they must wait. */
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <vector>
#include "fibres.h"

namespace emulation {

fibre fibres[MAX_THREADS];
int running, num_threads;
uint64_t block_number;
uintptr_t stacks, stacks_end;
const launch *current;

static jmp_buf scheduler, caller;
static void (*kernel_body)(void *const *);
static void *const *kernel_arguments;
static uint3 block;
static brought lanes[MAX_WARPS];
static int block_sum;
static fault *raised;

static const char *const PRIMITIVE_NAMES[] = {"a shuffle", "__ballot_sync", "__any_sync", "__all_sync", "__syncwarp",
                                              "__match_any_sync", "a product of bits"};

const char *name_of(int which) { return which == BLOCK_BARRIER ? "__syncthreads" : PRIMITIVE_NAMES[which]; }

uint3 thread_index() { return fibres[running].index; }
uint3 block_index() { return block; }
dim3 block_extent() { return current->block; }
dim3 grid_extent() { return current->grid; }
int lane_number() { return running % 32; }

void raise(uintptr_t place, const char *format, ...) {
    char what[768];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    const uint3 t = fibres[running].index;
    snprintf(raised->text, sizeof raised->text, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s",
             current->kernel, block.x, block.y, block.z, t.x, t.y, t.z, what);
    raised->place = place;
    _longjmp(caller, 1);
}

static void stop() {
    if (!_setjmp(fibres[running].later)) _longjmp(scheduler, 1);
}

static void live() {
    for (;;) {
        kernel_body(kernel_arguments);
        fibres[running].now = state::exited;
        stop();
    }
}

static void resume(int thread) {
    running = thread;
    fibre &f = fibres[thread];
    if (_setjmp(scheduler)) return;
    if (f.is_made) _longjmp(f.later, 1);
    f.is_made = true;
    getcontext(&f.first);
    f.first.uc_stack.ss_sp = reinterpret_cast<void *>(stacks + static_cast<size_t>(thread) * STACK_BYTES);
    f.first.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f.first, live, 0);
    setcontext(&f.first);
}

static void wait_at(int which, uint32_t mask, int line, uintptr_t place) {
    fibre &f = fibres[running];
    f.now = state::waiting;
    f.which = which;
    f.mask = mask;
    f.line = line;
    f.place = place;
    stop();
}

#define CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))

__attribute__((noinline)) void wait_for_block(int line, int tally, int *sum) {
    fibres[running].tally = tally;
    wait_at(BLOCK_BARRIER, 0, line, CALLER);
    if (sum) *sum = block_sum;
}

__attribute__((noinline)) const brought &meet(primitive which, uint32_t mask, int line, const uint32_t *words,
                                              int num_words) {
    if (!(mask >> running % 32 & 1u)) raise(CALLER, "its mask %#010x for %s leaves itself out", mask, name_of(which));
    std::copy_n(words, num_words, fibres[running].words);
    wait_at(which, mask, line, CALLER);
    return lanes[running / 32];
}

__attribute__((noinline)) void read_lane(uint32_t mask, int lane) {
    if (lane < 0 || lane > 31 || !(mask >> lane & 1u))
        raise(CALLER, "it shuffles from lane %d, which is not of the mask %#010x", lane, mask);
}

static bool waits_with(const fibre &other, const fibre &f) {
    return other.now == state::waiting && other.which == f.which && other.mask == f.mask && other.line == f.line;
}

/* First lane of the mask that is not where thread `first + lane` waits, or -1. Threads behind the block have exited. */
static int missing_lane(int first, const fibre &f) {
    for (int lane = 0; lane < 32; lane++)
        if ((f.mask >> lane & 1u) && (first + lane >= num_threads || !waits_with(fibres[first + lane], f))) return lane;
    return -1;
}

static void release_lanes(int first, uint32_t mask, int which) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1u)) continue;
        std::copy_n(fibres[first + lane].words, LANE_WORDS, lanes[first / 32].words[lane]);
        fibres[first + lane].now = state::runnable;
    }
    if (which == SYNCWARP) order_lanes(first / 32, mask);
}

/* Lets go of every set of lanes that is complete; tells whether there was one. */
static bool release_warp(int first) {
    bool is_released = false;
    for (int thread = first; thread < std::min(first + 32, num_threads); thread++) {
        const fibre &f = fibres[thread];
        if (f.now != state::waiting || f.which == BLOCK_BARRIER || missing_lane(first, f) >= 0) continue;
        release_lanes(first, f.mask, f.which);
        is_released = true;
    }
    return is_released;
}

static void run_warp(int first) {
    do {
        for (int thread = first; thread < std::min(first + 32, num_threads); thread++)
            if (fibres[thread].now == state::runnable) resume(thread);
    } while (release_warp(first));
}

static void describe(const fibre &f, char *text, size_t size) {
    if (f.now == state::exited)
        snprintf(text, size, "has exited");
    else
        snprintf(text, size, "waits at %s in line %d", name_of(f.which), f.line);
}

/* No thread can go on: the first one that waits says for what. */
static void raise_stuck_lane(int thread) {
    const fibre &f = fibres[thread];
    const int first = thread / 32 * 32, lane = missing_lane(first, f);
    char where[96];
    running = thread;
    if (first + lane >= num_threads) raise(f.place, "%s in line %d waits for lane %d, which is not of the block",
                                           name_of(f.which), f.line, lane);
    describe(fibres[first + lane], where, sizeof where);
    if (fibres[first + lane].now == state::waiting && fibres[first + lane].mask != f.mask)
        raise(f.place, "%s in line %d with mask %#010x waits for lane %d, which %s with mask %#010x", name_of(f.which),
              f.line, f.mask, lane, where, fibres[first + lane].mask);
    raise(f.place, "%s in line %d waits for lane %d, which %s", name_of(f.which), f.line, lane, where);
}

static void check_barrier(int thread, int other) {
    const fibre &f = fibres[thread], &o = fibres[other];
    if (o.now == state::waiting && o.line == f.line) return;
    char where[96];
    describe(o, where, sizeof where);
    running = thread;
    raise(f.place, "the barrier in line %d is divergent: thread (%u, %u, %u) %s", f.line, o.index.x, o.index.y,
          o.index.z, where);
}

/* All threads stand still: lets them go together from one barrier, and tells whether any is left. */
static bool release_block() {
    int waiting = -1;
    block_sum = 0;
    for (int thread = 0; thread < num_threads; thread++) {
        if (fibres[thread].now != state::waiting) continue;
        if (fibres[thread].which != BLOCK_BARRIER) raise_stuck_lane(thread);
        waiting = waiting < 0 ? thread : waiting;
        block_sum += fibres[thread].tally;
    }
    if (waiting < 0) return false;
    for (int thread = 0; thread < num_threads; thread++) check_barrier(waiting, thread);
    for (int thread = 0; thread < num_threads; thread++) fibres[thread].now = state::runnable;
    order_block();
    return true;
}

static void start_threads() {
    const dim3 size = current->block;
    for (int thread = 0; thread < num_threads; thread++) {
        fibre &f = fibres[thread];
        const unsigned number = static_cast<unsigned>(thread);
        f.index = {number % size.x, number / size.x % size.y, number / size.x / size.y};
        f.now = state::runnable;
    }
}

static std::vector<uint64_t> shuffled(uint64_t size, std::mt19937_64 &draw) {
    std::vector<uint64_t> order(size);
    std::iota(order.begin(), order.end(), uint64_t{0});
    if (current->seed) std::shuffle(order.begin(), order.end(), draw);
    return order;
}

static void run_block(uint64_t number, std::mt19937_64 &draw) {
    const dim3 grid = current->grid;
    block_number = number;
    block = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
             static_cast<unsigned>(number / grid.x / grid.y)};
    begin_block();
    start_threads();
    const auto warps = shuffled((static_cast<uint64_t>(num_threads) + 31) / 32, draw);
    do
        for (const uint64_t warp : warps) run_warp(static_cast<int>(warp) * 32);
    while (release_block());
    if (current->counts) end_traffic_of_block(*current->counts);
}

static void run_grid() {
    const dim3 grid = current->grid;
    std::mt19937_64 draw(current->seed);
    for (const uint64_t number : shuffled(uint64_t{grid.x} * grid.y * grid.z, draw)) run_block(number, draw);
}

static void reserve_stacks() {
    if (stacks) return;
    const size_t bytes = MAX_THREADS * STACK_BYTES;
    stacks = reinterpret_cast<uintptr_t>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    stacks_end = stacks + bytes;
}

int run(const launch &launch, void (*body)(void *const *), void *const *arguments, fault *found) {
    current = &launch;
    kernel_body = body;
    kernel_arguments = arguments;
    raised = found;
    num_threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    reserve_stacks();
    begin_launch(launch);
    const int is_faulty = _setjmp(caller);
    if (!is_faulty) run_grid();
    /* Fibres that a fault has stopped half-way start anew. */
    if (is_faulty)
        for (fibre &f : fibres) f.is_made = false;
    end_launch();
    if (launch.counts) {
        end_traffic_of_block(*launch.counts); /* of a block that a fault ended */
        end_traffic(*launch.counts);
    }
    return is_faulty;
}
}
