/* Codes of rows of an integer model: how values round to them, and rows of fields that are summed.
 *
 * A row of fields has codes of 2, 4 or 8 bits with half their range added, in whole words that no other row shares. Of
 * the 32 / bits codes of a word, code q lies in byte q % 4, from its bit q / 4 * bits on: a shift and a mask leave the
 * codes of four neighboring columns in the four bytes of a word. */
#ifndef HPCGNN_INTEGER_CODES_CUH
#define HPCGNN_INTEGER_CODES_CUH
#include "bit_codes.cuh"

/* Faults of a pass, numbered as in ext/src/integer_rows.h. */
#define ROW_HAS_NAN 1
#define ROW_IS_NEGATIVE 2

/* sign(x) min(floor(|x| / step + 0.5), limit), the limit for NaN; each operation rounds alone, as on the host. */
DEVICE int32_t signed_code(float x, float step, float limit) {
    const float level = __fadd_rn(__fdiv_rn(fabsf(x), step), 0.5f);
    const int32_t code = (int32_t)(level < limit ? level : limit);
    return x < 0.0f ? -code : code;
}

/* Steps or limits by in-degree; larger in-degrees take the last entry. */
struct DegreeTable {
    const float *values;
    int32_t num_entries;

    DEVICE float of(int32_t degree) const { return values[degree < num_entries ? degree : num_entries - 1]; }
};

DEVICE int32_t codes_a_word(int32_t bits) { return 32 / bits; }

/* The code of column j of a row of fields, without the half range. */
DEVICE int32_t field_of(const uint32_t *row, int32_t bits, int32_t j) {
    const int32_t number = j % codes_a_word(bits);
    const uint32_t field = row[j / codes_a_word(bits)] >> (number % 4 * 8 + number / 4 * bits);
    return (int32_t)(field & ((1u << bits) - 1)) - (1 << (bits - 1));
}
#endif
