/* Products of planes of bits by 1-bit tiles in three forms; ext/src/bit_gemm.h has the layout of lines.
 *
 * Maths: sum[m, n] = sum over planes i of the left and j of the right of 2^(i + j) popcount(left_i[m] AND right_j[n])
 * (QGTC, Eq. 5-7). Where the right side is signed, in two's complement, its highest plane counts as negative.
 * Forms: mma16 is m16n8k256 on tensor cores, AND and count, from sm_80 on; mma8 is m8n8k128, also on tensor cores, with
 * half as many rows per warp, so that small products keep twice as many warps busy; popcount multiplies words of 32
 * bits on the common cores of every chip. The tensor cores of sm_75 have only XOR, and AND made from it, (popc(a) +
 * popc(b) - popc(a XOR b)) / 2, takes six shuffles per tile, so popcount is used there. From sm_100 on, common
 * instructions replace the products of bits on tensor cores, so popcount is used there too.
 * Threads: a warp has 8 or 16 rows times 32 columns. In a block, num_shares warps have the same rows and columns but
 * different chunks of four steps of 128 bits, and their sums are added in shared memory; so a product of few rows keeps
 * more warps busy. Words are loaded straight into the registers of the lanes that multiply them; words of columns come
 * mostly from the first-level cache. Words of several planes of the rows are loaded before the first is multiplied.
 * Determinism: sums of integers do not depend on their order. */
#ifndef HPCGNN_BIT_PRODUCTS_CUH
#define HPCGNN_BIT_PRODUCTS_CUH
#include "product_end.cuh"

#define WARPS 4
#define CHUNK_STEPS 4
#define CHUNKS_AHEAD 2 /* chunks of the rows that are loaded together if there is only one plane */
#define TILE_COLUMNS 8
#define COLUMN_TILES (END_COLUMNS / TILE_COLUMNS)
#define MOST_ROWS 16
#define BLOCK_SUMS (WARPS * MOST_ROWS * END_COLUMNS)

/* Word number 4 * w + e of a line's chunk of 16 is word w of step e. Any order serves a product if both sides have the
 * same one; in this one a lane loads its words of four steps as 16 bytes. */
struct Quad {
    uint32_t step[CHUNK_STEPS];
};

/* Load the quads of all chunks, planes and groups of eight lines before any of them is used. */
template <int32_t CHUNKS, int32_t PLANES, int32_t EIGHTS, typename Lines>
DEVICE void load_quads(const Lines &lines, int32_t first_plane, int32_t step, int32_t stride,
                       Quad (&quads)[CHUNKS][PLANES][EIGHTS]) {
    for (int32_t c = 0; c < CHUNKS; c++)
        for (int32_t i = 0; i < PLANES; i++)
            for (int32_t k = 0; k < EIGHTS; k++) quads[c][i][k] = lines.quad(first_plane + i, k, step + c * stride);
}

/* Where lane l reads word l % 4 of line l / 4 and of every eighth line after it; zeros outside. */
struct LaneLines {
    const uint4 *first;
    int64_t plane_stride; /* in quads */
    int32_t num_planes, num_eights, num_steps;

    DEVICE LaneLines(const Lines &lines, int64_t first_line)
        : first(reinterpret_cast<const uint4 *>(lines.words) + (first_line + lane_number() / 4) * lines.num_steps +
                lane_number() % 4),
          plane_stride(lines.num_lines * lines.num_steps), num_planes(lines.num_planes),
          num_eights((int32_t)((lines.num_lines - first_line - lane_number() / 4 + 7) / 8)),
          num_steps((int32_t)lines.num_steps) {}

    DEVICE Quad quad(int32_t plane, int32_t eight, int32_t step) const {
        if (plane >= num_planes || eight >= num_eights || step + lane_number() % 4 >= num_steps) return {};
        const uint4 words = first[plane * plane_stride + (8 * eight * num_steps + step)];
        return {{words.x, words.y, words.z, words.w}};
    }
    template <typename Quads> DEVICE void load(int32_t first_plane, int32_t step, int32_t stride, Quads &quads) const {
        load_quads(*this, first_plane, step, stride, quads);
    }
};

/* Where the sum of a row and a column lies in shared memory. Each of these occupies all 32 banks once: a row, a column
 * of 32 rows, a fragment, and every s-th column of s rows (s = 2, 4, 8, 16). */
DEVICE int32_t sum_place(int32_t row, int32_t column) {
    return row * END_COLUMNS + (column ^ row % 32 ^ row / 2 % 4 * 8);
}

/* 2^place of an int32, negative where asked for. */
DEVICE int32_t plane_weight(int32_t place, bool is_negative) {
    const int32_t weight = 1 << place;
    return is_negative ? -weight : weight;
}

/* Each form adds the products of a chunk of one plane of its rows and the same chunk of one plane of two tiles of 8
 * columns, tiles 2 * PAIR and 2 * PAIR + 1, and stores its sums from row `first` on. IS_AHEAD: a pair of tiles is
 * loaded while the pair before it is multiplied, if there are registers for both.
 *
 * Here a lane sums the products of its own words only, for 8 rows and 4 columns. */
struct PopcountForm {
    static constexpr int32_t ROWS = 8, PLANES_AHEAD = 2;
    static constexpr bool IS_AHEAD = false;
    int32_t sum[COLUMN_TILES][ROWS];

    template <int32_t PAIR> DEVICE void add(const Quad (&rows)[1], const Quad (&columns)[2], int32_t weight) {
        for (int32_t e = 0; e < CHUNK_STEPS; e++)
            for (int32_t r = 0; r < ROWS; r++) {
                const uint32_t row = __shfl_sync(FULL_WARP, rows[0].step[e], 4 * r + lane_number() % 4);
                for (int32_t u = 0; u < 2; u++)
                    sum[2 * PAIR + u][r] += __popc(row & columns[u].step[e]) * weight;
            }
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t first) const {
        for (int32_t r = 0; r < ROWS; r++) {
            int32_t own = 0; /* of tile lane % 4 */
            for (int32_t t = 0; t < COLUMN_TILES; t++) {
                int32_t whole = sum[t][r];
                for (int32_t step = 1; step < 4; step *= 2) whole += __shfl_xor_sync(FULL_WARP, whole, step);
                if (lane_number() % 4 == t) own = whole;
            }
            sums[sum_place(first + r, TILE_COLUMNS * (lane_number() % 4) + lane_number() / 4)] = own;
        }
    }
};

/* Fragments of m8n8k128: a lane has word lane % 4 of left row lane / 4 and of right column lane / 4, and the sums of
 * row lane / 4 and columns 2 * (lane % 4) and 2 * (lane % 4) + 1. */
struct Mma8Form {
    static constexpr int32_t ROWS = 8, PLANES_AHEAD = 4;
    static constexpr bool IS_AHEAD = true;
    int32_t sum[COLUMN_TILES][2];

    template <int32_t PAIR> DEVICE void add(const Quad (&rows)[1], const Quad (&columns)[2], int32_t weight) {
        int32_t ones[2][2] = {};
        for (int32_t e = 0; e < CHUNK_STEPS; e++)
            for (int32_t u = 0; u < 2; u++)
                mma_m8n8k128_b1_and_popc(ones[u][0], ones[u][1], rows[0].step[e], columns[u].step[e]);
        for (int32_t u = 0; u < 2; u++)
            for (int32_t k = 0; k < 2; k++) sum[2 * PAIR + u][k] += ones[u][k] * weight;
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t first) const {
        for (int32_t t = 0; t < COLUMN_TILES; t++)
            for (int32_t k = 0; k < 2; k++)
                sums[sum_place(first + lane_number() / 4, TILE_COLUMNS * t + 2 * (lane_number() % 4) + k)] = sum[t][k];
    }
};

/* Fragments of m16n8k256: those of m8n8k128 for rows 0 to 7 and 8 to 15, and for two steps. */
struct Mma16Form {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    static constexpr int32_t ROWS = 16, PLANES_AHEAD = 2; /* instructions that replace the products take registers */
#else
    static constexpr int32_t ROWS = 16, PLANES_AHEAD = 4;
#endif
    static constexpr bool IS_AHEAD = true;
    int32_t sum[COLUMN_TILES][4];

    template <int32_t PAIR> DEVICE void add(const Quad (&rows)[2], const Quad (&columns)[2], int32_t weight) {
        int32_t ones[2][4] = {};
        for (int32_t e = 0; e < CHUNK_STEPS; e += 2)
            for (int32_t u = 0; u < 2; u++) {
                const uint32_t left[4] = {rows[0].step[e], rows[1].step[e], rows[0].step[e + 1], rows[1].step[e + 1]};
                const uint32_t right[2] = {columns[u].step[e], columns[u].step[e + 1]};
                mma_m16n8k256_b1_and_popc(ones[u], left, right);
            }
        for (int32_t u = 0; u < 2; u++)
            for (int32_t k = 0; k < 4; k++) sum[2 * PAIR + u][k] += ones[u][k] * weight;
    }
    template <typename Sums> DEVICE void store(Sums &sums, int32_t first) const {
        for (int32_t t = 0; t < COLUMN_TILES; t++)
            for (int32_t k = 0; k < 4; k++)
                sums[sum_place(first + k / 2 * 8 + lane_number() / 4,
                               TILE_COLUMNS * t + 2 * (lane_number() % 4) + k % 2)] = sum[t][k];
    }
};

/* The work of a warp: rows from the block's `row` on, and every num_shares-th chunk from number `share` on. */
struct WarpWork {
    int32_t share, num_shares, row, block_rows;

    template <typename Form> DEVICE static WarpWork of(int32_t num_shares) {
        const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE;
        return {warp % num_shares, num_shares, warp / num_shares * Form::ROWS, WARPS / num_shares * Form::ROWS};
    }
    /* Sums of a share lie behind those of the share before. */
    DEVICE int32_t first_place() const { return share * block_rows + row; }

    /* After a barrier: the sum of a row of the block and a column. */
    template <typename Sums> DEVICE int32_t whole_sum(const Sums &sums, int32_t row, int32_t column) const {
        int32_t whole = 0;
        for (int32_t s = 0; s < num_shares; s++) whole += sums[sum_place(s * block_rows + row, column)];
        return whole;
    }
};

template <int32_t PAIR>
DEVICE void load_columns(const LaneLines &right, int32_t plane, int32_t step, Quad (&columns)[2]) {
    for (int32_t u = 0; u < 2; u++) columns[u] = right.quad(plane, 2 * PAIR + u, step);
}

template <int32_t PAIR, int32_t PLANES, typename Form>
DEVICE void add_pair(Form &form, const Quad (&rows)[PLANES][Form::ROWS / 8], int32_t num_planes,
                     const Quad (&columns)[2], int32_t place, bool is_negative) {
#pragma unroll
    for (int32_t i = 0; i < PLANES; i++) {
        if (i >= num_planes) break; /* the same in all lanes of the warp */
        form.template add<PAIR>(rows[i], columns, plane_weight(place + i, is_negative));
    }
}

/* Add the planes first_plane .. first_plane + PLANES - 1 of the rows: all planes of one chunk are loaded together, or,
 * if there is one plane, CHUNKS_AHEAD chunks. */
template <int32_t PLANES, typename Form, typename Rows>
DEVICE void add_planes(Form &form, const Rows &left, int32_t first_plane, const LaneLines &right, bool has_second,
                       bool is_signed, const WarpWork &work) {
    constexpr int32_t CHUNKS = PLANES == 1 ? CHUNKS_AHEAD : 1;
    const int32_t stride = work.num_shares * CHUNK_STEPS, num_planes = left.num_planes - first_plane;
    Quad columns[2][2];
    if (Form::IS_AHEAD) load_columns<0>(right, 0, work.share * CHUNK_STEPS, columns[0]);
#pragma unroll 1
    for (int32_t step = work.share * CHUNK_STEPS; step < right.num_steps; step += CHUNKS * stride) {
        Quad rows[CHUNKS][PLANES][Form::ROWS / 8];
        left.load(first_plane, step, stride, rows);
#pragma unroll
        for (int32_t c = 0; c < CHUNKS; c++) {
            const int32_t at = step + c * stride;
            if (at >= right.num_steps) break;
#pragma unroll 1
            for (int32_t j = 0; j < right.num_planes; j++) {
                const bool is_last = j + 1 == right.num_planes, is_negative = is_signed && is_last;
                if (!Form::IS_AHEAD) load_columns<0>(right, j, at, columns[0]);
                else if (has_second) load_columns<1>(right, j, at, columns[1]);
                add_pair<0, PLANES>(form, rows[c], num_planes, columns[0], first_plane + j, is_negative);
                const int32_t next = is_last ? 0 : j + 1;
                if (Form::IS_AHEAD) load_columns<0>(right, next, is_last ? at + stride : at, columns[0]);
                else if (has_second) load_columns<1>(right, j, at, columns[0]);
                if (has_second)
                    add_pair<1, PLANES>(form, rows[c], num_planes, columns[Form::IS_AHEAD], first_plane + j,
                                        is_negative);
            }
        }
    }
}

/* All lanes of a warp: adds the products of its rows and 32 columns over the chunks of its share; a second pair of
 * tiles without lines is left out. */
template <typename Form, typename Rows>
DEVICE void add_products(Form &form, const Rows &left, const Lines &right, int64_t first_column, bool is_signed,
                         const WarpWork &work) {
    const LaneLines columns(right, first_column);
    const bool has_second = right.num_lines - first_column > 2 * TILE_COLUMNS;
    if (left.num_planes == 1) {
        add_planes<1>(form, left, 0, columns, has_second, is_signed, work);
        return;
    }
#pragma unroll 1
    for (int32_t i = 0; i < left.num_planes; i += Form::PLANES_AHEAD)
        add_planes<Form::PLANES_AHEAD>(form, left, i, columns, has_second, is_signed, work);
}
#endif
