/* Products of planes of bits by 1-bit tiles in three forms; ext/src/bit_gemm.h has the layout of lines.
 *
 * Maths: sum[m, n] = sum over planes i of the left and j of the right of 2^(i + j) popcount(left_i[m] AND right_j[n])
 * (QGTC, Eq. 5-7). Where the right side is signed, in two's complement, its highest plane counts as negative.
 * Forms: mma16 is m16n8k256 on tensor cores, AND and count, sm_80 and later; mma8 is m8n8k128 likewise, with half the
 * rows: those of small products keep twice as many warps busy; popcount takes words of 32 bits on the common cores, on
 * every chip. The tensor cores of sm_75 have XOR only: AND made of it, (popc(a) + popc(b) - popc(a XOR b)) / 2, takes
 * six shuffles a tile, so popcount is taken there too; and from sm_100 on, whose tensor cores have no bits: a sequence of
 * common instructions stands for the products. */
#ifndef HPCGNN_BIT_PRODUCTS_CUH
#define HPCGNN_BIT_PRODUCTS_CUH
#include "product_end.cuh"

#define WARPS 4
#define CHUNK_STEPS 4 /* steps whose words lie in shared memory, a multiple of 2 */
#define STEP_CHUNK (STEP_WORDS * END_COLUMNS + 8) /* words of four steps that are stored at once have other banks */
#define PLANE_CHUNK (CHUNK_STEPS * STEP_CHUNK)
#define CHUNK_WORDS (LARGEST_BIT_WIDTH * PLANE_CHUNK)
#define PLANE_WORDS (CHUNK_STEPS * STEP_WORDS * END_COLUMNS)
#define MOST_ROWS 16

/* Of the 16 words of a line's chunk number 4 * w + e is word w of step e: any order serves a product whose sides have
 * the same one, and so a lane loads the words that it has of four steps as 16 bytes. */
struct Quad {
    uint32_t step[CHUNK_STEPS];
    DEVICE explicit Quad(const uint4 &words) : step{words.x, words.y, words.z, words.w} {}
};

/* Where the sum of a row and a column lies in shared memory. Rows, columns of 32 rows and fragments are read and written
 * by all 32 banks at once. */
DEVICE int32_t sum_place(int32_t row, int32_t column) {
    return row * END_COLUMNS + (column ^ (row % 4 * 8 + row / 4 % 8));
}

/* 2^place of an int32, negative where asked for. */
DEVICE int32_t plane_weight(int32_t place, bool is_negative) {
    const int32_t weight = 1 << place;
    return is_negative ? -weight : weight;
}

/* Sums of 8 rows in every lane, for the column of the lane. A lane loads the words of one of 8 rows, as mma8 does. */
struct PopcountForm {
    static constexpr int32_t ROWS = 8;
    static constexpr bool IS_BY_WORD = true; /* in shared memory, the words of all columns lie together */
    uint32_t left[CHUNK_STEPS];
    int32_t sum[ROWS];

    template <typename Rows> DEVICE void load(const Rows &lines, int32_t plane, int64_t first_row, int64_t first_step) {
        const Quad quad(lines.quad(plane, first_row + lane_number() / 4, first_step + lane_number() % 4));
        for (int32_t e = 0; e < CHUNK_STEPS; e++) left[e] = quad.step[e];
    }
    template <typename Words> DEVICE void add(const Words &right, int32_t num_planes, int32_t shift, bool is_signed) {
        for (int32_t e = 0; e < CHUNK_STEPS; e++)
            for (int32_t w = 0; w < STEP_WORDS; w++) {
                uint32_t row[ROWS];
                for (int32_t r = 0; r < ROWS; r++) row[r] = __shfl_sync(FULL_WARP, left[e], 4 * r + w);
                for (int32_t j = 0; j < num_planes; j++) {
                    const int32_t place = j * PLANE_CHUNK + e * STEP_CHUNK + w * END_COLUMNS;
                    const uint32_t column = right[place + lane_number()];
                    const int32_t weight = plane_weight(shift + j, is_signed && j + 1 == num_planes);
                    for (int32_t r = 0; r < ROWS; r++) sum[r] += __popc(row[r] & column) * weight;
                }
            }
    }
    /* The sums of the warp's rows, of which `first` is the first one of the block. */
    template <typename Sums> DEVICE void store(Sums &sums, int32_t first) const {
        for (int32_t r = 0; r < ROWS; r++) sums[sum_place(first + r, lane_number())] = sum[r];
    }
};

/* Fragments of m8n8k128: a lane has word lane % 4 of row lane / 4 of the left, of column lane / 4 of the right, and the
 * sums of row lane / 4, columns 2 * (lane % 4) and the next. */
struct Mma8Form {
    static constexpr int32_t ROWS = 8;
    static constexpr bool IS_BY_WORD = false;
    uint32_t left[CHUNK_STEPS];
    int32_t sum[4][2];

    template <typename Rows> DEVICE void load(const Rows &lines, int32_t plane, int64_t first_row, int64_t first_step) {
        const Quad quad(lines.quad(plane, first_row + lane_number() / 4, first_step + lane_number() % 4));
        for (int32_t e = 0; e < CHUNK_STEPS; e++) left[e] = quad.step[e];
    }
    template <typename Words> DEVICE void add(const Words &right, int32_t num_planes, int32_t shift, bool is_signed) {
        for (int32_t j = 0; j < num_planes; j++) {
            const int32_t weight = plane_weight(shift + j, is_signed && j + 1 == num_planes);
            for (int32_t t = 0; t < 4; t++) {
                const int32_t first = j * PLANE_CHUNK + t * WARP_SIZE + lane_number();
                int32_t ones[2] = {0, 0};
                for (int32_t e = 0; e < CHUNK_STEPS; e++)
                    mma_m8n8k128_b1_and_popc(ones[0], ones[1], left[e], right[first + e * STEP_CHUNK]);
                for (int32_t k = 0; k < 2; k++) sum[t][k] += ones[k] * weight;
            }
        }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t first) const {
        for (int32_t t = 0; t < 4; t++)
            for (int32_t k = 0; k < 2; k++)
                sums[sum_place(first + lane_number() / 4, 8 * t + 2 * (lane_number() % 4) + k)] = sum[t][k];
    }
};

/* Fragments of m16n8k256: those of m8n8k128 for rows 0 to 7 and 8 to 15, and for two steps. */
struct Mma16Form {
    static constexpr int32_t ROWS = 16;
    static constexpr bool IS_BY_WORD = false;
    uint32_t left[CHUNK_STEPS / 2][4];
    int32_t sum[4][4];

    template <typename Rows> DEVICE void load(const Rows &lines, int32_t plane, int64_t first_row, int64_t first_step) {
        for (int32_t half = 0; half < 2; half++) {
            const int64_t row = first_row + lane_number() / 4 + half * 8;
            const Quad quad(lines.quad(plane, row, first_step + lane_number() % 4));
            for (int32_t e = 0; e < CHUNK_STEPS; e++) left[e / 2][e % 2 * 2 + half] = quad.step[e];
        }
    }
    template <typename Words> DEVICE void add(const Words &right, int32_t num_planes, int32_t shift, bool is_signed) {
        for (int32_t j = 0; j < num_planes; j++) {
            const int32_t weight = plane_weight(shift + j, is_signed && j + 1 == num_planes);
            for (int32_t t = 0; t < 4; t++) {
                const int32_t first = j * PLANE_CHUNK + t * WARP_SIZE + lane_number();
                int32_t ones[4] = {0, 0, 0, 0};
                for (int32_t e = 0; e < CHUNK_STEPS; e += 2) {
                    const uint32_t columns[2] = {right[first + e * STEP_CHUNK], right[first + (e + 1) * STEP_CHUNK]};
                    mma_m16n8k256_b1_and_popc(ones, left[e / 2], columns);
                }
                for (int32_t k = 0; k < 4; k++) sum[t][k] += ones[k] * weight;
            }
        }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t first) const {
        for (int32_t t = 0; t < 4; t++)
            for (int32_t k = 0; k < 4; k++)
                sums[sum_place(first + k / 2 * 8 + lane_number() / 4, 8 * t + 2 * (lane_number() % 4) + k % 2)] =
                    sum[t][k];
    }
};

/* All threads: every plane of CHUNK_STEPS steps of 32 columns, zeros where there are none. A word of a column lies at
 * [plane][step][word][column], or at [plane][step][column][word], which are 8 columns of a fragment after another. */
template <typename Words>
DEVICE void stage_columns(const Lines &right, int64_t first_column, int64_t first_step, bool is_by_word,
                          Words &words) {
    for (int32_t k = (int32_t)threadIdx.x; k < right.num_planes * PLANE_WORDS; k += (int32_t)blockDim.x) {
        const int32_t e = k % CHUNK_STEPS, w = k / CHUNK_STEPS % STEP_WORDS;
        const int32_t column = k / (STEP_WORDS * CHUNK_STEPS) % END_COLUMNS, plane = k / PLANE_WORDS;
        const int32_t place = is_by_word ? w * END_COLUMNS + column : column * STEP_WORDS + w;
        words[plane * PLANE_CHUNK + e * STEP_CHUNK + place] =
            right.word(plane, first_column + column, first_step + w, e);
    }
}

/* All threads: adds the products of this warp's rows, Form::ROWS from first_row on, with 32 columns; a warp whose rows
 * are beyond the last one stages columns with the others. */
template <typename Form, typename Rows, typename Words>
DEVICE void add_products(Form &form, const Rows &left, int32_t num_left_planes, bool is_inside, int64_t first_row,
                         const Lines &right, int64_t first_column, bool is_signed, Words &columns) {
    for (int64_t step = 0; step < right.num_steps; step += CHUNK_STEPS) {
        __syncthreads(); /* the chunk before has been multiplied */
        stage_columns(right, first_column, step, Form::IS_BY_WORD, columns);
        __syncthreads();
        for (int32_t i = 0; i < num_left_planes; i++) {
            if (!is_inside) break; /* all lanes of the warp */
            form.load(left, i, first_row, step);
            form.add(columns, right.num_planes, i, is_signed);
        }
    }
}
#endif
