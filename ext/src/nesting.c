#include "nesting.h"

/* Arcs that are looked up together: each reads memory at random places, which is prefetched first. */
enum { BLOCK_ARCS = 64 };

/* Count sources by their cluster, up to BLOCK_ARCS of them; returns the number of clusters found so far. */
static int32_t count_block(const nested_rows *s, const int32_t *source, int64_t length, int64_t unit,
                           int32_t num_touched)
{
    int32_t near[BLOCK_ARCS], num_near = 0;
    for (int64_t i = 0; i < length; i++) {
        int32_t other = s->unit_of[source[i]];
        near[num_near] = other;
        if (other >= 0)
            __builtin_prefetch(s->cluster + other);
        num_near += other >= 0 && other != unit;
    }
    for (int32_t i = 0; i < num_near; i++) {
        near[i] = s->cluster[near[i]];
        __builtin_prefetch(s->count + near[i], 1);
    }
    for (int32_t i = 0; i < num_near; i++) {
        s->touched[num_touched] = near[i];
        num_touched += s->count[near[i]]++ == 0;
    }
    return num_touched;
}

static int64_t block_after(int64_t first, int64_t end)
{
    return end - first < BLOCK_ARCS ? end - first : BLOCK_ARCS;
}

/* Prefetch what the first arcs of a row read. */
static void prefetch_row(const nested_rows *s, int64_t node)
{
    int64_t first = s->indptr[node], length = block_after(first, s->indptr[node + 1]);
    for (int64_t e = first; e < first + length; e++)
        __builtin_prefetch(s->unit_of + s->indices[e]);
}

/* Count the arcs into a unit by the cluster of their source; returns the number of clusters found. */
static int32_t count_sources(const nested_rows *s, int64_t unit)
{
    int32_t num_touched = 0;
    int64_t num_rows = s->unit_start[s->num_units];
    for (int64_t i = s->unit_start[unit]; i < s->unit_start[unit + 1]; i++) {
        if (i + 2 < num_rows)
            __builtin_prefetch(s->indices + s->indptr[s->node_of[s->row[i + 2]]]);
        if (i + 1 < num_rows)
            prefetch_row(s, s->node_of[s->row[i + 1]]);
        int64_t node = s->node_of[s->row[i]], end = s->indptr[node + 1];
        for (int64_t e = s->indptr[node]; e < end; e += BLOCK_ARCS)
            num_touched = count_block(s, s->indices + e, block_after(e, end), unit, num_touched);
    }
    return num_touched;
}

/* Also clears count. */
static int32_t best_cluster(const nested_rows *s, int64_t unit, int32_t num_touched, int64_t capacity)
{
    int32_t best = s->cluster[unit], most = s->count[best];
    int64_t num_rows = s->unit_start[unit + 1] - s->unit_start[unit];
    int is_own = 1;
    for (int32_t i = 0; i < num_touched; i++) {
        int32_t cluster = s->touched[i], count = s->count[cluster];
        s->count[cluster] = 0;
        if (cluster == s->cluster[unit] || s->size[cluster] + num_rows > capacity)
            continue;
        if (count > most || (count == most && !is_own && cluster < best)) {
            best = cluster;
            most = count;
            is_own = 0;
        }
    }
    return best;
}

int64_t propagate_clusters(nested_rows s, int64_t capacity, int64_t max_rounds)
{
    int64_t num_moves = 1;
    for (int64_t round = 0; round < max_rounds && num_moves; round++) {
        num_moves = 0;
        for (int64_t unit = 0; unit < s.num_units; unit++) {
            int32_t best = best_cluster(&s, unit, count_sources(&s, unit), capacity);
            if (best == s.cluster[unit])
                continue;
            int64_t num_rows = s.unit_start[unit + 1] - s.unit_start[unit];
            s.size[s.cluster[unit]] -= num_rows;
            s.size[best] += num_rows;
            s.cluster[unit] = best;
            num_moves++;
        }
    }
    return num_moves;
}
