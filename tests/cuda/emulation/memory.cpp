/* Every memory access of a kernel, through the hooks that -fsanitize=thread has the compiler call: it must lie inside
 * an argument or a shared array, be written only through a pointer to non-const, be ordered with the accesses of
 * other threads by a barrier, and read no shared byte that the block has not written. */
#include <algorithm>
#include <cstdlib>
#include <link.h>
#include <vector>
#include "fibres.h"

namespace emulation {

enum class kind { read, write, atomic };
static const char *const KIND_NAMES[] = {"reads", "writes", "updates"};

/* One access of one byte: when, by which thread of the grid. Time 0 is never. */
struct access {
    uint32_t time;
    uint32_t thread;
};

struct history {
    access write, read[2]; /* the last readers, of different threads */
    bool is_atomic;        /* the write */
};

/* Memory that threads share: one argument, overlapping ones as one, or one shared array of the running block. */
struct region {
    const char *name;
    uintptr_t first, end;
    bool is_written, is_shared;
    history *bytes;
};

constexpr size_t SHARED_BYTES = 227 << 10, GUARD_BYTES = 32;
constexpr uint8_t STALE = 0xcd; /* what a block finds in shared memory */

alignas(128) static uint8_t shared[SHARED_BYTES];
static history shared_history[SHARED_BYTES];
static size_t shared_top;
static std::vector<region> arguments, arrays; /* ascending */
static size_t last_argument;
static uint32_t now = 1, block_start, barrier_time, together[MAX_WARPS][32][32];
static uintptr_t image, image_end;

static uint32_t grid_thread(int thread) { return static_cast<uint32_t>(block_number) * num_threads + thread; }

void order_block() { barrier_time = ++now; }

void order_lanes(int warp, uint32_t mask) {
    now++;
    for (int a = 0; a < 32; a++)
        for (int b = 0; b < 32; b++)
            if ((mask >> a & 1u) && (mask >> b & 1u)) together[warp][a][b] = now;
}

static int note_image(dl_phdr_info *info, size_t, void *) {
    uintptr_t first = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        const uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        first = std::min(first, start);
        end = std::max(end, start + info->dlpi_phdr[i].p_memsz);
    }
    const uintptr_t own = reinterpret_cast<uintptr_t>(&image);
    if (own < first || own >= end) return 0;
    image = first;
    image_end = end;
    return 1;
}

void begin_launch(const launch &launch) {
    if (!image) dl_iterate_phdr(note_image, nullptr);
    std::vector<extent> extents(launch.extents, launch.extents + launch.num_extents);
    std::sort(extents.begin(), extents.end(), [](const extent &a, const extent &b) { return a.first < b.first; });
    for (const extent &e : extents) {
        if (!arguments.empty() && e.first < arguments.back().end) {
            arguments.back().end = std::max(arguments.back().end, e.end);
            arguments.back().is_written |= e.is_written != 0;
        } else if (e.end > e.first) {
            arguments.push_back({e.name, e.first, e.end, e.is_written != 0, false, nullptr});
        }
    }
    for (region &r : arguments)
        if (r.is_written) r.bytes = static_cast<history *>(calloc(r.end - r.first, sizeof(history)));
    last_argument = 0;
}

void end_launch() {
    for (region &r : arguments) free(r.bytes);
    arguments.clear();
}

void *shared_array(const char *name, size_t bytes, size_t alignment) {
    for (const region &r : arrays)
        if (r.name == name) return reinterpret_cast<void *>(r.first);
    const size_t offset = (shared_top + alignment - 1) / alignment * alignment;
    if (offset + bytes > SHARED_BYTES) raise(0, "shared memory of a block passes %zu bytes", SHARED_BYTES);
    const uintptr_t first = reinterpret_cast<uintptr_t>(shared + offset);
    arrays.push_back({name, first, first + bytes, true, true, shared_history + offset});
    shared_top = offset + bytes + GUARD_BYTES;
    return shared + offset;
}

static const char DYNAMIC[] = "DYNAMIC_SHARED";

void begin_block() {
    block_start = barrier_time = ++now;
    std::fill_n(shared, shared_top, STALE);
    arrays.clear();
    shared_top = 0;
    shared_array(DYNAMIC, current->shared_bytes, 16);
}

void *dynamic_shared() { return shared; }

static bool is_before(const access &a, bool is_shared) {
    if (!a.time || a.thread == grid_thread(running)) return true;
    if (a.time < block_start) return is_shared; /* of another block: never ordered with this one */
    if (a.time < barrier_time) return true;
    const int other = static_cast<int>(a.thread % static_cast<uint32_t>(num_threads));
    return other / 32 == running / 32 && a.time < together[running / 32][other % 32][running % 32];
}

static const char *kind_of(const region &r) { return r.is_shared ? "shared" : "argument"; }

[[noreturn]] static void raise_race(uintptr_t place, uintptr_t address, const region &r, kind what, const access &other,
                                    const char *did) {
    const uint32_t threads = static_cast<uint32_t>(num_threads);
    raise(place, "race: it %s byte %zu of %s %s, which thread %u of block %u %s, with no barrier between",
          KIND_NAMES[static_cast<int>(what)], static_cast<size_t>(address - r.first), kind_of(r), r.name,
          other.thread % threads, other.thread / threads, did);
}

static void note_read(history &h) {
    const access mine = {now, grid_thread(running)};
    const int slot = h.read[0].thread == mine.thread || h.read[0].time < h.read[1].time ? 0 : 1;
    h.read[h.read[1].thread == mine.thread && h.read[1].time ? 1 : slot] = mine;
}

static void check_order(const region &r, uintptr_t address, kind what, uintptr_t place) {
    history &h = r.bytes[address - r.first];
    if (!(what == kind::atomic && h.is_atomic) && !is_before(h.write, r.is_shared))
        raise_race(place, address, r, what, h.write, h.is_atomic ? "updated" : "wrote");
    if (what == kind::read) {
        if (r.is_shared && h.write.time < block_start)
            raise(place, "it reads byte %zu of shared %s, which its block has not written",
                  static_cast<size_t>(address - r.first), r.name);
        note_read(h);
        return;
    }
    for (const access &read : h.read)
        if (!is_before(read, r.is_shared)) raise_race(place, address, r, what, read, "read");
    h.write = {now, grid_thread(running)};
    h.is_atomic = what == kind::atomic;
}

static bool holds(const region &r, uintptr_t address) { return address >= r.first && address < r.end; }

static const region *argument_of(uintptr_t address) {
    if (last_argument < arguments.size() && holds(arguments[last_argument], address)) return &arguments[last_argument];
    for (last_argument = 0; last_argument < arguments.size(); last_argument++)
        if (holds(arguments[last_argument], address)) return &arguments[last_argument];
    return nullptr;
}

static const region *array_of(uintptr_t address) {
    for (const region &r : arrays)
        if (holds(r, address)) return &r;
    return nullptr;
}

/* An access that is not inside of any region: the message names the one that begins before it. */
[[noreturn]] static void raise_outside(const std::vector<region> &regions, uintptr_t address, size_t bytes, kind what,
                                       uintptr_t place) {
    const char *does = KIND_NAMES[static_cast<int>(what)];
    const region *near = nullptr;
    for (const region &r : regions)
        if (r.first <= address) near = &r;
    if (!near) raise(place, "it %s %zu bytes before every argument", does, bytes);
    raise(place, "it %s %zu bytes from byte %zu on of %s %s of %zu bytes", does, bytes,
          static_cast<size_t>(address - near->first), kind_of(*near), near->name,
          static_cast<size_t>(near->end - near->first));
}

static void check(uintptr_t address, size_t bytes, kind what, uintptr_t place) {
    if (address >= stacks && address < stacks_end) return;
    const bool is_shared = address - reinterpret_cast<uintptr_t>(shared) < SHARED_BYTES;
    /* Tables of constants, and what other lanes brought to a primitive. */
    if (!is_shared && what == kind::read && address >= image && address < image_end) return;
    const region *r = is_shared ? array_of(address) : argument_of(address);
    if (!r || address + bytes > r->end) raise_outside(is_shared ? arrays : arguments, address, bytes, what, place);
    if (current->counts) {
        if (what != kind::write) count_access(address, bytes, false, is_shared, place);
        if (what != kind::read) count_access(address, bytes, true, is_shared, place);
    }
    if (!r->is_written && what == kind::read) return; /* what nobody writes needs no order */
    if (!r->is_written) raise(place, "it writes argument %s, a pointer to const", r->name);
    for (size_t i = 0; i < bytes; i++) check_order(*r, address + i, what, place);
}

__attribute__((noinline)) void access_atomically(const void *address, size_t bytes) {
    check(reinterpret_cast<uintptr_t>(address), bytes, kind::atomic,
          reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}
}

#define PLACE reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define HOOK(name, bytes, what)                                                                                     \
    extern "C" void name(void *address) {                                                                           \
        emulation::check(reinterpret_cast<uintptr_t>(address), bytes, emulation::kind::what, PLACE);                \
    }
#define HOOKS(bytes)                                                                                                \
    HOOK(__tsan_read##bytes, bytes, read)                                                                           \
    HOOK(__tsan_write##bytes, bytes, write)                                                                         \
    HOOK(__tsan_unaligned_read##bytes, bytes, read)                                                                 \
    HOOK(__tsan_unaligned_write##bytes, bytes, write)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" void __tsan_read_range(void *address, size_t bytes) {
    emulation::check(reinterpret_cast<uintptr_t>(address), bytes, emulation::kind::read, PLACE);
}
extern "C" void __tsan_write_range(void *address, size_t bytes) {
    emulation::check(reinterpret_cast<uintptr_t>(address), bytes, emulation::kind::write, PLACE);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
