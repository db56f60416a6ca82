/* Kernel body, compiled once per SIMD level by rivals.c. */

/* Columns whose counts fit 32 bits, so that the compiler counts in as many lanes as it compares. */
#define COUNTED_AT_ONCE (1 << 20)

static void LEVEL(count_row)(const float *restrict row, int64_t num_columns, float bar, int64_t *better,
                             int64_t *equal) {
    *better = *equal = 0;
    for (int64_t first = 0; first < num_columns; first += COUNTED_AT_ONCE) {
        const int64_t left = num_columns - first;
        const int32_t size = (int32_t)(left < COUNTED_AT_ONCE ? left : COUNTED_AT_ONCE);
        int32_t above = 0, alike = 0;
        for (int32_t j = 0; j < size; j++) {
            above += row[first + j] > bar;
            alike += row[first + j] == bar;
        }
        *better += above;
        *equal += alike;
    }
}
#undef COUNTED_AT_ONCE
