/* Kernel body, compiled once a SIMD level by aggregation.c. */

static void LEVEL(aggregate_one)(const sparse_rows *a, int64_t v, const float *restrict h, int64_t dim,
                                 float *restrict out) {
    const int64_t begin = a->indptr[v], end = a->indptr[v + 1];
    const float row_scale = a->row_scale ? a->row_scale[v] : 1.0f;
    for (int64_t start = 0; start < dim; start += BLOCK) {
        const int64_t n = dim - start < BLOCK ? dim - start : BLOCK;
        float sum[BLOCK];
        memset(sum, 0, (size_t)n * sizeof(float));
        if (v < a->num_self) {
            const float s = a->column_scale ? a->column_scale[v] : 1.0f;
            for (int64_t j = 0; j < n; j++) sum[j] = s * h[v * dim + start + j];
        }
        for (int64_t e = begin; e < end; e++) {
            if (e + PREFETCH_ROWS < end) {
                const float *ahead = h + (int64_t)a->indices[e + PREFETCH_ROWS] * dim + start;
                for (int64_t j = 0; j < n; j += 16) __builtin_prefetch(ahead + j);
            }
            const float *restrict row = h + (int64_t)a->indices[e] * dim + start;
            const float s = a->column_scale ? a->column_scale[a->indices[e]] : 1.0f;
            if (n == BLOCK)
                for (int64_t j = 0; j < BLOCK; j++) sum[j] += s * row[j];
            else
                for (int64_t j = 0; j < n; j++) sum[j] += s * row[j];
        }
        for (int64_t j = 0; j < n; j++) out[v * dim + start + j] = row_scale * sum[j];
    }
}
