#include "combination.h"

#include <stdlib.h>

#define TASK_ROWS 24    /* of one task, a multiple of every level's ROWS */
#define BLOCK_WORDS 384 /* of a row's codes at a time: a task's stay in the nearest cache */
#define TASKS_AT_ONCE 4 /* of one thread: it fetches the rows of the next one */
#define CACHE_LINE 64
#define SURVEY_BYTES 16384

/* The weights in the order in which the dense product reads them: panel[p][w] holds, for each output of panel p, the
 * weights that meet word w of a row's codes. */
typedef struct {
    uint32_t *words;
    int64_t num_words, num_panels, num_outputs;
    int32_t *base; /* what the sums of all rows begin with, by output */
} weight_panels;

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t parts(int64_t number, int64_t size) { return (number + size - 1) / size; }

#define BODY "combination_body.h"
#include "levels.h"
#if HPCGNN_LEVELS == 3
/* Cascade Lake, Zen 4 and later sum four products of bytes in one instruction. */
BEGIN_TARGET(AVX512_VNNI)
#define LEVEL_NAME vnni
#define LEVEL_LANES 16
#define LEVEL_SUMS_BYTES
#include BODY
#undef LEVEL_SUMS_BYTES
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#define KERNEL(name) {name##_portable, name##_avx2, name##_avx512, name##_vnni}
#else
#define KERNEL(name) {name##_portable}
#endif

typedef void (*panel_function)(const weight_rows *, int64_t, int, const weight_panels *);
typedef void (*task_function)(const code_rows *, const weight_panels *, int64_t, uint32_t *, int32_t *);
typedef int64_t (*survey_function)(const uint8_t *, int64_t, int, int *);
static const panel_function FILL_PANEL[] = KERNEL(fill_panel);
static const task_function MULTIPLY[] = KERNEL(multiply_task);
static const survey_function SURVEY[] = KERNEL(survey_block);
static const int PANEL_OUTPUTS[] = {4, 8, 16, 16}, WORD_CODES[] = {2, 2, 2, 4};

/* simd_level(), or 3 where AVX-512 may sum products of bytes. */
static int kernel_number(void) { return simd_sums_bytes() ? 3 : simd_level(); }

static void *aligned(int64_t bytes) { return aligned_alloc(64, (size_t)(parts(bytes, 64) * 64 + 64)); }

int combine_dense(code_rows rows, weight_rows weight, int32_t *out) {
    const int kernel = kernel_number();
    const int64_t lanes = PANEL_OUTPUTS[kernel], num_panels = parts(weight.num_outputs, lanes);
    weight_panels panels = {.num_words = parts(rows.dim, WORD_CODES[kernel]), .num_panels = num_panels,
                            .num_outputs = weight.num_outputs};
    panels.words = aligned(num_panels * panels.num_words * lanes * 4);
    panels.base = aligned(num_panels * lanes * 4);
    int is_short = !panels.words || !panels.base;
    if (!is_short) {
#pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < num_panels; p++) FILL_PANEL[kernel](&weight, p, rows.is_signed, &panels);
#pragma omp parallel reduction(| : is_short)
        {
            uint32_t *scratch = aligned(TASK_ROWS * BLOCK_WORDS * 4);
            is_short = !scratch;
#pragma omp for schedule(dynamic, TASKS_AT_ONCE)
            for (int64_t first = 0; first < rows.num_rows; first += TASK_ROWS)
                if (scratch) MULTIPLY[kernel](&rows, &panels, first, scratch, out);
            free(scratch);
        }
    }
    free(panels.words);
    free(panels.base);
    return !is_short;
}

code_survey survey_codes(code_rows rows) {
    const survey_function survey = SURVEY[kernel_number()];
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
