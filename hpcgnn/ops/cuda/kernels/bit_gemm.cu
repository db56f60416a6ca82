/* Products of matrices of b-bit codes that are held as planes of bits.
 *
 * Maths: sum[m, n] = sum over planes i of the left and j of the right of 2^(i + j) popcount(left_i[m] AND right_j[n])
 * (QGTC, Eq. 5-7); ext/src/bit_gemm.h has the layout of lines, product_end.cuh what becomes of the sums.
 * Threads: a warp has 8 or 16 rows times 32 columns; the four warps of a block have other rows, and the same columns,
 * of which all planes of a few steps of 128 bits lie in shared memory. So a word of the left matrix is read once by
 * every 32 columns and one of the right matrix once a block, whatever the bit-widths.
 * Three forms of the product of 1-bit tiles, of which Python takes one by the chip and the rows:
 *   mma16      m16n8k256 on tensor cores, AND and count; sm_80 and later
 *   mma8       m8n8k128 likewise, with half the rows: those of small products keep twice as many warps busy
 *   popcount   words of 32 bits on the common cores, on every chip. The tensor cores of sm_75 have XOR only: AND made
 *              of it, (popc(a) + popc(b) - popc(a XOR b)) / 2, takes six shuffles a tile, so this form is taken there
 *              too
 * Determinism: integers, one thread an element. */
#include "product_end.cuh"

#define WARPS 4
#define CHUNK_STEPS 4 /* steps whose words lie in shared memory, a multiple of 2 */
#define CHUNK_WORDS (LARGEST_BIT_WIDTH * CHUNK_STEPS * STEP_WORDS * END_COLUMNS)
#define PLANE_CHUNK (CHUNK_STEPS * STEP_WORDS * END_COLUMNS)
#define STEP_CHUNK (STEP_WORDS * END_COLUMNS)
#define MOST_ROWS 16

/* Sums of 8 rows in every lane, for the column of the lane. A lane loads one word of 8 rows' step, as mma8 does. */
struct PopcountForm {
    static constexpr int32_t ROWS = 8;
    static constexpr bool IS_BY_WORD = true; /* in shared memory, the words of all columns lie together */
    uint32_t left[CHUNK_STEPS];
    int32_t sum[ROWS];

    DEVICE void load(const Lines &lines, int32_t plane, int64_t first_row, int64_t first_step) {
        for (int32_t e = 0; e < CHUNK_STEPS; e++)
            left[e] = lines.word(plane, first_row + lane_number() / 4, first_step + e, lane_number() % 4);
    }
    template <typename Words> DEVICE void add(const Words &right, int32_t num_planes, int32_t shift) {
        for (int32_t e = 0; e < CHUNK_STEPS; e++)
            for (int32_t w = 0; w < STEP_WORDS; w++) {
                uint32_t row[ROWS];
                for (int32_t r = 0; r < ROWS; r++) row[r] = __shfl_sync(FULL_WARP, left[e], 4 * r + w);
                for (int32_t j = 0; j < num_planes; j++) {
                    const int32_t place = j * PLANE_CHUNK + e * STEP_CHUNK + w * END_COLUMNS;
                    const uint32_t column = right[place + lane_number()];
                    for (int32_t r = 0; r < ROWS; r++) sum[r] += __popc(row[r] & column) << (shift + j);
                }
            }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t begin) const {
        for (int32_t r = 0; r < ROWS; r++) sums[begin + r * SUM_STRIDE + lane_number()] = sum[r];
    }
};

/* Fragments of m8n8k128: a lane has word lane % 4 of row lane / 4 of the left, of column lane / 4 of the right, and the
 * sums of row lane / 4, columns 2 * (lane % 4) and the next. */
struct Mma8Form {
    static constexpr int32_t ROWS = 8;
    static constexpr bool IS_BY_WORD = false;
    uint32_t left[CHUNK_STEPS];
    int32_t sum[4][2];

    DEVICE void load(const Lines &lines, int32_t plane, int64_t first_row, int64_t first_step) {
        for (int32_t e = 0; e < CHUNK_STEPS; e++)
            left[e] = lines.word(plane, first_row + lane_number() / 4, first_step + e, lane_number() % 4);
    }
    template <typename Words> DEVICE void add(const Words &right, int32_t num_planes, int32_t shift) {
        for (int32_t j = 0; j < num_planes; j++)
            for (int32_t t = 0; t < 4; t++) {
                const int32_t first = j * PLANE_CHUNK + t * WARP_SIZE + lane_number();
                int32_t ones[2] = {0, 0};
                for (int32_t e = 0; e < CHUNK_STEPS; e++)
                    mma_m8n8k128_b1_and_popc(ones[0], ones[1], left[e], right[first + e * STEP_CHUNK]);
                for (int32_t k = 0; k < 2; k++) sum[t][k] += ones[k] << (shift + j);
            }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t begin) const {
        const int32_t first = begin + lane_number() / 4 * SUM_STRIDE + 2 * (lane_number() % 4);
        for (int32_t t = 0; t < 4; t++)
            for (int32_t k = 0; k < 2; k++) sums[first + 8 * t + k] = sum[t][k];
    }
};

/* Fragments of m16n8k256: those of m8n8k128 for rows 0 to 7 and 8 to 15, and for two steps. */
struct Mma16Form {
    static constexpr int32_t ROWS = 16;
    static constexpr bool IS_BY_WORD = false;
    uint32_t left[CHUNK_STEPS / 2][4];
    int32_t sum[4][4];

    DEVICE void load(const Lines &lines, int32_t plane, int64_t first_row, int64_t first_step) {
        const int64_t row = first_row + lane_number() / 4;
        for (int32_t e = 0; e < CHUNK_STEPS / 2; e++)
            for (int32_t k = 0; k < 4; k++)
                left[e][k] = lines.word(plane, row + k % 2 * 8, first_step + 2 * e + k / 2, lane_number() % 4);
    }
    template <typename Words> DEVICE void add(const Words &right, int32_t num_planes, int32_t shift) {
        for (int32_t j = 0; j < num_planes; j++)
            for (int32_t t = 0; t < 4; t++) {
                const int32_t first = j * PLANE_CHUNK + t * WARP_SIZE + lane_number();
                int32_t ones[4] = {0, 0, 0, 0};
                for (int32_t e = 0; e < CHUNK_STEPS; e += 2) {
                    const uint32_t columns[2] = {right[first + e * STEP_CHUNK], right[first + (e + 1) * STEP_CHUNK]};
                    mma_m16n8k256_b1_and_popc(ones, left[e / 2], columns);
                }
                for (int32_t k = 0; k < 4; k++) sum[t][k] += ones[k] << (shift + j);
            }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t begin) const {
        const int32_t first = begin + lane_number() / 4 * SUM_STRIDE + 2 * (lane_number() % 4);
        for (int32_t t = 0; t < 4; t++)
            for (int32_t k = 0; k < 4; k++) sums[first + k / 2 * 8 * SUM_STRIDE + 8 * t + k % 2] = sum[t][k];
    }
};

/* All threads: every plane of CHUNK_STEPS steps of 32 columns, zeros where there are none. A word of a column lies at
 * [plane][step][word][column], or at [plane][step][column][word], which are 8 columns of a fragment after another. */
template <typename Words>
DEVICE void stage_columns(const Lines &right, int64_t first_column, int64_t first_step, bool is_by_word,
                          Words &words) {
    for (int32_t k = (int32_t)threadIdx.x; k < right.num_planes * PLANE_CHUNK; k += (int32_t)blockDim.x) {
        const int32_t w = k % STEP_WORDS, e = k / STEP_WORDS % CHUNK_STEPS;
        const int32_t column = k / (STEP_WORDS * CHUNK_STEPS) % END_COLUMNS, plane = k / PLANE_CHUNK;
        const int32_t place = is_by_word ? w * END_COLUMNS + column : column * STEP_WORDS + w;
        words[plane * PLANE_CHUNK + e * STEP_CHUNK + place] =
            right.word(plane, first_column + column, first_step + e, w);
    }
}

template <typename Form>
DEVICE void multiply_lines(const Lines &left, const Lines &right, int64_t num_column_groups,
                           const ProductEnd &end) {
    SHARED_ARRAY(uint32_t, columns, CHUNK_WORDS);
    SHARED_ARRAY(int32_t, sums, WARPS * MOST_ROWS * SUM_STRIDE);
    const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE, own_sums = warp * MOST_ROWS * SUM_STRIDE;
    const int64_t first_column = blockIdx.x % num_column_groups * END_COLUMNS;
    const int64_t first_row = (blockIdx.x / num_column_groups * WARPS + warp) * Form::ROWS;
    Form form = {};
    for (int64_t step = 0; step < left.num_steps; step += CHUNK_STEPS) {
        __syncthreads(); /* the chunk before has been multiplied */
        stage_columns(right, first_column, step, Form::IS_BY_WORD, columns);
        __syncthreads();
        for (int32_t i = 0; i < left.num_planes; i++) {
            if (first_row >= left.num_lines) break; /* all lanes of the warp */
            form.load(left, i, first_row, step);
            form.add(columns, right.num_planes, i);
        }
    }
    form.store(sums, own_sums);
    __syncwarp();
    for (int32_t r = 0; r < Form::ROWS; r++)
        end_row(end, first_row + r, first_column + lane_number(), sums[own_sums + r * SUM_STRIDE + lane_number()]);
}

#define PRODUCT(name, Form) \
    extern "C" __global__ void name( \
        const uint32_t *left, int64_t num_left, int32_t left_width, const uint32_t *right, int64_t num_right, \
        int32_t right_width, int64_t num_steps, int64_t num_column_groups, int64_t num_rows, int64_t num_columns, \
        int32_t *sums, float *values, uint32_t *planes, const float *row_step, const float *row_zero, \
        const float *row_sum, const float *column_step, const float *column_zero, const float *column_sum, \
        float length, const float *gain, const float *bias, int32_t is_by_row, int32_t has_relu, float low, \
        float step, float offset, int32_t bit_width, int64_t num_padded, int64_t line_words) { \
        multiply_lines<Form>({left, num_left, num_steps, left_width}, {right, num_right, num_steps, right_width}, \
                             num_column_groups, ProductEnd PRODUCT_END); \
    }
PRODUCT(multiply_popcount, PopcountForm)
PRODUCT(multiply_mma8, Mma8Form)
PRODUCT(multiply_mma16, Mma16Form)
