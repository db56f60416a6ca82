#include "rivals.h"

#define BODY "rivals_body.h"
#include "levels.h"

typedef void (*count_function)(const float *, int64_t, float, int64_t *, int64_t *);
static const count_function COUNT_ROW[] = ALL_LEVELS(count_row);

void count_rivals(const float *products, int64_t num_columns, const int64_t *row, const float *bar,
                  int64_t num_answers, int64_t *better, int64_t *equal) {
    const count_function count_row = COUNT_ROW[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < num_answers; i++)
        count_row(products + row[i] * num_columns, num_columns, bar[i], &better[i], &equal[i]);
}
