#include "condense.h"

#include <stdlib.h>

static int is_outside(clustered_rows rows, int64_t c, int32_t u) {
    return u < rows.start[c] || u >= rows.start[c + 1];
}

void count_copies(clustered_rows rows, int64_t *region, int32_t *last) {
    region[0] = 0;
    for (int64_t c = 0; c < rows.num_clusters; c++) {
        region[c + 1] = region[c];
        for (int64_t e = rows.indptr[rows.start[c]]; e < rows.indptr[rows.start[c + 1]]; e++) {
            const int32_t u = rows.indices[e];
            if (!is_outside(rows, c, u) || last[u] == c) continue;
            last[u] = (int32_t)c;
            region[c + 1]++;
        }
    }
}

static int compare_ids(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* last[u] is the position of the newest copy of row u, which belongs to this cluster if it lies in its region. */
static void list_region(clustered_rows rows, int64_t c, int64_t first, int32_t *last, int32_t *copied_row) {
    int64_t end = first;
    for (int64_t e = rows.indptr[rows.start[c]]; e < rows.indptr[rows.start[c + 1]]; e++) {
        const int32_t u = rows.indices[e];
        if (!is_outside(rows, c, u) || last[u] >= first) continue;
        last[u] = (int32_t)end;
        copied_row[end++] = u;
    }
    qsort(copied_row + first, (size_t)(end - first), sizeof *copied_row, compare_ids);
    for (int64_t i = first; i < end; i++) last[copied_row[i]] = (int32_t)i;
}

void list_copies(clustered_rows rows, const int64_t *region, int32_t *last, int32_t *copied_row, int32_t *place) {
    for (int64_t c = 0; c < rows.num_clusters; c++) {
        list_region(rows, c, region[c], last, copied_row);
        for (int64_t e = rows.indptr[rows.start[c]]; e < rows.indptr[rows.start[c + 1]]; e++)
            place[e] = is_outside(rows, c, rows.indices[e]) ? last[rows.indices[e]] : -1;
    }
}
