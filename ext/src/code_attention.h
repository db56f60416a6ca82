/* Attention over codes in exact integers, so that its bits depend on no order of neighbors.
 *
 *   score  s[v, u] = leaky(target[v] + source[u]), fixed point of SCORE_BITS bits, leaky(x) = x / 5 below 0
 *   weight e[v, u] = 2^WEIGHT_BITS exp(s[v, u] - max over u), rounded to an integer
 *   out[v, j]      = (sum of e[v, u] codes[u, j]) / (sum of e[v, u]), one division of two exact sums
 *
 * over the entries u of row v and v itself, head by head; heads share the columns evenly. The exponential is
 * 2^-(k + hi / 2^10 + lo / 2^20) from two tables, without a float. Rows are independent tasks. */
#ifndef HPCGNN_CODE_ATTENTION_H
#define HPCGNN_CODE_ATTENTION_H
#include <stdint.h>

#define SCORE_BITS 36
#define WEIGHT_BITS 23
#define TABLE_BITS 30 /* of what the tables hold, and of log2(e) */

typedef struct {
    int64_t num_rows, first, num_codes, num_entries, dim, num_heads;
    const int64_t *indptr;  /* num_rows + 1 */
    const int32_t *indices;
    const int8_t *codes;    /* num_codes x dim; row v of the result is row first + v here */
    const int64_t *target, *source; /* num_codes x num_heads */
    const int64_t *coarse, *fine;   /* 2^-(i / 2^10) and 2^-(i / 2^20), 1024 each */
} code_attention;

/* Scores of all codes, num_codes x num_heads, by two vectors of dim whole numbers; no sum passes 2^53. Of the structure,
 * num_codes, dim, num_heads and codes are read. */
void score_codes(code_attention attention, const double *vectors, int64_t *target, int64_t *source);

/* Returns 0, or 1 where an entry names no row, 2 where indptr does not rise within the entries, 3 without memory. */
int attend_codes(code_attention attention, float *out);
#endif
