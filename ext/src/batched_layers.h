/* All convolutions of an integer model on batches without arcs between them: one thread takes a batch through all of them,
 * so that what lies between two convolutions never leaves its caches. The arithmetic, and every bit of the result, is that of
 * rescale_rows (integer_rows.h) between exact sums. */
#ifndef HPCGNN_BATCHED_LAYERS_H
#define HPCGNN_BATCHED_LAYERS_H
#include "batch_tiles.h"
#include "code_products.h"

/* A convolution, GCN's, GIN's or SAGE's; a pointer that is NULL leaves its part out. Vectors of columns are padded with
 * zeros to a multiple of 32. Codes of a row are read with its step; `limit` is the largest one. */
typedef struct {
    weight_rows map, own, second; /* of the rows that are summed; of the row itself; of the result */
    const float *ratio, *mapped_step, *bias, *own_scale, *second_scale, *second_bias, *norm_weight, *norm_bias;
    const float *row_step, *row_limit, *row_factor, *second_step, *second_limit;
    float mapped_limit, epsilon, norm_eps;
    int mapped_bits;
    int adds_near, scales_mapped; /* the row's own mapped codes are in the sum; row_factor is in mapped rows too */
    const uint8_t *takes_tiles;   /* of each batch */
    weight_panels panels, second_panels; /* made by lay_out_layers: `map`, then `own`, each padded to 16 outputs */
} batched_layer;

/* Rows of codes as planes of bits, see BitLines of hpcgnn/ops/bit_gemm.py; `offset` was added to each code. */
typedef struct {
    const uint32_t *words; /* (num_planes, num_padded, row_words) */
    int64_t num_padded, row_words;
    int num_planes, offset;
} code_planes;

typedef struct {
    int64_t num_layers;
    batched_layer *layers;
    const int32_t *indices; /* of a.indptr, rows of the whole object */
    code_planes rows;       /* that the first convolution reads */
    int level;              /* byte_level() when weights were laid out */
} batched_model;

/* Fills the panels of all layers; returns whether memory sufficed. free_layers gives it back in both cases. */
int lay_out_layers(batched_model *m);
void free_layers(batched_model *m);

/* Bytes that each thread works in. */
int64_t batch_space_bytes(batch_tiles a, batched_model m);

enum { LAYERS_FINE = 0, LAYERS_NAN = 1, LAYERS_SHORT = 2 };

/* logits (num_rows, last out_dim), hidden (num_rows, what the last convolution reads) or NULL. Bits of the faults above. */
int forward_batches(batch_tiles a, batched_model m, float *logits, float *hidden);
#endif
