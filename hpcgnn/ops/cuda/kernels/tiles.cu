/* Products of a 0/1 matrix of 8 x 128 tiles with lines of codes, and entries of its rows.
 *
 * Maths: sum[m, n] = sum over planes j of 2^j popcount(tiles[m] AND right_j[n]); hpcgnn/ops/tiles.py has the layout of
 * tiles, product_end.cuh what becomes of the sums. Tiles of zeros are jumped, and a tile that was loaded meets all
 * planes before the next one (QGTC, Sections 4.3 and 4.4), each where asked for.
 * Threads: a warp has a row of tiles times 32 columns. Lane l loads word l % 4 of row l / 4 of a tile, 128 neighboring
 * bytes of a warp. These words are the fragment of the product already, so the vote that tells whether a tile is zero
 * takes no load of its own.
 * Forms as in bit_gemm.cu. m16n8k256 needs 16 rows and 256 bits: here the right side's columns are its 16 rows, the
 * rows of tiles its 8 columns, and any two tiles of a row its 256 bits, so a list of tiles fills it; where rows have
 * fewer than two, m8n8k128 does.
 * Determinism: integers, one thread an element; a row of tiles is counted by one warp. */
#include "product_end.cuh"

#define WARPS 4
#define TILE_ROWS 8
#define TILE_WORDS 32

struct TileRow {
    const uint32_t *words; /* of tile 0 of the matrix */
    const int32_t *column;
    int64_t begin, end;
    bool is_jumping; /* tiles of zeros are looked for and left out */
};

/* Up to N tiles that are multiplied together: this lane's word of each, and its column of tiles. */
template <int32_t N> struct Tiles {
    uint32_t word[N];
    int64_t step[N];
    int32_t count;
};

/* All lanes of a warp: the next tiles of the row from tile `at` on, which moves past them; words of zeros for tiles
 * that there are no more. */
template <int32_t N> DEVICE Tiles<N> next_tiles(const TileRow &row, int64_t &at) {
    Tiles<N> tiles = {};
    for (int32_t n = 0; n < N; n++)
        for (bool is_found = false; !is_found && at < row.end; at++) {
            const uint32_t word = row.words[at * TILE_WORDS + lane_number()];
            is_found = !row.is_jumping || __any_sync(FULL_WARP, word != 0);
            if (!is_found) continue;
            tiles.word[n] = word;
            tiles.step[n] = row.column[at];
            tiles.count++;
        }
    return tiles;
}

/* Each form adds the products with the planes `first` .. first + count - 1, of weight 1, 2, 4 ..
 *
 * Sums of 8 rows in every lane, for the column of the lane. */
struct PopcountForm {
    static constexpr int32_t TILES = 1;
    int32_t sum[TILE_ROWS];

    DEVICE void double_all() {
        for (int32_t r = 0; r < TILE_ROWS; r++) sum[r] *= 2;
    }
    DEVICE void add(const Tiles<TILES> &tiles, const Lines &right, int64_t first_column, int32_t first, int32_t count) {
        for (int32_t w = 0; w < STEP_WORDS; w++) {
            uint32_t row[TILE_ROWS];
            for (int32_t r = 0; r < TILE_ROWS; r++) row[r] = __shfl_sync(FULL_WARP, tiles.word[0], 4 * r + w);
            for (int32_t j = 0; j < count; j++) {
                const uint32_t column = right.word(first + j, first_column + lane_number(), tiles.step[0], w);
                for (int32_t r = 0; r < TILE_ROWS; r++) sum[r] += __popc(row[r] & column) << j;
            }
        }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t begin) const {
        for (int32_t r = 0; r < TILE_ROWS; r++) sums[begin + r * SUM_STRIDE + lane_number()] = sum[r];
    }
};

/* A tile on the left, 8 columns at a time on the right. */
struct Mma8Form {
    static constexpr int32_t TILES = 1;
    int32_t sum[4][2];

    DEVICE void double_all() {
        for (int32_t t = 0; t < 4; t++)
            for (int32_t k = 0; k < 2; k++) sum[t][k] *= 2;
    }
    DEVICE void add(const Tiles<TILES> &tiles, const Lines &right, int64_t first_column, int32_t first, int32_t count) {
        const int64_t column = first_column + lane_number() / 4;
        for (int32_t j = 0; j < count; j++)
            for (int32_t t = 0; t < 4; t++) {
                const uint32_t word = right.word(first + j, column + 8 * t, tiles.step[0], lane_number() % 4);
                int32_t ones[2] = {0, 0};
                mma_m8n8k128_b1_and_popc(ones[0], ones[1], tiles.word[0], word);
                for (int32_t k = 0; k < 2; k++) sum[t][k] += ones[k] << j;
            }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t begin) const {
        const int32_t first = begin + lane_number() / 4 * SUM_STRIDE + 2 * (lane_number() % 4);
        for (int32_t t = 0; t < 4; t++)
            for (int32_t k = 0; k < 2; k++) sums[first + 8 * t + k] = sum[t][k];
    }
};

/* 16 columns at a time on the left, two tiles on the right; sums come out transposed. */
struct Mma16Form {
    static constexpr int32_t TILES = 2;
    int32_t sum[2][4];

    DEVICE void double_all() {
        for (int32_t t = 0; t < 2; t++)
            for (int32_t k = 0; k < 4; k++) sum[t][k] *= 2;
    }
    DEVICE void add(const Tiles<TILES> &tiles, const Lines &right, int64_t first_column, int32_t first, int32_t count) {
        const int64_t column = first_column + lane_number() / 4;
        for (int32_t j = 0; j < count; j++)
            for (int32_t t = 0; t < 2; t++) {
                uint32_t columns[4];
                for (int32_t k = 0; k < 4; k++)
                    columns[k] = right.word(first + j, column + 16 * t + k % 2 * 8, tiles.step[k / 2],
                                            lane_number() % 4);
                int32_t ones[4] = {0, 0, 0, 0};
                mma_m16n8k256_b1_and_popc(ones, columns, tiles.word);
                for (int32_t k = 0; k < 4; k++) sum[t][k] += ones[k] << j;
            }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t begin) const {
        const int32_t first = begin + 2 * (lane_number() % 4) * SUM_STRIDE + lane_number() / 4;
        for (int32_t t = 0; t < 2; t++)
            for (int32_t k = 0; k < 4; k++) sums[first + k % 2 * SUM_STRIDE + 16 * t + k / 2 * 8] = sum[t][k];
    }
};

/* All planes a tile: every tile is loaded once. Returns the number of tiles multiplied. */
template <typename Form>
DEVICE int32_t add_with_reuse(const TileRow &row, const Lines &right, int64_t first_column, Form &form) {
    int32_t num_multiplied = 0;
    for (int64_t at = row.begin; at < row.end;) {
        const Tiles<Form::TILES> tiles = next_tiles<Form::TILES>(row, at);
        if (!tiles.count) break;
        num_multiplied += tiles.count;
        form.add(tiles, right, first_column, 0, right.num_planes);
    }
    return num_multiplied;
}

/* All tiles a plane, from the highest plane down, whose sums double on the way to the next. */
template <typename Form>
DEVICE int32_t add_by_plane(const TileRow &row, const Lines &right, int64_t first_column, Form &form) {
    int32_t num_multiplied = 0;
    for (int32_t j = right.num_planes - 1; j >= 0; j--) {
        form.double_all();
        for (int64_t at = row.begin; at < row.end;) {
            const Tiles<Form::TILES> tiles = next_tiles<Form::TILES>(row, at);
            if (!tiles.count) break;
            num_multiplied += j == 0 ? tiles.count : 0;
            form.add(tiles, right, first_column, j, 1);
        }
    }
    return num_multiplied;
}

template <typename Form>
DEVICE void multiply_tiles(const int64_t *begin, const int32_t *column, const uint32_t *words, int64_t num_tile_rows,
                           const Lines &right, int64_t num_column_groups, bool is_jumping, bool is_reusing,
                           int32_t *num_multiplied, const ProductEnd &end) {
    SHARED_ARRAY(int32_t, sums, WARPS * TILE_ROWS * SUM_STRIDE);
    const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE, own_sums = warp * TILE_ROWS * SUM_STRIDE;
    /* Warps with the same tiles follow each other. */
    const int64_t number = (int64_t)blockIdx.x * WARPS + warp, tile_row = number / num_column_groups;
    const int64_t first_column = number % num_column_groups * END_COLUMNS;
    if (tile_row >= num_tile_rows) return;
    const TileRow row = {words, column, begin[tile_row], begin[tile_row + 1], is_jumping};
    Form form = {};
    const int32_t count = is_reusing ? add_with_reuse(row, right, first_column, form)
                                     : add_by_plane(row, right, first_column, form);
    if (first_column == 0 && lane_number() == 0) num_multiplied[tile_row] = count;
    form.store(sums, own_sums);
    __syncwarp();
    for (int32_t r = 0; r < TILE_ROWS; r++)
        end_row(end, tile_row * TILE_ROWS + r, first_column + lane_number(),
                sums[own_sums + r * SUM_STRIDE + lane_number()]);
}

#define PRODUCT(name, Form) \
    extern "C" __global__ void name( \
        const int64_t *begin, const int32_t *column, const uint32_t *words, int64_t num_tile_rows, \
        const uint32_t *right, int64_t num_right, int32_t right_width, int64_t num_steps, int64_t num_column_groups, \
        int32_t is_jumping, int32_t is_reusing, int32_t *num_multiplied, int64_t num_rows, int64_t num_columns, \
        int32_t *sums, float *values, uint32_t *planes, const float *row_step, const float *row_zero, \
        const float *row_sum, const float *column_step, const float *column_zero, const float *column_sum, \
        float length, const float *gain, const float *bias, int32_t is_by_row, int32_t has_relu, float low, \
        float step, float offset, int32_t bit_width, int64_t num_padded, int64_t line_words) { \
        multiply_tiles<Form>(begin, column, words, num_tile_rows, {right, num_right, num_steps, right_width}, \
                             num_column_groups, is_jumping, is_reusing, num_multiplied, ProductEnd PRODUCT_END); \
    }
PRODUCT(multiply_popcount, PopcountForm)
PRODUCT(multiply_mma8, Mma8Form)
PRODUCT(multiply_mma16, Mma16Form)

/* A thread a row. */
extern "C" __global__ void count_entries(const int64_t *begin, const uint32_t *words, int64_t num_rows,
                                         int64_t *counts) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= num_rows) return;
    int64_t count = 0;
    for (int64_t t = begin[row / TILE_ROWS]; t < begin[row / TILE_ROWS + 1]; t++)
        for (int32_t w = 0; w < STEP_WORDS; w++)
            count += __popc(words[t * TILE_WORDS + row % TILE_ROWS * STEP_WORDS + w]);
    counts[row] = count;
}
