/* Aggregation (SpMM): out[v] = row_scale[v] * sum over the entries e = (v, u) of row v of weight(e) * row u, stored
 * once, or added to out[v]. weight(e) is column_scale[u] * entry_scale[entry(e) * num_heads + head] with entry(e) =
 * entry_index[e], or e itself; each factor is 1 where its pointer is null, entry_scale also for an implied self-loop, and
 * column_scale for several heads. Row u is near[u] below `split`, else far[u - split], or decoded from a message of 1, 2,
 * 4 or 8 bits a value (zero_point + step * code).
 *
 * Threads: segments.cuh. A lane holds two columns; blockIdx.y counts blocks of 64 columns. Columns of all heads lie
 * side by side, so that heads share one pass over the entries.
 *
 * Determinism: segments.cuh; sums: arithmetic.cuh. */
#ifndef HPCGNN_AGGREGATION_CUH
#define HPCGNN_AGGREGATION_CUH
#include "arithmetic.cuh"
#include "segments.cuh"

/* What the entries of a row are multiplied with. */
template <class T> struct operands {
    const int32_t *indices;
    const float *column_scale;
    const T *near, *far;
    int64_t split, dim;
    int is_aligned;
    const float *entry_scale;
    const int64_t *entry_index;
    int num_heads;
    const uint8_t *message, *bit_width;
    const int64_t *payload_offset, *parameter_offset;
};

/* The dense row that an item reads, or NO_ENTRY. */
DEVICE auto &shared_columns() {
    SHARED_ARRAY(int32_t, column, MAX_ITEMS);
    return column;
}

DEVICE auto &shared_weights() {
    SHARED_ARRAY(uint32_t, weight, MAX_ITEMS);
    return weight;
}

/* What else names an item's operand: an entry, or where the codes of a packed row begin. */
DEVICE auto &shared_places() {
    SHARED_ARRAY(int64_t, place, MAX_ITEMS);
    return place;
}

DEVICE auto &shared_widths() {
    SHARED_ARRAY(int32_t, width, MAX_ITEMS);
    return width;
}

DEVICE auto &shared_zero_points() {
    SHARED_ARRAY(float, zero_point, MAX_ITEMS);
    return zero_point;
}

DEVICE auto &shared_steps() {
    SHARED_ARRAY(float, step, MAX_ITEMS);
    return step;
}

DEVICE int32_t column_of(const int32_t *indices, int64_t v, int64_t entry) {
    return static_cast<int32_t>(entry >= 0 ? indices[entry] : entry == OWN_ROW ? v : NO_ENTRY);
}

/* Zero where the item has no entry. */
template <class T>
DEVICE typename pair_of<T>::type load_dense(const operands<T> &from, int64_t u, const lane_columns &columns) {
    if (u == NO_ENTRY) return no_pair<T>();
    const T *table = u < from.split ? from.near : from.far;
    return load_pair(table + (u < from.split ? u : u - from.split) * from.dim, columns, from.is_aligned);
}

/* Dense rows, one weight an entry, mirrored in shared memory. */
template <class A> struct plain_source {
    typedef typename pair_of<typename A::storage>::type loaded;
    operands<typename A::storage> from;

    DEVICE void prepare_weight(int i, int64_t u, int64_t entry) const {
        float weight = 1.0f;
        if (u != NO_ENTRY && from.column_scale) weight = from.column_scale[u];
        if (entry >= 0 && from.entry_scale)
            weight *= from.entry_scale[from.entry_index ? from.entry_index[entry] : entry];
        shared_weights()[i] = A::mirror(weight);
    }
    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        shared_columns()[i] = column_of(from.indices, v, entry);
        prepare_weight(i, column_of(from.indices, v, entry), entry);
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        return load_dense(from, shared_columns()[i], columns);
    }
    DEVICE typename A::operand weight(int i, const loaded &) const { return A::mirrored(shared_weights()[i]); }
    DEVICE typename A::operand value(int, const loaded &x) const { return A::of(x); }
};

/* Dense rows, a weight an entry and head: each lane reads those of its columns' heads. */
template <class A> struct heads_source {
    struct loaded {
        typename pair_of<typename A::storage>::type row;
        float2 weight;
    };
    operands<typename A::storage> from;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        shared_columns()[i] = column_of(from.indices, v, entry);
        shared_places()[i] = entry != NO_ENTRY && from.entry_index ? from.entry_index[entry] : entry;
    }
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int64_t entry = shared_places()[i];
        if (entry == NO_ENTRY) return {no_pair<typename A::storage>(), make_float2(0.0f, 0.0f)};
        const float *weights = from.entry_scale + entry * from.num_heads;
        return {load_dense(from, shared_columns()[i], columns),
                make_float2(weights[columns.head], weights[columns.next_head])};
    }
    DEVICE typename A::operand weight(int, const loaded &x) const { return A::of_floats(x.weight); }
    DEVICE typename A::operand value(int, const loaded &x) const { return A::of(x.row); }
};

DEVICE float bf16_at(const uint8_t *bytes) {
    return __uint_as_float(static_cast<uint32_t>(bytes[0]) << 16 | static_cast<uint32_t>(bytes[1]) << 24);
}

/* Far rows are decoded as they are read; near ones, and an item's weight, are as in plain_source. */
template <class A> struct packed_source {
    struct loaded {
        typename pair_of<typename A::storage>::type row;
        uint32_t codes; /* of both columns, the first one's in the lower bits */
    };
    operands<typename A::storage> from;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const {
        const int64_t u = column_of(from.indices, v, entry), far = u - from.split;
        plain_source<A>{from}.prepare_weight(i, u, entry);
        shared_columns()[i] = static_cast<int32_t>(u);
        shared_widths()[i] = far < 0 ? 0 : from.bit_width[far];
        if (far < 0) return;
        const uint8_t *parameters = from.message + from.parameter_offset[far];
        shared_places()[i] = from.payload_offset[far];
        shared_zero_points()[i] = bf16_at(parameters);
        shared_steps()[i] = bf16_at(parameters + 2);
    }
    /* The codes of two columns lie in one byte, or at 8 bits in two. */
    DEVICE loaded load(int i, const lane_columns &columns) const {
        const int bits = shared_widths()[i];
        if (bits == 0) return {load_dense(from, shared_columns()[i], columns), 0};
        const int64_t bit = columns.first * bits;
        const uint8_t *byte = from.message + shared_places()[i] + bit / 8;
        const uint32_t second = bits == 8 && columns.count == 2 ? byte[1] : 0;
        return {no_pair<typename A::storage>(), (byte[0] | second << 8) >> bit % 8};
    }
    DEVICE typename A::operand weight(int i, const loaded &) const { return A::mirrored(shared_weights()[i]); }
    DEVICE typename A::operand value(int i, const loaded &x) const {
        const int bits = shared_widths()[i];
        if (bits == 0) return A::of(x.row);
        const float zero_point = shared_zero_points()[i], step = shared_steps()[i];
        const uint32_t mask = (1u << bits) - 1;
        /* The products have 16 bits and are exact, so that it is all one whether additions are fused with them. */
        return A::of_floats(make_float2(zero_point + step * static_cast<float>(x.codes & mask),
                                        zero_point + step * static_cast<float>(x.codes >> bits & mask)));
    }
};

template <class A, class Source> struct row_sum {
    typedef typename A::storage T;
    typedef typename A::sum sum;
    typedef typename Source::loaded loaded;
    typedef float2 part;
    static constexpr int WORDS = 2;

    Source source;
    const float *row_scale;
    int64_t dim;
    int is_aligned, is_added;
    float *staging;
    T *out;

    DEVICE void prepare(int i, int64_t v, int64_t entry) const { source.prepare(i, v, entry); }
    DEVICE loaded load(int i, const lane_columns &columns) const { return source.load(i, columns); }
    DEVICE sum begin(int64_t v) const { return A::begin(row_scale, v); }
    DEVICE void add(sum &s, int i, const loaded &x) const { A::add(s, source.weight(i, x), source.value(i, x)); }
    DEVICE part close(sum &s) const { return A::close(s); }

    static DEVICE part none() { return make_float2(0.0f, 0.0f); }
    static DEVICE void merge(part &into, part later) {
        into.x += later.x;
        into.y += later.y;
    }
    static DEVICE uint32_t word(part x, int w) { return __float_as_uint(w ? x.y : x.x); }
    static DEVICE part of_words(const uint32_t *words) {
        return make_float2(__uint_as_float(words[0]), __uint_as_float(words[1]));
    }
    DEVICE void store(int64_t v, const lane_columns &columns, part x) const {
        const float scale = A::scale(row_scale, v);
        float2 value = make_float2(scale * x.x, scale * x.y);
        if (is_added) merge(value, widen(load_pair(out + v * dim, columns, is_aligned)));
        store_pair(out + v * dim, columns, is_aligned, value);
    }
    DEVICE void stage(int64_t slot, const lane_columns &columns, part x) const {
        store_pair(staging + slot * dim, columns, is_aligned, x);
    }
    DEVICE part staged(int64_t slot, const lane_columns &columns) const {
        return load_pair(staging + slot * dim, columns, is_aligned);
    }
};
#endif
