#include "row_cache.h"

static void take_out(row_cache *cache, int32_t row) {
    const int32_t newer = cache->newer[row], older = cache->older[row];
    cache->older[newer] = older;
    cache->newer[older] = newer;
    cache->newer[row] = -1;
}

static void put_newest(row_cache *cache, int32_t row) {
    const int32_t ring = (int32_t)cache->num_rows, newest = cache->older[ring];
    cache->older[row] = newest;
    cache->newer[row] = ring;
    cache->newer[newest] = row;
    cache->older[ring] = row;
}

static void fetch(row_cache *cache, int32_t row) {
    const int64_t size = cache->num_bytes[row];
    if (size > cache->capacity) return;
    while (cache->held_bytes + size > cache->capacity) {
        const int32_t oldest = cache->newer[cache->num_rows];
        cache->held_bytes -= cache->num_bytes[oldest];
        take_out(cache, oldest);
    }
    cache->held_bytes += size;
    put_newest(cache, row);
}

void use_rows(row_cache *cache, const int32_t *row, int64_t num_uses, uint8_t *missed) {
    for (int64_t i = 0; i < num_uses; i++) {
        missed[i] = cache->newer[row[i]] < 0;
        if (missed[i]) {
            fetch(cache, row[i]);
        } else {
            take_out(cache, row[i]);
            put_newest(cache, row[i]);
        }
    }
}
