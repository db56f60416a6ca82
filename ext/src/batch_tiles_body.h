/* Kernel body, compiled once per SIMD level by batch_tiles.c. */

#undef COLUMNS
#define COLUMNS 64

/* Bits p of BYTE_ROWS rows of COLUMNS shifted codes: one byte per column, its lowest bit from the first row. */
static inline void LEVEL(plane_bytes)(uint8_t codes[BYTE_ROWS][COLUMNS], int p, uint8_t *bytes) {
    for (int c = 0; c < COLUMNS; c++) bytes[c] = 0;
    for (int r = 0; r < BYTE_ROWS; r++)
#pragma omp simd
        for (int c = 0; c < COLUMNS; c++) bytes[c] |= (uint8_t)((codes[r][c] >> p & 1) << r);
}

/* Pack rows of codes, shifted to begin at zero, into zeroed planes of columns: num_lines of line_bytes per plane. */
static void LEVEL(pack_columns)(const int8_t *rows, int64_t num_rows, const signed_rows *h, uint8_t *planes,
                                int64_t num_lines, int64_t line_bytes) {
    const int64_t dim = h->dim;
    const int shift = 1 << (h->bit_width - 1);
    for (int64_t first = 0; first < dim; first += COLUMNS) {
        const int64_t n = dim - first < COLUMNS ? dim - first : COLUMNS;
        for (int64_t i = 0; i < num_rows; i += BYTE_ROWS) {
            uint8_t codes[BYTE_ROWS][COLUMNS] = {{0}}, bytes[COLUMNS];
            for (int64_t r = 0; r < BYTE_ROWS && i + r < num_rows; r++) {
                memcpy(codes[r], rows + (i + r) * dim + first, (size_t)n);
#pragma omp simd
                for (int64_t c = 0; c < COLUMNS; c++) codes[r][c] = (uint8_t)(codes[r][c] + shift);
            }
            for (int p = 0; p < h->bit_width; p++) {
                uint8_t *line = planes + (p * num_lines + first) * line_bytes + i / BYTE_ROWS;
                LEVEL(plane_bytes)(codes, p, bytes);
                for (int64_t c = 0; c < n; c++) line[c * line_bytes] = bytes[c];
            }
        }
    }
}
