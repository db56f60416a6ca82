/* Batches that take tiles are summed by batch_tiles.c, which is compiled in here with its kernels. */
#include "batch_tiles.c"

#include "batched_layers.h"

#define PADDING 32          /* columns */
#define PANEL_OUTPUTS 16    /* whose weights lie together */
#define BLOCK_LINES 16      /* rows that meet a panel of weights together, a multiple of every level's LINES */
#define ENTRIES_A_FLUSH 256 /* 256 codes of 8 bits fit a sum of 16 */

static int64_t padded_to(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

/* What one thread works in: rows of one batch. Rows of codes are padded as outputs are, with vectors' reads past the last. */
typedef struct {
    int16_t *wide;   /* BLOCK_LINES rows of codes as 16 bits */
    int32_t *sums;   /* of BLOCK_LINES rows, or one row's */
    int32_t *own;    /* sums of BLOCK_LINES rows with weights of their own */
    int32_t *tiled;  /* sums of tiles */
    uint8_t *codes[2]; /* that convolutions read, even and odd ones */
    uint8_t *mapped; /* that are summed */
    int8_t *dense;   /* mapped without padding, for tiles */
    float *rows;     /* values of BLOCK_LINES rows, row_stride apart */
    uint8_t *between; /* codes of as many rows between the maps of a convolution */
    int64_t row_stride;
} batch_space;

#undef BODY
#define BODY "batched_layers_body.h"
#include "levels.h"
#if HPCGNN_LEVELS == 3
BEGIN_TARGET(AVX512_BITS)
#define LEVEL_NAME counting
#define LEVEL_LANES 16
#define LEVEL_COUNTS_BITS
#include BODY
#undef LEVEL_COUNTS_BITS
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#endif

typedef int (*batch_function)(const batch_tiles *, const batched_model *, int64_t, const batch_space *, float *,
                              float *);
static const batch_function FORWARD[] = KERNEL(forward_batch);

typedef struct {
    int64_t rows, in_dim, out_dim;
} space_sizes;

static space_sizes sizes_of(const batch_tiles *a, const batched_model *m) {
    space_sizes most = {1, 1, PADDING};
    for (int64_t b = 0; b < a->num_batches; b++) {
        const int64_t rows = a->row_begin[b + 1] - a->row_begin[b];
        most.rows = rows > most.rows ? rows : most.rows;
    }
    for (int64_t l = 0; l < m->num_layers; l++) {
        const batched_layer *layer = &m->layers[l];
        const int64_t outs[] = {padded_to(layer->map.out_dim, PADDING), padded_to(layer->second.out_dim, PADDING)};
        for (int i = 0; i < 2; i++) most.out_dim = outs[i] > most.out_dim ? outs[i] : most.out_dim;
        most.in_dim = layer->map.in_dim > most.in_dim ? layer->map.in_dim : most.in_dim;
    }
    most.in_dim = padded_to(most.in_dim > most.out_dim ? most.in_dim : most.out_dim, PADDING);
    return most;
}

/* One allocation for all parts of a thread's space; NULL where memory is short. */
static char *make_space(space_sizes most, batch_space *space) {
    const int64_t cells = (most.rows + 1) * most.out_dim;
    const int64_t block = BLOCK_LINES * most.out_dim;
    const int64_t bytes[] = {BLOCK_LINES * most.in_dim * 2, block * 4, block * 4, cells * 4, cells, cells, cells, cells,
                             block * 4, block};
    enum { NUM_PARTS = sizeof bytes / sizeof *bytes };
    int64_t begin[NUM_PARTS], total = 0;
    for (int i = 0; i < NUM_PARTS; i++) {
        begin[i] = total;
        total += padded_to(bytes[i], 64);
    }
    char *memory = aligned_alloc(64, (size_t)total);
    if (!memory) return NULL;
    memset(memory, 0, (size_t)total);
    *space = (batch_space){(int16_t *)(memory + begin[0]), (int32_t *)(memory + begin[1]), (int32_t *)(memory + begin[2]),
                           (int32_t *)(memory + begin[3]),
                           {(uint8_t *)memory + begin[4], (uint8_t *)memory + begin[5]}, (uint8_t *)memory + begin[6],
                           (int8_t *)memory + begin[7], (float *)(memory + begin[8]), (uint8_t *)memory + begin[9],
                           most.out_dim};
    return memory;
}

int forward_batches(batch_tiles a, batched_model m, float *logits, float *hidden) {
    const int kernel = kernel_number();
    const space_sizes most = sizes_of(&a, &m);
    int faults = LAYERS_FINE;
#pragma omp parallel reduction(| : faults)
    {
        batch_space space;
        char *memory = make_space(most, &space);
        if (!memory) faults |= LAYERS_SHORT;
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < a.num_batches; b++)
            if (memory) faults |= FORWARD[kernel](&a, &m, b, &space, logits, hidden);
        free(memory);
    }
    return faults;
}
