/* A ring of the items that a buffer holds, in the order of use: `newer` and `older` of an item are its neighbors, the
   ring begins and ends at the entry after the last item, and `newer` is -1 for an item that is not held. */
#ifndef HPCGNN_USE_RING_H
#define HPCGNN_USE_RING_H

#include <stdint.h>

static inline void take_out(int32_t *newer_of, int32_t *older_of, int32_t item) {
    const int32_t newer = newer_of[item], older = older_of[item];
    older_of[newer] = older;
    newer_of[older] = newer;
    newer_of[item] = -1;
}

static inline void put_newest(int32_t *newer_of, int32_t *older_of, int64_t num_items, int32_t item) {
    const int32_t ring = (int32_t)num_items, newest = older_of[ring];
    older_of[item] = newest;
    newer_of[item] = ring;
    newer_of[newest] = item;
    older_of[ring] = item;
}

#endif
