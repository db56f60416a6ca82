#include "aggregation.h"

#define MAX_VECTORS 8       /* sums kept in registers */
#define BLOCK_MARGIN 128    /* columns; at most so many are read at once, past a row's end too */
#define PREFETCH_ENTRIES 64 /* rows fetched ahead, across the ends of sums too; half of it where they are long */
#define CACHE_LINE 64

enum { UNWEIGHTED = 0, BY_COLUMN = 1, BY_ENTRY = 2 };

/* Blocks of whole vectors; blocks that end within one; blocks some of whose rows are packed. */
enum { WHOLE, PARTIAL, PACKED };

/* The columns [first, first + num_columns), of one head, that one pass over a row's entries sums. */
typedef struct {
    int64_t first, num_columns, head;
} column_block;

/* Where the block's columns of row 0 would lie in each table, and the highest row of each whose vectors may be read whole:
 * those that pass a row's end are read from the next row, and never stored. */
typedef struct {
    const char *near, *far;
    int64_t row_bytes, whole_near, whole_far;
} block_tables;

#define BODY "aggregation_body.h"
#include "levels.h"

typedef void (*task_function)(const sparse_rows *, const dense_rows *, int64_t, int64_t, int, char *);
static const task_function TASK[] = ALL_LEVELS(aggregate_task);

void aggregate_rows(sparse_rows a, dense_rows h, int accumulate, void *out) {
    const task_function run = TASK[simd_level()];
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < a.num_heads * a.num_tasks; i++)
        run(&a, &h, i % a.num_tasks, i / a.num_tasks, accumulate, out);
}
