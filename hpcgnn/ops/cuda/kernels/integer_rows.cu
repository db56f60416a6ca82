/* Turns exact sums, or float rows, into what the next layer reads; sums over neighbors are made from rows of fields.
 *
 * Maths: x = sum over the entries e of row v of fields[indices[e]], less what was added to each, then as
 * integer_finish.cuh says. Rows of many entries are summed beforehand, one warp per chunk (sum_chunks), into a table of
 * their own, so that no block waits for a hub.
 * Threads: a block has 8 rows, a warp two. It sums them one after the other: neighboring lanes have neighboring words
 * of a row of fields, and where a row has fewer words than a warp has lanes, groups of lanes have different entries.
 * Bytes of four columns are added at once, and widened before they overflow.
 * Determinism: exact integers, so that atomic additions of chunks have no order. */
#include "integer_rows.cuh"

/* Rows of fields, the rows that each row sums, and where hubs lie. */
struct Neighbors {
    const int64_t *indptr;
    const int32_t *indices;
    const uint32_t *fields;
    const int32_t *hub; /* of each row, its place among the sums of hubs or -1; or NULL */
    const int32_t *hub_sums;
};

/* Sums of the codes of one word over many rows, of BITS bits per code. */
template <int32_t BITS> struct WordSums {
    static constexpr int32_t CODES = 32 / BITS, PARTS = BITS == 8 ? 2 : 8 / BITS;
    static constexpr uint32_t MASK = BITS == 8 ? 0x00ff00ffu : BITS == 4 ? 0x0f0f0f0fu : 0x03030303u;
    static constexpr int32_t MOST = BITS == 8 ? 257 : BITS == 4 ? 17 : 85; /* before a part overflows */
    uint32_t part[PARTS];
    int32_t sum[CODES];

    DEVICE void add(uint32_t word) {
#pragma unroll
        for (int32_t p = 0; p < PARTS; p++) part[p] += word >> p * BITS & MASK;
    }
    /* At 8 bits, part p has the bytes p and p + 2 of a word; else it has field number p of each of its four bytes. */
    DEVICE void widen() {
#pragma unroll
        for (int32_t p = 0; p < PARTS; p++) {
#pragma unroll
            for (int32_t b = 0; b < CODES / PARTS; b++) {
                if (BITS == 8) sum[2 * b + p] += (int32_t)(part[p] >> 16 * b & 0xffffu);
                else sum[4 * p + b] += (int32_t)(part[p] >> 8 * b & 0xffu);
            }
            part[p] = 0;
        }
    }
};

/* All lanes of a warp: out[j] (+)= sum over entries first .. end - 1 of column j of their rows, including what was
 * added to their codes. `out` has `dim` columns. */
template <int32_t BITS, bool ADDS>
DEVICE void sum_entries(const Neighbors &of, int64_t field_words, int64_t first, int64_t end, int32_t dim,
                        int32_t *out) {
    const int32_t lane = lane_number();
    int32_t group = 1;
    while (group < field_words && group < WARP_SIZE) group *= 2;
    const int32_t num_groups = WARP_SIZE / group, own_group = lane / group;
    for (int64_t begin = 0; begin < field_words; begin += WARP_SIZE) {
        const int64_t word = begin + lane % group;
        WordSums<BITS> sums = {};
        int32_t count = 0;
        for (int64_t e = first + own_group; word < field_words && e < end; e += num_groups) {
            sums.add(of.fields[of.indices[e] * field_words + word]);
            if (++count == WordSums<BITS>::MOST) {
                sums.widen();
                count = 0;
            }
        }
        sums.widen();
#pragma unroll
        for (int32_t q = 0; q < WordSums<BITS>::CODES; q++) {
            for (int32_t step = group; step < WARP_SIZE; step *= 2)
                sums.sum[q] += __shfl_xor_sync(FULL_WARP, sums.sum[q], step);
            const int64_t column = word * WordSums<BITS>::CODES + q;
            if (q / 4 % num_groups != own_group || word >= field_words || column >= dim) continue;
            if (ADDS) atomicAdd(out + column, sums.sum[q]);
            else out[column] = sums.sum[q];
        }
    }
}

/* Where a row comes from: sums over neighbors, given sums, or given float rows. */
struct RowSource {
    int64_t first; /* row of the grid's first block */
    Neighbors neighbors;
    const int32_t *sums; /* (num_rows, dim) */
    const float *rows;

    DEVICE int64_t block_first() const { return first + (int64_t)blockIdx.x * BLOCK_ROWS; }
};

template <int32_t BITS> DEVICE void finish_neighbors(const RowEnd &end, const RowSource &source) {
    const Neighbors &of = source.neighbors;
    const BlockRow own = block_row(end);
    const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE;
    for (int32_t k = 0; k < 2; k++) {
        const int64_t row = source.block_first() + 2 * warp + k;
        if (row >= end.num_rows) break; /* all lanes of the warp */
        int32_t *sums = sums_of(own.cells + (k - own.number % 2) * end.cells);
        const int32_t hub = of.hub ? of.hub[row] : -1;
        if (hub < 0) {
            sum_entries<BITS, false>(of, end.field_words, of.indptr[row], of.indptr[row + 1], end.dim, sums);
        } else {
            for (int32_t j = lane_number(); j < end.dim; j += WARP_SIZE)
                sums[j] = of.hub_sums[(int64_t)hub * end.dim + j];
        }
    }
    __syncwarp();
    const int64_t row = source.block_first() + own.number;
    end_sums(end, row < end.num_rows ? row : -1, own);
}

DEVICE void finish_given_sums(const RowEnd &end, const RowSource &source) {
    const BlockRow own = block_row(end);
    const int64_t row = source.block_first() + own.number;
    if (row < end.num_rows)
        for (int32_t j = lane_number() % ROW_LANES; j < end.dim; j += ROW_LANES)
            sums_of(own.cells)[j] = source.sums[row * end.dim + j];
    end_sums(end, row < end.num_rows ? row : -1, own);
}

DEVICE void finish_given_rows(const RowEnd &end, const RowSource &source) {
    const BlockRow own = block_row(end);
    const int64_t row = source.block_first() + own.number;
    if (row < end.num_rows)
        for (int32_t j = lane_number() % ROW_LANES; j < end.dim; j += ROW_LANES)
            own.cells[j] = source.rows[row * end.dim + j];
    end_rows(end, row < end.num_rows ? row : -1, own.cells, own.words);
}

/* Rows first .. num_rows - 1; sources that only other kernels read are NULL. */
#define FINISH(name, finish) \
    extern "C" __global__ void name( \
        int64_t first, const int64_t *indptr, const int32_t *indices, const uint32_t *fields, const int32_t *hub, \
        const int32_t *hub_sums, const int32_t *sums, const float *rows, int64_t num_rows, int32_t dim, int32_t cells, \
        const int32_t *degree, const int32_t *count, int32_t shift, const uint32_t *near, int32_t field_bits, \
        int64_t field_words, float epsilon, const float *row_factor, const float *row_step, int32_t num_row_steps, \
        const float *column_scale, const int32_t *own, const float *own_step, int32_t num_own_steps, \
        const float *own_scale, const float *bias, const float *norm_weight, const float *norm_bias, float norm_eps, \
        int32_t rectifies, float *values, uint32_t *planes, int32_t bit_width, int32_t is_signed, int32_t line_words, \
        const float *step, const float *limit, int32_t num_steps, int32_t *faults) { \
        finish(RowEnd ROW_END, RowSource{first, {indptr, indices, fields, hub, hub_sums}, sums, rows}); \
    }
FINISH(finish_neighbors_2, finish_neighbors<2>)
FINISH(finish_neighbors_4, finish_neighbors<4>)
FINISH(finish_neighbors_8, finish_neighbors<8>)
FINISH(finish_sums, finish_given_sums)
FINISH(finish_rows, finish_given_rows)

/* One warp per chunk of a hub's entries; hub_sums (num_hubs, dim) begin at 0. */
#define SUM_CHUNKS(name, BITS) \
    extern "C" __global__ void name(const int32_t *chunk_hub, const int64_t *chunk_begin, int64_t num_chunks, \
                                    const int32_t *indices, const uint32_t *fields, int64_t field_words, int32_t dim, \
                                    int32_t *hub_sums) { \
        const int64_t chunk = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE; \
        if (chunk >= num_chunks) return; \
        sum_entries<BITS, true>({NULL, indices, fields, NULL, NULL}, field_words, chunk_begin[2 * chunk], \
                                chunk_begin[2 * chunk + 1], dim, hub_sums + (int64_t)chunk_hub[chunk] * dim); \
    }
SUM_CHUNKS(sum_chunks_2, 2)
SUM_CHUNKS(sum_chunks_4, 4)
SUM_CHUNKS(sum_chunks_8, 8)
