/* Aggregation (SpMM): out[v] = row_scale[v] * sum over the entries e = (v, u) of row v of weight(e) * row u, stored
 * once, or added to out[v]. weight(e) is column_scale[u] * entry_scale[entry(e) * num_heads + head] with entry(e) =
 * entry_index[e], or e itself; each factor is 1 where its pointer is null, entry_scale also for an implied self-loop, and
 * column_scale for several heads. entry_scale is float32, or of the rows' storage, as attention's weights are. Row u is
 * near[u] below `split`, else far[u - split], or decoded from a message of 1, 2, 4 or 8 bits per value (zero_point +
 * step * code).
 *
 * Threads: segments.cuh. A lane holds PAIRS pairs of columns: one pair, or as many as 16 bytes hold. The latter needs
 * heads with a multiple of so many pairs, or a single head: its rows may begin at any address (ragged_rows.cuh).
 * blockIdx.y counts blocks of a warp's columns. Columns of all heads lie side by side, so that heads share one pass over
 * the entries. With pairs alone the instructions around each load were the limit: an H200 issued one in 79 % of its
 * cycles, at 7 % of its memory's rate.
 *
 * Determinism: segments.cuh; sums: arithmetic.cuh. */
#ifndef HPCGNN_AGGREGATION_CUH
#define HPCGNN_AGGREGATION_CUH
#include "arithmetic.cuh"
#include "ragged_rows.cuh"
#include "segments.cuh"

/* Weights of entries: in float32, or, where that pointer is null, in the storage of the rows. */
template <class T> struct entry_weights {
    const float *whole;
    const T *stored;

    DEVICE bool exist() const { return whole || stored; }
    DEVICE float operator[](int64_t place) const { return whole ? whole[place] : to_f32(stored[place]); }
};

/* What the entries of a row are multiplied with. */
template <class T> struct operands {
    const int32_t *indices;
    const float *column_scale;
    const T *near, *far;
    int64_t split, dim;
    int is_aligned;
    entry_weights<T> entry_scale;
    const int64_t *entry_index;
    int num_heads;
    const uint8_t *message, *bit_width;
    const int64_t *payload_offset, *parameter_offset;
    int64_t num_near, num_far; /* rows of the tables */
};

/* The dense row that an item reads, or NO_ENTRY. */
DEVICE item_array<int32_t> shared_columns() {
    SHARED_ARRAY(int32_t, column, ITEM_PLACES);
    return {column};
}

DEVICE item_array<uint32_t> shared_weights() {
    SHARED_ARRAY(uint32_t, weight, ITEM_PLACES);
    return {weight};
}

/* What else names an item's operand: an entry, or where a dense row or the codes of a packed one begin. */
DEVICE item_array<int64_t> shared_places() {
    SHARED_ARRAY(int64_t, place, ITEM_PLACES);
    return {place};
}

DEVICE item_array<int32_t> shared_widths() {
    SHARED_ARRAY(int32_t, width, ITEM_PLACES);
    return {width};
}

DEVICE item_array<float> shared_zero_points() {
    SHARED_ARRAY(float, zero_point, ITEM_PLACES);
    return {zero_point};
}

DEVICE item_array<float> shared_steps() {
    SHARED_ARRAY(float, step, ITEM_PLACES);
    return {step};
}

DEVICE int32_t column_of(const int32_t *indices, int64_t v, int64_t entry) {
    return static_cast<int32_t>(entry >= 0 ? indices[entry] : entry == OWN_ROW ? v : NO_ENTRY);
}

/* Where dense row u begins, NULL for NO_ENTRY. */
template <class T> DEVICE const T *dense_row(const operands<T> &from, int32_t u) {
    if (u == NO_ENTRY) return nullptr;
    const bool is_near = u < from.split;
    return (is_near ? from.near : from.far) + (is_near ? u : u - from.split) * from.dim;
}

/* Zeros where the item has no entry. */
template <int PAIRS, class T>
DEVICE lane_pairs<T, PAIRS> load_dense(const operands<T> &from, const T *row, const lane_columns &columns) {
    return row ? load_pairs<PAIRS>(row, columns, from.is_aligned) : no_pairs<T, PAIRS>();
}

/* Dense rows, one weight per entry, mirrored in shared memory. The place of an item's row is computed once, and not by
 * every lane. */
template <class A, int PAIRS> struct plain_source {
    typedef lane_pairs<typename A::storage, PAIRS> loaded;
    operands<typename A::storage> from;

    DEVICE void prepare_weight(int i, int64_t u, int64_t entry) const {
        float weight = 1.0f;
        if (u != NO_ENTRY && from.column_scale) weight = from.column_scale[u];
        if (entry >= 0 && from.entry_scale.exist())
            weight *= from.entry_scale[from.entry_index ? from.entry_index[entry] : entry];
        shared_weights()[i] = A::mirror(weight);
    }
    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        const int32_t u = column_of(from.indices, v, entry);
        shared_places()[i] = reinterpret_cast<int64_t>(dense_row(from, u));
        prepare_weight(i, u, entry);
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        typedef typename A::storage T;
        return load_dense<PAIRS>(from, reinterpret_cast<const T *>(shared_places()[i]), columns);
    }
    DEVICE typename A::operand weight(int i, const loaded &) const { return A::mirrored(shared_weights()[i]); }
    DEVICE typename A::operand value(int, const loaded &x, int p) const { return A::of(x.pair[p]); }
};

/* Dense rows, one weight per entry and head: each lane reads the weights of its columns' heads. */
template <class A, int PAIRS> struct heads_source {
    struct loaded {
        lane_pairs<typename A::storage, PAIRS> row;
        float2 weight;
    };
    operands<typename A::storage> from;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        shared_columns()[i] = column_of(from.indices, v, entry);
        shared_places()[i] = entry != NO_ENTRY && from.entry_index ? from.entry_index[entry] : entry;
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int64_t entry = shared_places()[i];
        if (entry == NO_ENTRY) return {no_pairs<typename A::storage, PAIRS>(), make_float2(0.0f, 0.0f)};
        const int64_t place = entry * from.num_heads;
        const float first = from.entry_scale[place + columns.head];
        return {load_dense<PAIRS>(from, dense_row(from, shared_columns()[i]), columns),
                make_float2(first, PAIRS == 1 ? from.entry_scale[place + columns.next_head] : first)};
    }
    DEVICE typename A::operand weight(int, const loaded &x) const { return A::of_floats(x.weight); }
    DEVICE typename A::operand value(int, const loaded &x, int p) const { return A::of(x.row.pair[p]); }
};

DEVICE float bf16_at(const uint8_t *bytes) {
    return __uint_as_float(static_cast<uint32_t>(bytes[0]) << 16 | static_cast<uint32_t>(bytes[1]) << 24);
}

/* Far rows are decoded as they are read; near ones, and an item's weight, are as in plain_source. */
template <class A, int PAIRS> struct packed_source {
    struct loaded {
        lane_pairs<typename A::storage, PAIRS> row;
        uint64_t codes; /* of all columns, the first one's in the lowest bits */
    };
    operands<typename A::storage> from;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        const int64_t u = column_of(from.indices, v, entry), far = u - from.split;
        plain_source<A, PAIRS>{from}.prepare_weight(i, u, entry);
        shared_columns()[i] = static_cast<int32_t>(u);
        shared_widths()[i] = far < 0 ? 0 : from.bit_width[far];
        if (far < 0) return;
        const uint8_t *parameters = from.message + from.parameter_offset[far];
        shared_places()[i] = from.payload_offset[far];
        shared_zero_points()[i] = bf16_at(parameters);
        shared_steps()[i] = bf16_at(parameters + 2);
    }
    /* The codes of a pair lie in one byte, or at 8 bits in two; those of more columns begin a byte or its half. */
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int bits = shared_widths()[i];
        if (bits == 0) return {load_dense<PAIRS>(from, dense_row(from, shared_columns()[i]), columns), 0};
        return load_codes(i, bits, columns);
    }
    DEVICE loaded load_codes(int i, int bits, const lane_columns &columns) const {
        const int64_t bit = columns.first * bits;
        const uint8_t *byte = from.message + shared_places()[i] + bit / 8;
        const int num_bytes = (columns.count * bits + 7) / 8;
        uint64_t codes = 0;
        for (int b = 0; b < num_bytes; b++) codes |= static_cast<uint64_t>(byte[b]) << 8 * b;
        return {no_pairs<typename A::storage, PAIRS>(), codes >> bit % 8};
    }
    DEVICE typename A::operand weight(int i, const loaded &) const { return A::mirrored(shared_weights()[i]); }
    DEVICE typename A::operand value(int i, const loaded &x, int p) const {
        const int bits = shared_widths()[i];
        if (bits == 0) return A::of(x.row.pair[p]);
        const float zero_point = shared_zero_points()[i], step = shared_steps()[i];
        const uint32_t mask = (1u << bits) - 1, codes = static_cast<uint32_t>(x.codes >> 2 * p * bits);
        /* The products have 16 bits and are exact, so fused additions give the same bits. */
        return A::of_floats(make_float2(zero_point + step * static_cast<float>(codes & mask),
                                        zero_point + step * static_cast<float>(codes >> bits & mask)));
    }
};

/* Where dense row u begins, 0 for NO_ENTRY. */
template <class T> DEVICE int64_t ragged_place(const operands<T> &from, int32_t u) {
    if (u == NO_ENTRY) return 0;
    return static_cast<int64_t>(u < from.split ? ragged_row(from.near, u, from.num_near, from.dim)
                                               : ragged_row(from.far, u - from.split, from.num_far, from.dim));
}

/* As plain_source, for rows that begin at any address: loaded words are shifted into place when they are added. */
template <class A, int PAIRS> struct ragged_source {
    typedef ragged_words loaded;
    operands<typename A::storage> from;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        const int32_t u = column_of(from.indices, v, entry);
        shared_places()[i] = ragged_place(from, u);
        plain_source<A, PAIRS>{from}.prepare_weight(i, u, entry);
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        return load_ragged<typename A::storage>(static_cast<uintptr_t>(shared_places()[i]), columns);
    }
    static DEVICE lane_pairs<typename A::storage, PAIRS> opened(const loaded &x) {
        return ::opened<typename A::storage>(x);
    }
    template <class Row> DEVICE typename A::operand weight(int i, const Row &) const {
        return A::mirrored(shared_weights()[i]);
    }
    template <class Row> DEVICE typename A::operand value(int, const Row &x, int p) const { return A::of(x.pair[p]); }
};

/* As packed_source, for rows that begin at any address. */
template <class A, int PAIRS> struct ragged_packed_source {
    struct loaded {
        ragged_words row;
        uint64_t codes;
    };
    packed_source<A, PAIRS> packed;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        packed.prepare(i, v, entry);
        if (shared_widths()[i] == 0) shared_places()[i] = ragged_place(packed.from, shared_columns()[i]);
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int bits = shared_widths()[i];
        if (bits) return {{}, packed.load_codes(i, bits, columns).codes};
        return {load_ragged<typename A::storage>(static_cast<uintptr_t>(shared_places()[i]), columns), 0};
    }
    static DEVICE typename packed_source<A, PAIRS>::loaded opened(const loaded &x) {
        return {::opened<typename A::storage>(x.row), x.codes};
    }
    template <class Row> DEVICE typename A::operand weight(int i, const Row &x) const { return packed.weight(i, x); }
    template <class Row> DEVICE typename A::operand value(int i, const Row &x, int p) const {
        return packed.value(i, x, p);
    }
};

template <class A, class Source, int PAIRS = 1, bool IS_RAGGED = false> struct row_sum {
    typedef typename A::storage T;
    struct sum {
        typename A::sum of[PAIRS];
    };
    typedef typename Source::loaded loaded;
    typedef lane_pairs<float, PAIRS> part;
    static constexpr int COLUMNS = 2 * PAIRS, WORDS = COLUMNS;

    Source source;
    const float *row_scale;
    int64_t dim;
    int is_aligned, is_added;
    float *staging;
    T *out;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const { source.prepare(i, v, entry); }
    DEVICE loaded load(int i, const lane_columns &columns) const { return source.load(i, own(columns)); }
    /* Lanes have whole pairs or words, but for the last one of a ragged row. */
    DEVICE lane_columns own(const lane_columns &columns) const {
        if constexpr (IS_RAGGED)
            return {columns.first, static_cast<int>(min(dim - columns.first, static_cast<int64_t>(COLUMNS))), 0, 0};
        else
            return columns;
    }
    DEVICE sum begin(int64_t v) const {
        sum s;
        for (int p = 0; p < PAIRS; p++) s.of[p] = A::begin(row_scale, v);
        return s;
    }
    DEVICE void add(sum &s, int i, const loaded &x) const {
        if constexpr (IS_RAGGED)
            add_opened(s, i, Source::opened(x));
        else
            add_opened(s, i, x);
    }
    template <class Opened> DEVICE void add_opened(sum &s, int i, const Opened &x) const {
        const typename A::operand weight = source.weight(i, x);
        for (int p = 0; p < PAIRS; p++) A::add(s.of[p], weight, source.value(i, x, p));
    }
    DEVICE part close(sum &s) const {
        part x;
        for (int p = 0; p < PAIRS; p++) x.pair[p] = A::close(s.of[p]);
        return x;
    }

    static DEVICE part none() { return no_pairs<float, PAIRS>(); }
    static DEVICE void merge(part &into, const part &later) {
        for (int p = 0; p < PAIRS; p++) {
            into.pair[p].x += later.pair[p].x;
            into.pair[p].y += later.pair[p].y;
        }
    }
    static DEVICE uint32_t word(const part &x, int w) {
        return __float_as_uint(w % 2 ? x.pair[w / 2].y : x.pair[w / 2].x);
    }
    static DEVICE part of_words(const uint32_t *words) {
        part x;
        for (int p = 0; p < PAIRS; p++)
            x.pair[p] = make_float2(__uint_as_float(words[2 * p]), __uint_as_float(words[2 * p + 1]));
        return x;
    }
    DEVICE void store(int64_t v, const lane_columns &columns, const part &x) const {
        const float scale = A::scale(row_scale, v);
        T *row = out + v * dim;
        part value;
        for (int p = 0; p < PAIRS; p++) value.pair[p] = make_float2(scale * x.pair[p].x, scale * x.pair[p].y);
        if (is_added) {
            lane_pairs<T, PAIRS> before;
            if constexpr (IS_RAGGED) /* column by column, since other threads store the neighboring rows */
                before = ::opened<T>(load_ragged<T>(reinterpret_cast<uintptr_t>(row) | OWN_LOADS, own(columns)));
            else
                before = load_pairs<PAIRS>(row, columns, is_aligned);
            part widened;
            for (int p = 0; p < PAIRS; p++) widened.pair[p] = widen(before.pair[p]);
            merge(value, widened);
        }
        put(row, columns, value);
    }
    DEVICE void stage(int64_t slot, const lane_columns &columns, const part &x) const {
        put(staging + slot * dim, columns, x);
    }
    template <class Stored> DEVICE void put(Stored *row, const lane_columns &columns, const part &x) const {
        if constexpr (IS_RAGGED)
            store_ragged<PAIRS>(row, own(columns), x);
        else
            store_pairs<PAIRS>(row, columns, is_aligned, x);
    }
    DEVICE part staged(int64_t slot, const lane_columns &columns) const {
        return load_pairs<PAIRS>(staging + slot * dim, columns, is_aligned);
    }
};
#endif
