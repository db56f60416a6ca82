/* Rows of codes times the weight codes of a map, composed of products of bits, and what becomes of the sums: the sums
 * themselves, or signed codes as fields of a row, as planes of a column, or both.
 *
 * Maths: of rows with half a range added, sum[v, j] = sum over planes of 2^(i + k) popcount(rows_i[v] AND weights_k[j]),
 * the weights' highest plane negative, less correction[j], that half range times the sum of weights of output j. The
 * code of (sum * row_step[v]) * ratio[j] has step 1 (quantized/integer_model.py, B).
 * Threads: a block has 32 or 64 slots of rows times 32 outputs; bit_products.cuh has what a warp does. The block's sums
 * meet in shared memory, from where a thread makes a word of fields, and a warp the words of all planes of a column.
 * Slots: batches begin at multiples of 128 slots, so that no tile of an adjacency belongs to two; slot_row says which
 * row a slot has, or -1, NULL that slots are rows.
 * Determinism: integers, one thread an element; flags of faults are or-ed. */
#include "bit_products.cuh"
#include "integer_codes.cuh"

/* Planes of rows with strides, in words, and rows behind an index; zeros outside. */
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
    /* Words 4 * number and the three behind it, as 16 bytes where they lie so. */
    DEVICE uint4 quad(int32_t plane, int64_t slot, int64_t number) const {
        const int64_t row = row_of(slot), first = number * STEP_WORDS;
        if (row < 0 || first >= row_words) return make_uint4(0, 0, 0, 0);
        const uint32_t *own = words + plane * plane_stride + row * row_stride + first;
        if (first + 3 < row_words && reinterpret_cast<uintptr_t>(own) % 16 == 0)
            return *reinterpret_cast<const uint4 *>(own);
        uint32_t some[STEP_WORDS] = {0, 0, 0, 0};
        for (int32_t w = 0; w < STEP_WORDS; w++)
            if (first + w < row_words) some[w] = own[w];
        return make_uint4(some[0], some[1], some[2], some[3]);
    }
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

/* All threads: the block's sums become signed codes where they lie. Returns the thread's faults. */
template <typename Sums>
DEVICE int32_t code_sums(const MapEnd &end, const RowPlanes &rows, int64_t first_slot, int32_t num_slots,
                         int64_t first_column, Sums &sums) {
    int32_t faults = 0;
    for (int32_t k = (int32_t)threadIdx.x; k < num_slots * END_COLUMNS; k += (int32_t)blockDim.x) {
        const int32_t at = sum_place(k / END_COLUMNS, k % END_COLUMNS);
        const int64_t row = rows.row_of(first_slot + k / END_COLUMNS), column = first_column + k % END_COLUMNS;
        if (row < 0 || column >= end.num_outputs) continue;
        float scale = end.step.of(end.degree[row]);
        if (end.row_factor) scale = __fmul_rn(scale, end.row_factor[row]);
        const float x = __fmul_rn(__fmul_rn((float)(sums[at] - end.correction[column]), scale), end.ratio[column]);
        if (x != x) faults = ROW_HAS_NAN;
        sums[at] = signed_code(x, 1.0f, end.limit);
    }
    return faults;
}

/* A thread a word of fields; columns that there are not have codes of 0. */
template <typename Sums>
DEVICE void store_fields(const MapEnd &end, const RowPlanes &rows, int64_t first_slot, int32_t num_slots,
                         int64_t first_column, const Sums &sums) {
    const int32_t num_codes = codes_a_word(end.field_bits), group_words = END_COLUMNS / num_codes;
    for (int32_t k = (int32_t)threadIdx.x; k < num_slots * group_words; k += (int32_t)blockDim.x) {
        const int32_t slot = k / group_words, word = k % group_words;
        const int64_t row = rows.row_of(first_slot + slot), place = first_column / num_codes + word;
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

/* A warp a column and 32 slots; zeros where a slot has no row. */
template <typename Sums>
DEVICE void store_columns(const MapEnd &end, const RowPlanes &rows, int64_t first_slot, int32_t num_slots,
                          int64_t first_column, const Sums &sums) {
    for (int32_t k = (int32_t)threadIdx.x / WARP_SIZE; k < num_slots / WARP_SIZE * END_COLUMNS; k += WARPS) {
        const int32_t slot = k / END_COLUMNS * WARP_SIZE + lane_number();
        const int64_t column = first_column + k % END_COLUMNS;
        if (column >= end.num_padded) continue; /* all lanes of the warp */
        const bool is_inside = column < end.num_outputs && rows.row_of(first_slot + slot) >= 0;
        const int32_t code = is_inside ? sums[sum_place(slot, k % END_COLUMNS)] + (1 << (end.bit_width - 1)) : 0;
        store_planes((uint32_t)code, end.bit_width,
                     end.planes + column * end.slot_words + (first_slot + slot) / WARP_SIZE,
                     end.num_padded * end.slot_words);
    }
}

template <typename Form>
DEVICE void map_rows(const RowPlanes &rows, int32_t num_row_planes, const Lines &weights, int64_t num_column_groups,
                     const MapEnd &end) {
    SHARED_ARRAY(uint32_t, columns, CHUNK_WORDS);
    SHARED_ARRAY(int32_t, sums, WARPS * MOST_ROWS * END_COLUMNS);
    const int32_t warp = (int32_t)threadIdx.x / WARP_SIZE, num_slots = WARPS * Form::ROWS;
    const int64_t first_column = blockIdx.x % num_column_groups * END_COLUMNS;
    const int64_t first_slot = blockIdx.x / num_column_groups * num_slots, own_slot = first_slot + warp * Form::ROWS;
    Form form = {};
    add_products(form, rows, num_row_planes, own_slot < rows.num_slots, own_slot, weights, first_column, true, columns);
    form.store(sums, warp * Form::ROWS);
    __syncthreads();
    if (end.sums) {
        for (int32_t r = 0; r < Form::ROWS; r++) {
            const int64_t row = rows.row_of(own_slot + r), column = first_column + lane_number();
            if (row >= 0 && column < end.num_outputs)
                end.sums[row * end.num_outputs + column] =
                    sums[sum_place(warp * Form::ROWS + r, lane_number())] - end.correction[column];
        }
        return;
    }
    const int32_t faults = code_sums(end, rows, first_slot, num_slots, first_column, sums);
    __syncthreads();
    if (end.fields) store_fields(end, rows, first_slot, num_slots, first_column, sums);
    if (end.planes) store_columns(end, rows, first_slot, num_slots, first_column, sums);
    if (faults) atomicOr(end.faults, faults);
}

#define MAP(name, Form) \
    extern "C" __global__ void name( \
        const uint32_t *rows, int64_t plane_stride, int64_t row_stride, int32_t row_words, int32_t num_row_planes, \
        const int32_t *slot_row, int64_t num_slots, const uint32_t *weights, int64_t num_weights, \
        int32_t num_weight_planes, int64_t num_steps, int64_t num_column_groups, int64_t num_outputs, \
        const int32_t *correction, int32_t *sums, const int32_t *degree, const float *step, int32_t num_entries, \
        const float *row_factor, const float *ratio, float limit, uint32_t *fields, int32_t field_bits, \
        int64_t field_words, uint32_t *planes, int32_t bit_width, int64_t num_padded, int64_t slot_words, \
        int32_t *faults) { \
        map_rows<Form>({rows, plane_stride, row_stride, row_words, slot_row, num_slots}, num_row_planes, \
                       {weights, num_weights, num_steps, num_weight_planes}, num_column_groups, \
                       {num_outputs, correction, sums, degree, {step, num_entries}, row_factor, ratio, limit, fields, \
                        field_bits, field_words, planes, bit_width, num_padded, slot_words, faults}); \
    }
MAP(map_popcount, PopcountForm)
MAP(map_mma8, Mma8Form)
MAP(map_mma16, Mma16Form)
