#include "combination_sparse.h"
#include "package_positions.h"

#include <stdlib.h>

#define TABLE_COLUMNS 8 /* columns of weights that are transposed together */
#define SCAN_COLUMNS 64  /* columns that are scanned together */
#define EAGER_COLUMNS 4  /* columns listed at a time, even if fewer are there; also the slack of a list */
#define LARGEST_HALF 32767

/* Weights by column: row k holds the weights of column k as int16, outputs in the level's own order. */
typedef struct {
    int16_t *weights;
    int64_t row_length, num_outputs;
    int64_t num_addends; /* number of weights whose sum always fits int16 */
} weight_table;

/* The codes of one row that are not zero. For whole products their number is made even by a zero. For products bit by
 * bit, `plane` holds the columns whose bit is set; codes have num_bits bits, with has_signs the highest is the sign. */
typedef struct {
    int32_t *column, *plane;
    int16_t *code;
    int64_t count;
    int num_bits, has_signs;
} row_entries;

/* Appends column first + i for each set bit i, and returns the number of them; writes up to EAGER_COLUMNS more. */
static inline int64_t append_columns(uint64_t found, int64_t first, int32_t *column) {
    const int64_t count = __builtin_popcountll(found);
    int64_t i = 0;
    do {
        for (int eager = 0; eager < EAGER_COLUMNS; eager++, found &= found - 1)
            column[i + eager] = (int32_t)first + __builtin_ctzll(found | UINT64_C(1) << 63);
        i += EAGER_COLUMNS;
    } while (i < count);
    return count;
}

#define BODY "combination_sparse_body.h"
#include "levels.h"

typedef void (*table_function)(const weight_rows *, int64_t, const weight_table *);
typedef void (*list_function)(const code_rows *, int64_t, row_entries *);
typedef int (*read_function)(row_reader *, row_entries *);
typedef void (*sum_function)(row_entries *, const weight_table *, int, int32_t *);
static const table_function FILL_TABLE[] = ALL_LEVELS(fill_table);
static const list_function LIST[] = ALL_LEVELS(list_codes);
static const read_function READ[] = ALL_LEVELS(read_codes);
static const sum_function SUM[] = ALL_LEVELS(sum_entries);
static const int LANES_OF[] = {4, 8, 16};

static void *aligned(int64_t bytes) { return aligned_alloc(64, (size_t)((bytes + 127) / 64 * 64)); }

/* A power of two that no weight passes in magnitude. */
static int largest_weight(const weight_rows *weight) {
    const int64_t size = weight->num_outputs * weight->dim;
    uint8_t seen = 0;
    for (int64_t i = 0; i < size; i++) seen |= (uint8_t)(weight->codes[i] ^ weight->codes[i] >> 7);
    int largest = 1;
    for (; seen; seen >>= 1) largest *= 2;
    return largest;
}

/* Returns whether memory sufficed. */
static int make_table(const weight_rows *weight, weight_table *table) {
    const int64_t step = 2 * LANES_OF[simd_level()];
    *table = (weight_table){NULL, (weight->num_outputs + step - 1) / step * step, weight->num_outputs, 0};
    table->weights = aligned(weight->dim * table->row_length * 2);
    if (!table->weights) return 0;
    table->num_addends = LARGEST_HALF / largest_weight(weight);
    const table_function fill = FILL_TABLE[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < weight->dim; first += TABLE_COLUMNS) fill(weight, first, table);
    return 1;
}

/* Room for a row; returns whether memory sufficed. free_entries must follow in any case. */
static int make_entries(row_entries *entries, int64_t dim) {
    const int64_t room = dim + EAGER_COLUMNS + 1;
    *entries = (row_entries){aligned(room * 4), aligned(room * 4), aligned(room * 2), 0, 0, 0};
    return entries->column && entries->plane && entries->code;
}

static void free_entries(row_entries *entries) {
    free(entries->column);
    free(entries->plane);
    free(entries->code);
}

int combine_sparse(code_rows rows, weight_rows weight, int is_by_bit, int32_t *out) {
    const list_function list = LIST[simd_level()];
    const sum_function sum = SUM[simd_level()];
    weight_table table;
    int is_short = !make_table(&weight, &table);
#pragma omp parallel if (!is_short) reduction(| : is_short)
    {
        row_entries entries;
        is_short |= !make_entries(&entries, rows.dim);
#pragma omp for schedule(dynamic, 16)
        for (int64_t row = 0; row < rows.num_rows; row++) {
            if (is_short) continue;
            list(&rows, row, &entries);
            sum(&entries, &table, is_by_bit, out + row * weight.num_outputs);
        }
        free_entries(&entries);
    }
    free(table.weights);
    return !is_short;
}

package_fault combine_packages(const packages *p, int64_t first, int64_t last, weight_rows weight, int is_by_bit,
                               int32_t *out) {
    const read_function read = READ[simd_level()];
    const sum_function sum = SUM[simd_level()];
    package_fault found = {PACKAGES_WHOLE, INT64_MAX};
    weight_table table;
    if (!make_table(&weight, &table)) return (package_fault){NO_MEMORY, 0};
#pragma omp parallel
    {
        row_entries entries;
        row_reader reader;
        package_reader *values = &reader.values;
        const int has_entries = make_entries(&entries, p->dim), is_short = !open_rows(&reader, p) || !has_entries;
#pragma omp for schedule(dynamic, 1)
        for (int64_t begin = first / p->interval * p->interval; begin < last; begin += p->interval) {
            int64_t row = begin;
            values->fault = is_short ? NO_MEMORY : PACKAGES_WHOLE;
            if (!is_short && start_at(values, begin) && start_block(values, &reader.place, begin))
                for (; row < least(begin + p->interval, last); row++) {
                    if (!read(&reader, &entries)) break;
                    if (row >= first) sum(&entries, &table, is_by_bit, out + (row - first) * weight.num_outputs);
                    if (!check_place(values, row + 1) || !check_block(values, &reader.place, row + 1)) break;
                }
            if (values->fault) {
#pragma omp critical(combination_fault)
                if (row < found.row) found = (package_fault){values->fault, row};
            }
        }
        free_entries(&entries);
        close_rows(&reader);
    }
    free(table.weights);
    if (!found.code && p->num_rows == 0) return fault_of_nothing(p);
    return found;
}
