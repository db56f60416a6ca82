#include "aggregation.h"

#define MAX_VECTORS 8       /* sums kept in registers; narrow blocks of a table also stay in cache longer */
#define PREFETCH_ENTRIES 64 /* rows fetched ahead, across the ends of sums too; half of it where they are long */
#define CACHE_LINE 64

enum { UNWEIGHTED = 0, BY_COLUMN = 1, BY_ENTRY = 2 };

/* The columns [first, first + num_columns) that one pass over a row's entries sums. */
typedef struct {
    int64_t first, num_columns, head;
} column_block;

#define BODY "aggregation_body.h"
#include "levels.h"

typedef void (*task_function)(const sparse_rows *, const dense_rows *, int64_t, int, void *);
static const task_function TASK[] = ALL_LEVELS(aggregate_task);

void aggregate_rows(sparse_rows a, dense_rows h, int accumulate, void *out) {
    const task_function run = TASK[simd_level()];
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t t = 0; t < a.num_tasks; t++) run(&a, &h, t, accumulate, out);
}
