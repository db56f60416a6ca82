#include "maximum.h"

#define MAX_VECTORS 8 /* of a block of columns, whose maxima one pass over a row's entries finds */
#define PREFETCH_ENTRIES 32
#define CACHE_LINE 64


#define BODY "maximum_body.h"
#include "levels.h"

typedef void (*forward_function)(const maximum_rows *, int64_t, const void *, int64_t, int64_t, int, void *, int32_t *);
static const forward_function FORWARD[] = ALL_LEVELS(maximum_task);

void maximum_forward(maximum_rows a, const void *rows, int64_t num_rows, int64_t dim, int storage, void *out,
                     int32_t *argmax) {
    const forward_function run = FORWARD[simd_level()];
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t t = 0; t < a.num_tasks; t++) run(&a, t, rows, num_rows, dim, storage, out, argmax);
}

typedef void (*backward_function)(const maximum_rows *, int64_t, const void *, const int32_t *, int64_t, int64_t, int,
                                  void *);
static const backward_function BACKWARD[] = ALL_LEVELS(maximum_backward_task);

void maximum_backward(maximum_rows transposed, const void *gradient, const int32_t *argmax, int64_t num_rows,
                      int64_t dim, int storage, void *out) {
    const backward_function run = BACKWARD[simd_level()];
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t t = 0; t < transposed.num_tasks; t++)
        run(&transposed, t, gradient, argmax, num_rows, dim, storage, out);
}
