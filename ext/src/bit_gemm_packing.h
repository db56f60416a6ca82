/* Matrices to planes of bits and back; bit_gemm.h has the layout of lines. */
#ifndef HPCGNN_BIT_GEMM_PACKING_H
#define HPCGNN_BIT_GEMM_PACKING_H
#include <stdint.h>

/* Rows of codes, a byte each, or of float32 values, whose codes are floor((value - low) / step + offset), clamped. */
typedef struct {
    const void *rows;
    int is_float;
    int64_t num_rows, num_columns;
    const float *low, *step; /* one, or one a line */
    int is_per_line;
    float offset;
} code_source;

typedef struct {
    uint32_t *words; /* (num_planes, num_padded, line_words), zeros where no code lies */
    int num_planes;
    int64_t num_padded, line_words;
} bit_planes;

/* Lines are the rows of the source, or its columns. */
void pack_rows(code_source source, bit_planes planes);
void pack_columns(code_source source, bit_planes planes);
/* Codes of the first num_lines lines, (num_lines, length). */
void unpack_lines(bit_planes planes, int64_t num_lines, int64_t length, uint8_t *codes);
/* Sum of the codes of each line. */
void sum_lines(bit_planes planes, int64_t num_lines, int64_t *sums);
#endif
