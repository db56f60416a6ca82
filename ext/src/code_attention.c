#include "code_attention.h"

#define ROWS_A_TASK 16
#define LOG2_E 1549082005LL                     /* log2(e) 2^30 */
#define STEP_BITS 20                            /* bits of the exponent that the tables resolve */
#define FARTHEST (17LL << SCORE_BITS)           /* exp(-17) is less than half a unit of weights, 2^-24 */
#define LOW_BITS 11
#define ENTRIES 1024                            /* of a row, weighed together; sums up to 2^12 2^7 2^10 fit int32 */
#define COLUMNS 4                               /* vectors of columns that are summed in registers */
#define AHEAD 8                                 /* entries whose row is fetched before it is read */

typedef struct {
    int64_t index;
    int32_t high, low;
} attended_row;

#define BODY "code_attention_body.h"
#include "levels.h"

typedef int (*row_function)(const code_attention *, int64_t, int64_t *, float *);
typedef void (*score_function)(const code_attention *, const double *, int64_t, int64_t *, int64_t *);
static const row_function ATTEND[] = ALL_LEVELS(attend_row);
static const score_function SCORE[] = ALL_LEVELS(score_row);

void score_codes(code_attention a, const double *vectors, int64_t *target, int64_t *source) {
    const score_function score_row = SCORE[simd_level()];
#pragma omp parallel for schedule(static)
    for (int64_t u = 0; u < a.num_codes; u++) score_row(&a, vectors, u, target, source);
}

int attend_codes(code_attention a, float *out) {
    const row_function attend_row = ATTEND[simd_level()];
    int fault = 0;
#pragma omp parallel reduction(max : fault)
    {
        int64_t *sums = malloc((size_t)(a.dim / a.num_heads) * sizeof(int64_t));
        if (!sums) fault = 3;
#pragma omp for schedule(dynamic, ROWS_A_TASK)
        for (int64_t v = 0; v < a.num_rows; v++) {
            const int found = sums ? attend_row(&a, v, sums, out + v * a.dim) : 3;
            fault = found > fault ? found : fault;
        }
        free(sums);
    }
    return fault;
}
