#include "integer_rows.h"
#include "numbers.h"

#define ROWS_A_TASK 32

#define BODY "integer_rows_body.h"
#include "levels.h"

typedef int (*range_function)(const integer_rows *, const row_target *, int64_t, int64_t, float *);
static const range_function RESCALE[] = ALL_LEVELS(rescale_range);

int rescale_rows(integer_rows source, row_target target) {
    const range_function rescale = RESCALE[simd_level()];
    const int64_t padded = padded_to(source.dim, 16);
    int faults = ROW_IS_FINE;
#pragma omp parallel reduction(| : faults)
    {
        float *scratch = malloc((size_t)padded * sizeof(float));
        if (!scratch) faults = NO_SCRATCH;
#pragma omp for schedule(dynamic, 1)
        for (int64_t first = 0; first < source.num_rows; first += ROWS_A_TASK) {
            const int64_t stop = first + ROWS_A_TASK < source.num_rows ? first + ROWS_A_TASK : source.num_rows;
            if (scratch) faults |= rescale(&source, &target, first, stop, scratch);
        }
        free(scratch);
    }
    return faults;
}
