#include "row_cache.h"

#include "use_ring.h"

static void fetch(row_cache *cache, int32_t row) {
    const int64_t size = cache->num_bytes[row];
    if (size > cache->capacity) return;
    while (cache->held_bytes + size > cache->capacity) {
        const int32_t oldest = cache->newer[cache->num_rows];
        cache->held_bytes -= cache->num_bytes[oldest];
        take_out(cache->newer, cache->older, oldest);
    }
    cache->held_bytes += size;
    put_newest(cache->newer, cache->older, cache->num_rows, row);
}

void use_rows(row_cache *cache, const int32_t *row, int64_t num_uses, uint8_t *missed) {
    for (int64_t i = 0; i < num_uses; i++) {
        missed[i] = cache->newer[row[i]] < 0;
        if (missed[i]) {
            fetch(cache, row[i]);
        } else {
            take_out(cache->newer, cache->older, row[i]);
            put_newest(cache->newer, cache->older, cache->num_rows, row[i]);
        }
    }
}
