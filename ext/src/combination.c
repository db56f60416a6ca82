#define _GNU_SOURCE /* syscall, of amx.h */
#include "combination.h"

#include "amx.h"

#define BLOCK_WORDS 384 /* words of a row at a time, so that those of a task stay in the nearest cache */
#define MOST_TASK_ROWS 32
#define TASKS_AT_ONCE 4 /* per thread, which prefetches the rows of the next task */
#define SURVEY_BYTES 16384

#define BODY "combination_body.h"
#include "byte_levels.h"

typedef void (*panel_function)(const weight_rows *, int64_t, int, const weight_panels *);
typedef void (*task_function)(const code_rows *, const weight_panels *, int64_t, uint32_t *, int32_t *);
typedef int64_t (*survey_function)(const uint8_t *, int64_t, int, int *);
typedef int64_t (*number_function)(void);
typedef void (*plain_function)(void);
static const panel_function FILL_WEIGHTS[] = BYTE_LEVELS(fill_weights);
static const task_function MULTIPLY[] = BYTE_LEVELS(multiply_task);
static const survey_function SURVEY[] = BYTE_LEVELS(survey_block);
static const number_function TASK_ROWS_OF[] = BYTE_LEVELS(task_rows);
static const plain_function BEGIN[] = BYTE_LEVELS(begin_products), END[] = BYTE_LEVELS(end_products);

static void *aligned(int64_t bytes) { return aligned_alloc(64, (size_t)(parts(bytes, 64) * 64 + 64)); }

int combine_dense(code_rows rows, weight_rows weight, int32_t *out) {
    const int kernel = byte_level();
    const int64_t lanes = PANEL_OUTPUTS[kernel], num_panels = parts(weight.num_outputs, lanes);
    const int64_t task_rows = TASK_ROWS_OF[kernel]();
    weight_panels panels = {.num_words = words_of_row(kernel, rows.dim), .num_panels = num_panels,
                            .num_outputs = weight.num_outputs};
    panels.words = aligned(num_panels * panels.num_words * lanes * 4);
    panels.base = aligned(num_panels * lanes * 4);
    int is_short = !panels.words || !panels.base;
    if (!is_short) {
#pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < num_panels; p++) FILL_WEIGHTS[kernel](&weight, p, rows.is_signed, &panels);
#pragma omp parallel reduction(| : is_short)
        {
            uint32_t *scratch = aligned(MOST_TASK_ROWS * BLOCK_WORDS * 4);
            is_short = !scratch;
            BEGIN[kernel]();
#pragma omp for schedule(dynamic, TASKS_AT_ONCE)
            for (int64_t first = 0; first < rows.num_rows; first += task_rows)
                if (scratch) MULTIPLY[kernel](&rows, &panels, first, scratch, out);
            END[kernel]();
            free(scratch);
        }
    }
    free(panels.words);
    free(panels.base);
    return !is_short;
}

code_survey survey_codes(code_rows rows) {
    const survey_function survey = SURVEY[byte_level()];
    const int64_t size = rows.num_rows * rows.dim;
    int64_t num_zeros = 0;
    int seen = 0;
#pragma omp parallel for schedule(static) reduction(+ : num_zeros) reduction(| : seen)
    for (int64_t first = 0; first < size; first += SURVEY_BYTES)
        num_zeros += survey(rows.codes + first, least(SURVEY_BYTES, size - first), rows.is_signed, &seen);
    code_survey found = {size - num_zeros, rows.is_signed != 0};
    for (; seen; seen >>= 1) found.bit_width++;
    return found;
}
