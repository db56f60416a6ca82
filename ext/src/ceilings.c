#include "ceilings.h"

#include <omp.h>

#define GATHER_SUMS 8     /* accumulators, enough to hide the latency of an addition */
#define GATHER_CHUNK 4096 /* entries that a thread takes at once */
#define CACHE_LINE 64

#define BODY "ceilings_body.h"
#include "levels.h"

typedef float (*read_function)(const float *, int64_t);
typedef float (*gather_function)(const gather *, int64_t, int64_t);
static const read_function READ[] = ALL_LEVELS(read_piece);
static const gather_function GATHER[] = ALL_LEVELS(gather_chunk);

/* This thread's piece of num_bytes: whole pages, but for the last. */
static void piece_of(int64_t num_bytes, int64_t *first, int64_t *size) {
    const int64_t page = 4096, pages = (num_bytes + page - 1) / page;
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t begin = pages * thread / threads * page, end = pages * (thread + 1) / threads * page;
    *first = begin;
    *size = (end < num_bytes ? end : num_bytes) - begin;
    if (*size < 0) *size = 0;
}

float stream_read(const void *source, int64_t num_bytes) {
    const read_function read = READ[simd_level()];
    float sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        int64_t first, size;
        piece_of(num_bytes, &first, &size);
        sum += read((const float *)((const char *)source + first), size / 4);
    }
    return sum;
}

/* The C library's own memset and memcpy: they go around the cache where that pays. */
void stream_write(void *target, int64_t num_bytes, int value) {
#pragma omp parallel
    {
        int64_t first, size;
        piece_of(num_bytes, &first, &size);
        memset((char *)target + first, value, (size_t)size);
    }
}

void stream_copy(void *target, const void *source, int64_t num_bytes) {
#pragma omp parallel
    {
        int64_t first, size;
        piece_of(num_bytes, &first, &size);
        memcpy((char *)target + first, (const char *)source + first, (size_t)size);
    }
}

float gather_sum(gather g) {
    const gather_function gather_entries = GATHER[simd_level()];
    float sum = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : sum)
    for (int64_t first = 0; first < g.num_indices; first += GATHER_CHUNK) {
        const int64_t end = first + GATHER_CHUNK < g.num_indices ? first + GATHER_CHUNK : g.num_indices;
        sum += gather_entries(&g, first, end);
    }
    return sum;
}
