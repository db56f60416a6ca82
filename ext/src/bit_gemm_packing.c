#include "bit_gemm_packing.h"

#define CHUNK 512  /* codes of a row at once, a multiple of 32 */
#define COLUMNS 64 /* lines written at once */

#define BODY "bit_gemm_packing_body.h"
#include "levels.h"

typedef void (*pack_function)(const code_source *, const bit_planes *, int64_t);
typedef void (*unpack_function)(const bit_planes *, int64_t, int64_t, uint8_t *);
typedef int64_t (*sum_function)(const bit_planes *, int64_t);
static const pack_function PACK_ROW[] = ALL_LEVELS(pack_row), PACK_COLUMNS[] = ALL_LEVELS(pack_column_block);
static const unpack_function UNPACK[] = ALL_LEVELS(unpack_line);
static const sum_function SUM[] = ALL_LEVELS(sum_line);

void pack_rows(code_source source, bit_planes planes) {
    const pack_function pack = PACK_ROW[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < source.num_rows; row++) pack(&source, &planes, row);
}

void pack_columns(code_source source, bit_planes planes) {
    const pack_function pack = PACK_COLUMNS[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < source.num_columns; first += COLUMNS) pack(&source, &planes, first);
}

void unpack_lines(bit_planes planes, int64_t num_lines, int64_t length, uint8_t *codes) {
    const unpack_function unpack = UNPACK[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < num_lines; line++) unpack(&planes, line, length, codes + line * length);
}

void sum_lines(bit_planes planes, int64_t num_lines, int64_t *sums) {
    const sum_function sum = SUM[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t line = 0; line < num_lines; line++) sums[line] = sum(&planes, line);
}
