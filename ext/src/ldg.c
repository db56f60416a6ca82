#include "ldg.h"

static void count_neighbors(neighbor_rows graph, int64_t v, const int32_t *owner, int64_t *neighbor_count)
{
    for (int64_t e = graph.indptr[v]; e < graph.indptr[v + 1]; e++) {
        int32_t part = owner[graph.indices[e]];
        if (part >= 0)
            neighbor_count[part]++;
    }
}

/* Also clears neighbor_count for the next node. */
static int32_t best_part(int32_t num_parts, double capacity, int64_t *neighbor_count, const int64_t *size)
{
    int32_t best = -1;
    double best_score = -1.0;
    for (int32_t part = 0; part < num_parts; part++) {
        double score = (double)neighbor_count[part] * (1.0 - (double)size[part] / capacity);
        neighbor_count[part] = 0;
        if ((double)size[part] + 1.0 > capacity)
            continue;
        if (best < 0 || score > best_score || (score == best_score && size[part] < size[best])) {
            best = part;
            best_score = score;
        }
    }
    return best;
}

void ldg_assign(neighbor_rows graph, const int32_t *order, int32_t num_parts, double capacity,
                int64_t *neighbor_count, int64_t *size, int32_t *owner)
{
    for (int64_t i = 0; i < graph.num_nodes; i++) {
        int64_t v = order[i];
        count_neighbors(graph, v, owner, neighbor_count);
        int32_t part = best_part(num_parts, capacity, neighbor_count, size);
        owner[v] = part;
        size[part]++;
    }
}
