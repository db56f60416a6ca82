/* Sums of neighbors' rows of 8-bit codes, exact in int32. */
#ifndef HPCGNN_CODE_AGGREGATION_H
#define HPCGNN_CODE_AGGREGATION_H
#include <stdint.h>

/* Row v of the result sums the rows indices[indptr[v]] .. indices[indptr[v + 1] - 1] of `codes`, which has num_codes rows
 * of dim bytes, signed or not. */
typedef struct {
    int64_t num_rows, num_entries, num_codes, dim;
    const int64_t *indptr;
    const int32_t *indices;
    const uint8_t *codes;
    int is_signed;
} code_rows;

enum { CODES_SUMMED = 0, CODES_BAD_ENTRY = 1, CODES_BAD_INDPTR = 2, CODES_TOO_MANY = 3 };

/* out is (num_rows, dim), useless unless CODES_SUMMED is returned. Faults: an entry names a row that does not exist,
 * indptr does not rise within the entries, or a row has so many entries that its sum could overflow. */
int sum_code_rows(code_rows a, int32_t *out);
#endif
