/* Rows of codes times the weight codes of a map, by products of bits. The result is the sums themselves, or their
 * signed codes as fields of a row, as planes of a column, or both.
 *
 * Maths: of rows with half a range added, sum[v, j] = sum over planes of 2^(i + k) popcount(rows_i[v] AND weights_k[j]),
 * the weights' highest plane negative, less correction[j], that half range times the sum of weights of output j. The
 * code of (sum * row_step[v]) * ratio[j] has step 1 (lowbit/integer_model.py, B).
 * Threads: a block has 8 to 64 slots of rows times 32 outputs; bit_products.cuh says what a warp does. The block's sums
 * are collected in shared memory, from which a thread makes a word of fields, and a warp the words of all planes of a
 * column; a thread loads the row and the scale of one slot before the product.
 * Slots: batches begin at multiples of 128 slots, so that no tile of an adjacency belongs to two batches; slot_row is
 * the row in each slot, or -1 for none; if it is NULL, slots are rows.
 * Determinism: integers, one thread per element; flags of faults are or-ed. */
#include "bit_products.cuh"
#include "integer_codes.cuh"

/* Planes of rows with strides, in words, and rows by an index; zeros outside. */
struct RowPlanes {
    const uint32_t *words;
    int64_t plane_stride, row_stride;
    int32_t row_words;
    const int32_t *slot_row;
    int64_t num_slots;

    DEVICE int64_t row_of(int64_t slot) const {
        if (slot >= num_slots) return -1;
        return slot_row ? slot_row[slot] : slot;
    }
    /* Quads lie on 16 bytes, so a row has room for its last one; its words beyond row_words are multiplied by zeros. */
    DEVICE bool is_whole() const {
        return ((plane_stride | row_stride) % STEP_WORDS | reinterpret_cast<uintptr_t>(words) % 16) == 0;
    }
};

/* Where lane l reads word l % 4 of the row of slot l / 4 and of every eighth slot behind it; zeros outside. */
template <int32_t EIGHTS> struct LaneRows {
    const uint32_t *line[EIGHTS]; /* NULL where there is none */
    const RowPlanes &rows;
    int32_t num_planes;

    DEVICE LaneRows(const RowPlanes &rows, int32_t num_planes, int64_t first_slot) : rows(rows), num_planes(num_planes) {
        for (int32_t k = 0; k < EIGHTS; k++) {
            const int64_t row = rows.row_of(first_slot + 8 * k + lane_number() / 4);
            line[k] = row < 0 ? nullptr : rows.words + row * rows.row_stride + lane_number() % 4 * STEP_WORDS;
        }
    }
    template <typename Quads> DEVICE void load(int32_t first_plane, int32_t step, int32_t stride, Quads &quads) const {
        if (rows.is_whole()) load_quads(WholeQuads{*this}, first_plane, step, stride, quads);
        else load_quads(WordQuads{*this}, first_plane, step, stride, quads);
    }

  private:
    /* Words that the row has from this lane's first one on; 0 or less where there is none. */
    DEVICE int32_t num_left(int32_t plane, int32_t k, int32_t step) const {
        return line[k] && plane < num_planes ? rows.row_words - (step + lane_number() % 4) * STEP_WORDS : 0;
    }
    DEVICE const uint32_t *words(int32_t plane, int32_t k, int32_t step) const {
        return line[k] + plane * rows.plane_stride + step * STEP_WORDS;
    }
    struct WholeQuads {
        const LaneRows &lane;
        DEVICE Quad quad(int32_t plane, int32_t k, int32_t step) const {
            if (lane.num_left(plane, k, step) <= 0) return {};
            const uint4 words = *reinterpret_cast<const uint4 *>(lane.words(plane, k, step));
            return {{words.x, words.y, words.z, words.w}};
        }
    };
    struct WordQuads {
        const LaneRows &lane;
        DEVICE Quad quad(int32_t plane, int32_t k, int32_t step) const {
            const int32_t num_left = lane.num_left(plane, k, step);
            Quad quad = {};
            for (int32_t e = 0; e < CHUNK_STEPS; e++)
                if (e < num_left) quad.step[e] = lane.words(plane, k, step)[e];
            return quad;
        }
    };
};

/* sums, or one or both of fields and planes are not NULL. */
struct MapEnd {
    int64_t num_outputs;
    const int32_t *correction;
    int32_t *sums; /* (num_rows, num_outputs) */
    const int32_t *degree;
    DegreeTable step;
    const float *row_factor, *ratio; /* row_factor may be NULL */
    float limit;
    uint32_t *fields; /* (num_rows, field_words) */
    int32_t field_bits;
    int64_t field_words;
    uint32_t *planes; /* (bit_width, num_padded, slot_words) */
    int32_t bit_width;
    int64_t num_padded, slot_words;
    int32_t *faults;
};

/* What the scale of a slot's row is made of. */
struct SlotScale {
    int32_t degree;
    float factor;
};

DEVICE SlotScale scale_of_slot(const MapEnd &end, const RowPlanes &rows, int64_t slot, bool is_inside) {
    const int64_t row = is_inside && end.degree ? rows.row_of(slot) : -1;
    if (row < 0) return {0, 1.0f};
    return {end.degree[row], end.row_factor ? end.row_factor[row] : 1.0f};
}

/* All threads: the block's sums become signed codes at the places of the first share. Returns the thread's faults. */
template <typename Sums, typename SlotRows, typename Scales>
DEVICE int32_t code_sums(const MapEnd &end, const WarpWork &work, int64_t first_column, const SlotRows &slot_rows,
                         const Scales &scales, Sums &sums) {
    const int64_t column = first_column + lane_number();
    if (column >= end.num_outputs) return 0;
    const int32_t correction = end.correction[column];
    const float ratio = end.ratio[column];
    int32_t faults = 0;
    for (int32_t slot = (int32_t)threadIdx.x / WARP_SIZE; slot < work.block_rows; slot += WARPS) {
        if (slot_rows[slot] < 0) continue;
        const int32_t sum = work.whole_sum(sums, slot, lane_number());
        const float x = __fmul_rn(__fmul_rn((float)(sum - correction), scales[slot]), ratio);
        if (x != x) faults = ROW_HAS_NAN;
        sums[sum_place(slot, lane_number())] = signed_code(x, 1.0f, end.limit);
    }
    return faults;
}

/* One thread per word of fields; columns past the last one have codes of 0. */
template <typename Sums, typename SlotRows>
DEVICE void store_fields(const MapEnd &end, int32_t num_slots, int64_t first_column, const SlotRows &slot_rows,
                         const Sums &sums) {
    const int32_t num_codes = codes_a_word(end.field_bits), group_words = END_COLUMNS / num_codes;
    for (int32_t k = (int32_t)threadIdx.x; k < num_slots * group_words; k += (int32_t)blockDim.x) {
        const int32_t slot = k / group_words, word = k % group_words;
        const int64_t row = slot_rows[slot], place = first_column / num_codes + word;
        if (row < 0 || place >= end.field_words) continue;
        uint32_t fields = 0;
        for (int32_t q = 0; q < num_codes; q++) {
            const int32_t column = word * num_codes + q;
            const int32_t code = first_column + column < end.num_outputs ? sums[sum_place(slot, column)] : 0;
            fields |= (uint32_t)(code + (1 << (end.field_bits - 1))) << (q % 4 * 8 + q / 4 * end.field_bits);
        }
        end.fields[row * end.field_words + place] = fields;
    }
}

/* One warp per column and 32 slots; zeros where a slot has no row. */
template <typename Sums, typename SlotRows>
DEVICE void store_columns(const MapEnd &end, int64_t first_slot, int32_t num_slots, int64_t first_column,
                          const SlotRows &slot_rows, const Sums &sums) {
    for (int32_t k = (int32_t)threadIdx.x / WARP_SIZE; k < num_slots / WARP_SIZE * END_COLUMNS; k += WARPS) {
        const int32_t slot = k / END_COLUMNS * WARP_SIZE + lane_number();
        const int64_t column = first_column + k % END_COLUMNS;
        if (column >= end.num_padded) continue; /* all lanes of the warp */
        const bool is_inside = column < end.num_outputs && slot_rows[slot] >= 0;
        const int32_t code = is_inside ? sums[sum_place(slot, k % END_COLUMNS)] + (1 << (end.bit_width - 1)) : 0;
        store_planes((uint32_t)code, end.bit_width,
                     end.planes + column * end.slot_words + (first_slot + slot) / WARP_SIZE,
                     end.num_padded * end.slot_words);
    }
}

/* One warp per row of sums. */
template <typename Sums, typename SlotRows>
DEVICE void store_sums(const MapEnd &end, const WarpWork &work, int64_t first_column, const SlotRows &slot_rows,
                       const Sums &sums) {
    const int64_t column = first_column + lane_number();
    if (column >= end.num_outputs) return;
    const int32_t correction = end.correction[column];
    for (int32_t slot = (int32_t)threadIdx.x / WARP_SIZE; slot < work.block_rows; slot += WARPS) {
        const int64_t row = slot_rows[slot];
        if (row >= 0) end.sums[row * end.num_outputs + column] = work.whole_sum(sums, slot, lane_number()) - correction;
    }
}

template <typename Form>
DEVICE Form multiply_rows(const RowPlanes &rows, int32_t num_row_planes, int64_t first_slot, const Lines &weights,
                          int64_t first_column, const WarpWork &work) {
    Form form = {};
    if (first_slot >= rows.num_slots) return form; /* all lanes of the warp */
    const LaneRows<Form::ROWS / 8> own(rows, num_row_planes, first_slot);
    add_products(form, own, weights, first_column, true, work);
    return form;
}

template <typename Form>
DEVICE void map_rows(const RowPlanes &rows, int32_t num_row_planes, const Lines &weights, int32_t num_shares,
                     int32_t num_column_groups, const MapEnd &end) {
    SHARED_ARRAY(int32_t, sums, BLOCK_SUMS);
    SHARED_ARRAY(int32_t, slot_rows, WARPS * MOST_ROWS);
    SHARED_ARRAY(float, scales, WARPS * MOST_ROWS);
    const WarpWork work = WarpWork::of<Form>(num_shares);
    const int32_t block = (int32_t)blockIdx.x, own_slot = (int32_t)threadIdx.x;
    const int64_t first_column = (int64_t)(block % num_column_groups) * END_COLUMNS;
    const int64_t first_slot = (int64_t)(block / num_column_groups) * work.block_rows;
    const SlotScale own = scale_of_slot(end, rows, first_slot + own_slot, own_slot < work.block_rows);
    const Form form = multiply_rows<Form>(rows, num_row_planes, first_slot + work.row, weights, first_column, work);
    form.store(sums, work.first_place());
    if (own_slot < work.block_rows) {
        slot_rows[own_slot] = (int32_t)rows.row_of(first_slot + own_slot);
        if (!end.sums) scales[own_slot] = __fmul_rn(end.step.of(own.degree), own.factor);
    }
    __syncthreads();
    if (end.sums) {
        store_sums(end, work, first_column, slot_rows, sums);
        return;
    }
    const int32_t faults = code_sums(end, work, first_column, slot_rows, scales, sums);
    __syncthreads();
    if (end.fields) store_fields(end, work.block_rows, first_column, slot_rows, sums);
    if (end.planes) store_columns(end, first_slot, work.block_rows, first_column, slot_rows, sums);
    if (faults) atomicOr(end.faults, faults);
}

#define MAP(name, Form) \
    extern "C" __global__ void name( \
        const uint32_t *rows, int64_t plane_stride, int64_t row_stride, int32_t row_words, int32_t num_row_planes, \
        const int32_t *slot_row, int64_t num_slots, const uint32_t *weights, int64_t num_weights, \
        int32_t num_weight_planes, int64_t num_steps, int32_t num_shares, int32_t num_column_groups, \
        int64_t num_outputs, const int32_t *correction, int32_t *sums, const int32_t *degree, const float *step, \
        int32_t num_entries, const float *row_factor, const float *ratio, float limit, uint32_t *fields, \
        int32_t field_bits, int64_t field_words, uint32_t *planes, int32_t bit_width, int64_t num_padded, \
        int64_t slot_words, int32_t *faults) { \
        map_rows<Form>({rows, plane_stride, row_stride, row_words, slot_row, num_slots}, num_row_planes, \
                       {weights, num_weights, num_steps, num_weight_planes}, num_shares, num_column_groups, \
                       {num_outputs, correction, sums, degree, {step, num_entries}, row_factor, ratio, limit, fields, \
                        field_bits, field_words, planes, bit_width, num_padded, slot_words, faults}); \
    }
MAP(map_popcount, PopcountForm)
MAP(map_mma8, Mma8Form)
MAP(map_mma16, Mma16Form)
