/* Weight codes in the order in which products of bytes read them: words[p][w] holds, for each output of panel p, the
 * weights for word w of a row. The level decides how many codes a word has, and how many outputs a panel. */
#ifndef HPCGNN_CODE_PRODUCTS_H
#define HPCGNN_CODE_PRODUCTS_H
#include "numbers.h"

typedef struct {
    const int8_t *codes; /* (num_outputs, dim) */
    int64_t num_outputs, dim;
} weight_rows;

typedef struct {
    uint32_t *words;
    int64_t num_words, num_panels;
    int64_t num_outputs; /* of a row of sums; panels past them are cut */
    int32_t *base;       /* what the sums of all rows begin with, by output */
} weight_panels;
#endif
