/* Products of a row of 8 x 128-bit tiles with lines of codes, in the forms of bit_products.cuh.
 *
 * Maths: sum[m, n] = sum over planes j of 2^j popcount(tiles[m] AND right_j[n]); hpcgnn/ops/tiles.py has the layout of
 * tiles. Lane l of a warp loads word l % 4 of row l / 4 of a tile, so a warp loads 128 neighboring bytes. These words
 * are the product's fragment already, so the vote whether a tile is zero needs no load of its own. m16n8k256 needs 16
 * rows and 256 bits: here 16 columns of the right side are its rows, the 8 rows of a tile its columns, and any two
 * tiles of a row its bits, so a list of tiles fills it; if rows have fewer than two tiles, m8n8k128 is used. */
#ifndef HPCGNN_TILE_PRODUCTS_CUH
#define HPCGNN_TILE_PRODUCTS_CUH
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

/* All lanes of a warp: the next tiles of the row from tile `at` on, which moves past them; words of zeros if there are
 * fewer than N. */
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

/* All planes per tile: every tile is loaded once. Returns the number of tiles multiplied. */
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

/* All tiles for each plane, from the highest plane down; sums double on the way to the next plane. */
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
#endif
