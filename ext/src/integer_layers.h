/* All convolutions of an integer model. On batches without arcs between them, a thread takes a batch through all
 * convolutions; on a whole graph, a block of rows goes through all steps between the sums of two convolutions. What
 * lies between never leaves the caches. Every bit equals that of rescale_rows (integer_rows.h) between exact sums. */
#ifndef HPCGNN_INTEGER_LAYERS_H
#define HPCGNN_INTEGER_LAYERS_H
#include "batch_tiles.h"
#include "code_products.h"

/* Steps and largest codes of rows by in-degree; larger in-degrees take the last entry. */
typedef struct {
    int64_t num_degrees;
    const float *step, *limit;
} degree_scales;

/* A convolution, GCN's, GIN's or SAGE's; a pointer that is NULL leaves its part out. Vectors of columns are padded with
 * zeros to a multiple of 32. Codes of a row are read with the step of its in-degree. */
typedef struct {
    weight_rows map, own, second; /* of the rows that are summed; of the row itself; of the result */
    const float *ratio, *mapped_step, *bias, *own_scale, *second_scale, *second_bias, *norm_weight, *norm_bias;
    const float *row_factor;          /* of each row */
    degree_scales rows, second_rows;  /* that `map` and `own` read, and `second` */
    float mapped_limit, epsilon, norm_eps;
    int mapped_bits;
    int adds_near, scales_mapped; /* the row's own mapped codes are in the sum; row_factor is in mapped rows too */
    const uint8_t *takes_tiles;   /* of each batch */
    /* Made by lay_out_layers. For batches, `own` lies behind `map` in the same panels, each padded to 16 outputs. */
    weight_panels panels, own_panels, second_panels;
    /* Made too: bits of a mapped code and of a code that the layer reads, and bytes of a row of each. Codes take 8
     * bits, or, for a whole graph, 2 or 4 if these suffice (packed_fields_body.h). */
    int stored_bits, code_bits;
    int64_t mapped_bytes, code_bytes;
} integer_layer;

/* Rows of codes as planes of bits: all rows at one width, plane after plane (BitLines of hpcgnn/ops/bit_gemm.py), or
 * each row at its own width, row after row (RowBits of hpcgnn/ops/row_codes.py). */
typedef struct {
    const uint32_t *words;
    int64_t row_words, num_padded; /* words of a plane of a row; rows of a plane */
    int num_planes;                /* of each row, where `begin` is NULL */
    const int32_t *begin;          /* planes before each row, and all */
    int is_signed;                 /* half the range of its width was added to each code */
} code_planes;

typedef struct {
    int64_t num_layers;
    integer_layer *layers;
    const int32_t *indices; /* of the rows' entries */
    const int32_t *in_degree; /* of each row, that chooses steps */
    int is_whole;           /* one graph, not batches */
    code_planes rows;       /* that the first convolution reads */
    int level;              /* byte_level() when weights were laid out */
} layer_stack;

/* Fills the panels of all layers; returns whether memory sufficed. free_layers frees them in either case. */
int lay_out_layers(layer_stack *m);
void free_layers(layer_stack *m);

/* Bytes that each thread works in. */
int64_t batch_space_bytes(batch_tiles a, layer_stack m);

enum { LAYERS_FINE = 0, LAYERS_NAN = 1, LAYERS_SHORT = 2 };

/* logits (num_rows, last out_dim), hidden (num_rows, what the last convolution reads) or NULL. Returns fault bits. */
int forward_batches(batch_tiles a, layer_stack m, float *logits, float *hidden);

/* Rows of a graph whose neighbors may belong to other ranks; entries are in [0, rows of `mapped`). */
typedef struct {
    int64_t num_rows;
    const int64_t *indptr;
    uint8_t *mapped[2]; /* codes of convolution l's mapped rows are in mapped[l % 2], mapped_bytes apart */
    uint8_t *codes;     /* that the next convolution reads, code_stride apart; NULL if not needed */
    int64_t code_stride;
} whole_graph;

/* Convolution l of the rows first .. stop - 1, or none where it is -1, and then the map of the next one. All rows that
 * they sum must have been mapped. */
int forward_rows(layer_stack m, whole_graph g, int64_t l, int64_t first, int64_t stop, float *logits, float *hidden);
#endif
