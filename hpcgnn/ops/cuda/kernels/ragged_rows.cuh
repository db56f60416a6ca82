/* Rows of an odd number of columns: they begin at any address of their type, and each lane loads 16 bytes as for other
 * rows (the half8 of HalfGNN, Section 4.1.2; the paper pads such rows in memory, here they are not padded).
 *
 * A lane has the columns of 16 bytes. It loads the one or two aligned words of 16 bytes in which these lie, and shifts
 * them into place only when it uses them, so that its loads wait for nothing. Such a word lies in the row or in its
 * neighbors, except in the first and the last row of a table: there a lane loads its columns one by one, so nothing
 * outside the table is read. Columns past the row's end hold what lies there: they are summed in registers, and never
 * stored. */
#ifndef HPCGNN_RAGGED_ROWS_CUH
#define HPCGNN_RAGGED_ROWS_CUH
#include "pairs.cuh"

constexpr int WORD_BYTES = 16, RAGGED_WORDS = 2 * WORD_BYTES / 4;
constexpr uintptr_t OWN_LOADS = 1; /* a bit of a row's address, which is even: columns are loaded one by one */

/* Words of a lane; its columns begin `shift` bytes behind the start of the first word. */
struct ragged_words {
    uint32_t word[RAGGED_WORDS];
    uint32_t shift;
};

/* Row u of a table, marked where words around it may lie outside. */
template <class T> DEVICE uintptr_t ragged_row(const T *table, int64_t u, int64_t num_rows, int64_t dim) {
    const uintptr_t row = reinterpret_cast<uintptr_t>(table + u * dim);
    return u == 0 || u == num_rows - 1 ? row | OWN_LOADS : row;
}

DEVICE void load_word(const uint4 *place, uint32_t *word) {
    const uint4 loaded = *place;
    word[0] = loaded.x;
    word[1] = loaded.y;
    word[2] = loaded.z;
    word[3] = loaded.w;
}

/* Zeros for the address 0, which stands for no row. */
template <class T> DEVICE ragged_words load_ragged(uintptr_t row, const lane_columns &columns) {
    constexpr int COLUMNS = WORD_BYTES / sizeof(T), COLUMNS_A_WORD = 4 / sizeof(T);
    ragged_words x = {};
    if (row == 0) return x;
    if (row & OWN_LOADS) {
        const T *place = reinterpret_cast<const T *>(row - OWN_LOADS) + columns.first;
        for (int j = 0; j < COLUMNS; j++) {
            if (j >= columns.count) break;
            uint32_t bits = 0;
            if constexpr (sizeof(T) == 2)
                bits = *reinterpret_cast<const uint16_t *>(place + j);
            else
                bits = *reinterpret_cast<const uint32_t *>(place + j);
            x.word[j / COLUMNS_A_WORD] |= bits << j % COLUMNS_A_WORD * 16;
        }
        return x;
    }
    const uintptr_t place = row + columns.first * sizeof(T);
    x.shift = static_cast<uint32_t>(place % WORD_BYTES);
    const uint4 *word = reinterpret_cast<const uint4 *>(place - x.shift);
    load_word(word, x.word);
    if (x.shift + columns.count * sizeof(T) > WORD_BYTES) load_word(word + 1, x.word + RAGGED_WORDS / 2);
    return x;
}

/* The columns in their place. */
template <class T> DEVICE lane_pairs<T, WIDE_PAIRS<T>> opened(const ragged_words &x) {
    uint32_t word[RAGGED_WORDS];
    for (int w = 0; w < RAGGED_WORDS; w++) word[w] = x.word[w];
    for (int w = 0; w + 2 < RAGGED_WORDS; w++) word[w] = x.shift & 8 ? word[w + 2] : word[w];
    for (int w = 0; w + 1 < RAGGED_WORDS; w++) word[w] = x.shift & 4 ? word[w + 1] : word[w];
    if constexpr (sizeof(T) == 2)
        for (int w = 0; w < RAGGED_WORDS / 2; w++) word[w] = x.shift & 2 ? word[w] >> 16 | word[w + 1] << 16 : word[w];
    lane_pairs<T, WIDE_PAIRS<T>> pairs;
    for (int p = 0; p < WIDE_PAIRS<T>; p++)
        pairs.pair[p] = reinterpret_cast<const typename pair_of<T>::type *>(word)[p];
    return pairs;
}

/* Stores a lane's columns, two at a time where they begin on a pair, and nothing behind the row's end. */
template <int PAIRS, class T>
DEVICE void store_ragged(T *row, const lane_columns &columns, const lane_pairs<float, PAIRS> &x) {
    T *place = row + columns.first;
    const bool is_odd = reinterpret_cast<uintptr_t>(place) % (2 * sizeof(T)) != 0;
    if (is_odd) place[0] = from_f32<T>(x.pair[0].x);
    for (int p = 0; p < PAIRS; p++) {
        const float2 own = x.pair[p];
        const float2 both = is_odd ? make_float2(own.y, p + 1 < PAIRS ? x.pair[(p + 1) % PAIRS].x : 0.0f) : own;
        const int first = 2 * p + is_odd;
        if (first + 1 < columns.count)
            *reinterpret_cast<typename pair_of<T>::type *>(place + first) = narrow<T>(both);
        else if (first < columns.count)
            place[first] = from_f32<T>(both.x);
    }
}
#endif
