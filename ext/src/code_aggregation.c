#include "code_aggregation.h"

#define MAX_VECTORS 8          /* partial sums kept in registers */
#define ENTRIES_A_FLUSH 256    /* 256 codes of 8 bits fit a sum of 16: 256 * -128 and 256 * 255 */
#define LARGEST_ROW 8421504    /* entries whose codes fit a sum of 32 bits: 2^31 / 255 */
#define PREFETCH_ENTRIES 32    /* rows fetched ahead, across the ends of sums too */
#define CACHED_BYTES (1 << 18) /* codes that need no fetching ahead */
#define CACHE_LINE 64
#define TASK_WORK 4096 /* entries per task, about */
#define ROW_WORK 8     /* what a row costs beside its entries */

/* Columns first .. first + num_columns - 1; rows up to whole_to may be read in whole vectors, into the next row. */
typedef struct {
    int64_t first, num_columns, whole_to;
} code_block;

#define BODY "code_aggregation_body.h"
#include "levels.h"

typedef int (*task_function)(const code_rows *, int64_t, int64_t, int32_t *);
static const task_function TASK[] = ALL_LEVELS(sum_rows);

static int check_rows(const code_rows *a) {
    for (int64_t v = 0; v < a->num_rows; v++) {
        const int64_t begin = a->indptr[v], end = a->indptr[v + 1];
        if (begin < 0 || begin > end || end > a->num_entries) return CODES_BAD_INDPTR;
        if (end - begin > LARGEST_ROW) return CODES_TOO_MANY;
    }
    return CODES_SUMMED;
}

/* The first row before which all rows together make up at least `work`. */
static int64_t row_at(const code_rows *a, int64_t work) {
    int64_t low = 0, high = a->num_rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (a->indptr[middle] + ROW_WORK * middle < work)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int sum_code_rows(code_rows a, int32_t *out) {
    const task_function run = TASK[simd_level()];
    const int64_t num_tasks = (a.num_entries + ROW_WORK * a.num_rows) / TASK_WORK + 1;
    int fault = check_rows(&a);
    if (fault) return fault;
#pragma omp parallel for schedule(dynamic, 1) reduction(max : fault) if (num_tasks > 1)
    for (int64_t t = 0; t < num_tasks; t++) {
        const int64_t end = t + 1 < num_tasks ? row_at(&a, (t + 1) * TASK_WORK) : a.num_rows;
        const int found = run(&a, row_at(&a, t * TASK_WORK), end, out);
        fault = found > fault ? found : fault;
    }
    return fault;
}
