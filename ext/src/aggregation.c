#include "aggregation.h"

#define MAX_VECTORS 8       /* sums kept in registers */
#define BLOCK_MARGIN 128    /* columns: the most that are read at once, even past a row's end */
#define PREFETCH_ENTRIES 64 /* rows prefetched ahead, across the ends of sums too; half as many if rows are long */
#define CACHE_LINE 64
#define CACHE_BYTES (1 << 23) /* of source rows' columns that are read again and again; a share of the last cache */

enum { UNWEIGHTED = 0, BY_COLUMN = 1, BY_ENTRY = 2 };

/* Kinds of blocks: of whole vectors, ending within a vector, or with some packed rows. */
enum { WHOLE, PARTIAL, PACKED };

/* The columns [first, first + num_columns), of one head. */
typedef struct {
    int64_t first, num_columns, head;
} column_block;

/* Per table, where the block's columns of row 0 would lie, and the last row whose vectors may be read whole: a vector
 * that passes a row's end reads from the next row, which is never stored. Addresses, not pointers: row 0 of a far table
 * lies before its memory, and a table without rows has no memory. */
typedef struct {
    uintptr_t near, far;
    int64_t row_bytes, whole_near, whole_far;
} block_tables;

#define BODY "aggregation_body.h"
#include "levels.h"

typedef void (*task_function)(const sparse_rows *, const dense_rows *, int64_t, column_block, int, char *);
static const task_function TASK[] = ALL_LEVELS(aggregate_task);

/* Columns of a head that all tasks sum before any task goes on: BLOCK_MARGIN if the cache holds these of all source
 * rows but not all columns, else all columns. Passes are whole, so a row is summed in the same blocks either way. */
static int64_t span_columns(const dense_rows *h, int64_t head_dim) {
    const int64_t column_bytes = (h->num_near + h->num_far) * storage_bytes(h->storage);
    return column_bytes * head_dim > CACHE_BYTES && column_bytes * BLOCK_MARGIN <= CACHE_BYTES ? BLOCK_MARGIN
                                                                                              : head_dim;
}

void aggregate_rows(sparse_rows a, dense_rows h, int accumulate, void *out) {
    const task_function run = TASK[simd_level()];
    const int64_t head_dim = h.dim / a.num_heads, width = span_columns(&h, head_dim);
    const int64_t num_spans = (head_dim + width - 1) / width;
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < a.num_heads * num_spans * a.num_tasks; i++) {
        const int64_t head = i / a.num_tasks / num_spans, done = i / a.num_tasks % num_spans * width;
        const int64_t left = head_dim - done;
        run(&a, &h, i % a.num_tasks, (column_block){head * head_dim + done, left < width ? left : width, head},
            accumulate, out);
    }
}

static int has_bad_entry(const sparse_rows *a, int64_t v, int64_t num_columns, int64_t no_row, int64_t split) {
    const int64_t begin = a->begin[v], end = a->end[v];
    int is_bad = 0;
    if (begin < 0 || begin > end || end > a->num_entries) return 1;
    for (int64_t e = begin; e < end; e++) {
        const int64_t u = a->indices[e];
        is_bad |= (u < 0) | (u >= num_columns) | ((u >= no_row) & (u < split));
    }
    return is_bad;
}

int64_t first_bad_row(sparse_rows a, int64_t num_rows, int64_t num_columns, int64_t no_row, int64_t split) {
    int64_t first = num_rows;
#pragma omp parallel for schedule(static) reduction(min : first)
    for (int64_t v = 0; v < num_rows; v++)
        if (v < first && has_bad_entry(&a, v, num_columns, no_row, split)) first = v;
    return first == num_rows ? -1 : first;
}

int64_t first_outside(packed_rows rows, int64_t num_rows, int64_t dim, int64_t num_bytes) {
    for (int64_t i = 0; i < num_rows; i++) {
        const int64_t b = rows.bit_width[i], row_bytes = (dim * b + 7) / 8;
        if ((b != 1 && b != 2 && b != 4 && b != 8) || rows.payload_offset[i] < 0 || rows.parameter_offset[i] < 0 ||
            rows.payload_offset[i] > num_bytes - row_bytes || rows.parameter_offset[i] > num_bytes - 4)
            return i;
    }
    return -1;
}
