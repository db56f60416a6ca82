/* Kernel body, compiled once a SIMD level by pointwise.c. */

static void LEVEL(dropout_one)(const float *restrict x, int64_t dim, int64_t node_id, counter_key key,
                               uint32_t threshold, float scale, float *restrict out) {
    philox_block draws;
    for (int64_t start = 0; start < dim; start += CHUNK) {
        const int64_t n = dim - start < CHUNK ? dim - start : CHUNK;
        philox_draws(key, node_id, (uint32_t)(start / PHILOX_DRAWS), &draws);
        for (int64_t j = 0; j < n; j++) out[start + j] = draws.of[j] >= threshold ? x[start + j] * scale : 0.0f;
    }
}
