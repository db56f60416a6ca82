/* All convolutions of an integer model on batches without arcs between them: one thread takes a batch through all of them,
 * so that what lies between two convolutions never leaves its caches. The arithmetic, and every bit of the result, is that of
 * rescale_rows (integer_rows.h) between exact sums. */
#ifndef HPCGNN_BATCHED_LAYERS_H
#define HPCGNN_BATCHED_LAYERS_H
#include "batch_tiles.h"

/* Codes times weight codes, in panels of 16 outputs: weight[j / 16][k / 2][j % 16] is the pair (w[k][j], w[k + 1][j]) of
 * output j, outputs padded with zeros to a multiple of 32, in_dim to an even number. */
typedef struct {
    int64_t in_dim, out_dim;
    const int16_t *weight;
} weight_pairs;

/* A convolution, GCN's, GIN's or SAGE's; a pointer that is NULL leaves its part out. Vectors of columns are padded as
 * outputs are. Codes of a row are read with its step; `limit` is the largest one. */
typedef struct {
    weight_pairs map, second, own; /* of the rows that are summed; of the result; of the row itself */
    const float *ratio, *mapped_step, *bias, *second_scale, *second_bias, *own_scale;
    const float *row_step, *row_limit, *row_factor, *second_step, *second_limit;
    float mapped_limit, epsilon;
    int mapped_bits, reads_signed;
    int adds_near, scales_mapped; /* the row's own mapped codes are in the sum; row_factor is in mapped rows too */
    const uint8_t *takes_tiles; /* of each batch */
} batched_layer;

typedef struct {
    int64_t num_layers;
    const batched_layer *layers;
    const int32_t *indices; /* of a.indptr, rows of the whole object */
    const uint8_t *codes;   /* (num_rows, layers[0].map.in_dim) */
} batched_model;

enum { LAYERS_FINE = 0, LAYERS_NAN = 1, LAYERS_SHORT = 2 };

/* logits (num_rows, last out_dim), hidden (num_rows, what the last convolution reads) or NULL. Bits of the faults above. */
int forward_batches(batch_tiles a, batched_model m, float *logits, float *hidden);
#endif
