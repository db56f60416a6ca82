#include "nesting.h"

/* Count the arcs into a unit by the cluster of their source; returns the number of clusters found. */
static int32_t count_sources(nested_rows s, int64_t unit)
{
    int32_t num_touched = 0;
    for (int64_t i = s.unit_start[unit]; i < s.unit_start[unit + 1]; i++) {
        int64_t node = s.node_of[s.row[i]];
        for (int64_t e = s.indptr[node]; e < s.indptr[node + 1]; e++) {
            int32_t source = s.row_of[s.indices[e]];
            if (source < 0 || s.unit_of[source] == unit)
                continue;
            int32_t cluster = s.cluster[s.unit_of[source]];
            if (s.count[cluster]++ == 0)
                s.touched[num_touched++] = cluster;
        }
    }
    return num_touched;
}

/* Also clears count. */
static int32_t best_cluster(nested_rows s, int64_t unit, int32_t num_touched, int64_t capacity)
{
    int32_t best = s.cluster[unit], most = s.count[best];
    int64_t num_rows = s.unit_start[unit + 1] - s.unit_start[unit];
    int is_own = 1;
    for (int32_t i = 0; i < num_touched; i++) {
        int32_t cluster = s.touched[i], count = s.count[cluster];
        s.count[cluster] = 0;
        if (cluster == s.cluster[unit] || s.size[cluster] + num_rows > capacity)
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
            int32_t best = best_cluster(s, unit, count_sources(s, unit), capacity);
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
