#include "partition.h"

int has_symmetric_rows(int64_t num_nodes, const int64_t *indptr, const int32_t *indices, int64_t *cursor)
{
    for (int64_t v = 0; v < num_nodes; v++)
        cursor[v] = indptr[v];
    for (int64_t v = 0; v < num_nodes; v++) {
        for (int64_t e = indptr[v]; e < indptr[v + 1]; e++) {
            int64_t u = indices[e];
            if (cursor[u] == indptr[u + 1] || indices[cursor[u]] != v)
                return 0;
            cursor[u]++;
        }
    }
    return 1;
}
