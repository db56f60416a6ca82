/* Codes times weight codes, summed exactly in int32: out[row][output] = sum over columns of code * weight.
 *
 * Codes are a byte each, uint8 or int8, and weights int8 rows of one output each. The caller has made sure that no sum
 * passes 2^31 - 1. */
#ifndef HPCGNN_COMBINATION_H
#define HPCGNN_COMBINATION_H
#include "code_products.h"

typedef struct {
    const uint8_t *codes; /* (num_rows, dim); int8 where is_signed */
    int64_t num_rows, dim;
    int is_signed;
} code_rows;

/* Every code times every weight, into out (num_rows, num_outputs); returns whether memory sufficed. */
int combine_dense(code_rows rows, weight_rows weight, int32_t *out);

typedef struct {
    int64_t num_codes; /* that are not zero */
    int bit_width;     /* the least that holds them all, two's complement where signed */
} code_survey;

code_survey survey_codes(code_rows rows);
#endif
