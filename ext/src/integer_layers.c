#define _GNU_SOURCE /* syscall, of amx.h */
/* Batches that take tiles are summed by batch_tiles.c, which is compiled in here with its kernels. */
#include "batch_tiles.c"

#include "amx.h"
#include "integer_layers.h"

#define PADDING 32          /* columns of mapped rows */
#define PANEL_PADDING 16    /* outputs, at every level */
#define CODE_PADDING 64     /* bytes of a row of codes: whole tiles */
#define MOST_BLOCK_ROWS 48  /* rows that meet the weights together */
#define ENTRIES_A_FLUSH 256 /* 256 codes of 8 bits fit a sum of 16 */
#define PREFETCH_ENTRIES 32
#define BLOCKS_AT_ONCE 4    /* of one thread */

/* What one thread works in: rows of one batch. */
typedef struct {
    uint8_t *block;      /* codes of a block of rows, from planes */
    uint16_t *halves;    /* codes of a block of rows as 16 bits, where bytes are not summed */
    int32_t *sums;       /* of a block of rows, or one row's */
    int32_t *own;        /* sums with weights of the row itself */
    int32_t *tiled;      /* sums of tiles */
    uint8_t *codes[2];   /* codes that even and odd convolutions read; rows padded to CODE_PADDING */
    uint8_t *mapped;     /* mapped codes, to be summed; rows padded to PADDING */
    int8_t *dense;       /* mapped without padding, for tiles */
    float *rows;         /* values of a block of rows, row_stride apart */
    uint8_t *between;    /* codes of these rows between the two maps of a convolution */
    uint8_t *line;       /* codes of one row */
    int64_t row_stride;
} batch_space;

/* The neighbors' rows to sum: entries by `indptr`, with row 0 at the address `rows`, which need not be memory; or, in
 * `tiled`, finished sums. The rows of the first num_ahead entries may be prefetched. */
typedef struct {
    const int64_t *indptr;
    const int32_t *indices;
    uintptr_t rows;
    int64_t row_bytes, num_ahead;
    const int32_t *tiled;
    int bits; /* that a code takes */
} neighbor_rows;

/* What is added to each code when rows are expanded to bytes. */
static int offset_of(const code_planes *rows) {
    if (!rows->is_signed) return 0;
    return rows->begin ? 128 : 1 << (rows->num_planes - 1);
}

static int64_t entry_of(const degree_scales *scales, const int32_t *in_degree, int64_t row) {
    return least(in_degree[row], scales->num_degrees - 1);
}

#undef BODY
#define BODY "integer_layers_body.h"
#include "byte_levels.h"

typedef void (*panel_function)(const weight_rows *, int64_t, int, const weight_panels *, int64_t);
typedef int (*batch_function)(const batch_tiles *, const layer_stack *, int64_t, const batch_space *, float *,
                              float *);
typedef int (*rows_function)(const layer_stack *, const whole_graph *, int64_t, int64_t, int64_t, const batch_space *,
                             float *, float *);
typedef int64_t (*number_function)(void);
typedef void (*plain_function)(void);
static const rows_function FORWARD_ROWS[] = BYTE_LEVELS(forward_rows);
static const number_function BLOCK_ROWS_OF[] = BYTE_LEVELS(block_rows);
static const panel_function LAY_OUT[] = BYTE_LEVELS(lay_out_panel);
static const batch_function FORWARD[] = BYTE_LEVELS(forward_batch);
static const plain_function BEGIN[] = BYTE_LEVELS(begin_products), END[] = BYTE_LEVELS(end_products);

static void *aligned(int64_t bytes) { return aligned_alloc(64, (size_t)padded_to(bytes + 1, 64)); }

/* Panels of one map, or of two that read the same rows, one behind the other; `other` may be NULL. */
static int lay_out(int level, const weight_rows *map, const weight_rows *other, int offset, weight_panels *panels) {
    const int64_t lanes = PANEL_OUTPUTS[level], width = padded_to(map->num_outputs, PANEL_PADDING);
    panels->num_outputs = width + (other ? padded_to(other->num_outputs, PANEL_PADDING) : 0);
    panels->num_panels = panels->num_outputs / lanes;
    panels->num_words = words_of_row(level, map->dim);
    panels->words = aligned(panels->num_panels * panels->num_words * lanes * 4);
    panels->base = aligned(panels->num_outputs * 4);
    if (!panels->words || !panels->base) return 0;
    for (int64_t p = 0; p < panels->num_panels; p++)
        if (p < width / lanes)
            LAY_OUT[level](map, p, offset, panels, p);
        else
            LAY_OUT[level](other, p - width / lanes, offset, panels, p);
    return 1;
}

/* Bits of the field that holds codes of `bits` bits. */
static int field_bits(int bits) { return bits > 4 ? 8 : bits > 2 ? 4 : 2; }

static int64_t field_bytes(int64_t dim, int bits, int64_t multiple_of_bytes) {
    return bits == 8 ? padded_to(dim, multiple_of_bytes) : padded_to(parts(dim * bits, 8), 8);
}

static void choose_form(integer_layer *layer, int is_whole) {
    float largest = 0;
    for (int64_t d = 0; d < layer->rows.num_degrees; d++)
        largest = layer->rows.limit[d] > largest ? layer->rows.limit[d] : largest;
    layer->stored_bits = is_whole ? field_bits(layer->mapped_bits) : 8;
    layer->code_bits = is_whole ? largest < 4 ? 2 : largest < 16 ? 4 : 8 : 8;
    layer->mapped_bytes = field_bytes(layer->map.num_outputs, layer->stored_bits, PADDING);
    layer->code_bytes = field_bytes(layer->map.dim, layer->code_bits, CODE_PADDING);
}

int lay_out_layers(layer_stack *m) {
    m->level = byte_level();
    for (int64_t l = 0; l < m->num_layers; l++) {
        integer_layer *layer = &m->layers[l];
        /* Rows that an activation has made are never negative, so that their codes are bytes without an offset. */
        const int offset = l ? 0 : offset_of(&m->rows);
        choose_form(layer, m->is_whole);
        const weight_rows *own = layer->own.codes ? &layer->own : NULL;
        if (!lay_out(m->level, &layer->map, m->is_whole ? NULL : own, offset, &layer->panels)) return 0;
        if (own && m->is_whole && !lay_out(m->level, own, NULL, offset, &layer->own_panels)) return 0;
        if (layer->second.codes && !lay_out(m->level, &layer->second, NULL, 0, &layer->second_panels)) return 0;
    }
    return 1;
}

void free_layers(layer_stack *m) {
    for (int64_t l = 0; l < m->num_layers; l++) {
        weight_panels *panels[] = {&m->layers[l].panels, &m->layers[l].own_panels, &m->layers[l].second_panels};
        for (int i = 0; i < 3; i++) {
            free(panels[i]->words);
            free(panels[i]->base);
            *panels[i] = (weight_panels){0};
        }
    }
}

typedef struct {
    int64_t rows, code_bytes, sums, mapped;
} space_sizes;

/* Sizes for the rows of the largest batch, or of one block where `a` is NULL. */
static space_sizes sizes_of(const batch_tiles *a, const layer_stack *m) {
    space_sizes most = {1, CODE_PADDING, PANEL_PADDING, PADDING};
#define AT_LEAST(place, number) most.place = most.place < (number) ? (number) : most.place
    for (int64_t b = 0; a && b < a->num_batches; b++) AT_LEAST(rows, a->row_begin[b + 1] - a->row_begin[b]);
    for (int64_t l = 0; l < m->num_layers; l++) {
        const integer_layer *layer = &m->layers[l];
        AT_LEAST(code_bytes, padded_to(layer->map.dim, CODE_PADDING));
        AT_LEAST(code_bytes, padded_to(layer->map.num_outputs, CODE_PADDING));
        AT_LEAST(code_bytes, padded_to(layer->second.num_outputs, CODE_PADDING));
        AT_LEAST(code_bytes, padded_to(layer->code_bytes * 8 / layer->code_bits, CODE_PADDING));
        AT_LEAST(sums, layer->panels.num_outputs);
        AT_LEAST(sums, layer->second_panels.num_outputs);
        AT_LEAST(mapped, padded_to(layer->map.num_outputs, PADDING));
        AT_LEAST(mapped, padded_to(layer->second.num_outputs, PADDING));
        AT_LEAST(mapped, padded_to(layer->mapped_bytes * 8 / layer->stored_bits, PADDING));
    }
#undef AT_LEAST
    return most;
}

enum { NUM_PARTS = 12 };

/* Where each part of a thread's space begins, in the order of batch_space; returns the bytes of all. */
static int64_t parts_of_space(space_sizes most, int64_t *begin) {
    const int64_t rows = most.rows + MOST_BLOCK_ROWS; /* whole blocks are read */
    const int64_t block_codes = MOST_BLOCK_ROWS * most.code_bytes, mapped = rows * most.mapped;
    const int64_t sums = most.sums > most.mapped ? most.sums : most.mapped;
    const int64_t bytes[NUM_PARTS] = {block_codes, block_codes * 2, MOST_BLOCK_ROWS * sums * 4, mapped * 4, mapped * 4,
                                      rows * most.code_bytes, rows * most.code_bytes, mapped, mapped,
                                      MOST_BLOCK_ROWS * most.mapped * 4, block_codes, most.mapped};
    int64_t total = 0;
    for (int i = 0; i < NUM_PARTS; i++) {
        begin[i] = total;
        total += padded_to(bytes[i], 64) + 64; /* vectors may be read past the last row */
    }
    return total;
}

int64_t batch_space_bytes(batch_tiles a, layer_stack m) {
    int64_t begin[NUM_PARTS];
    return parts_of_space(sizes_of(&a, &m), begin);
}

/* One allocation for all parts of a thread's space; NULL if memory is short. It is not initialized: rows past a block's
 * last row and columns past a row's last column are read, but results from them are never used. */
static char *make_space(space_sizes most, batch_space *space) {
    int64_t begin[NUM_PARTS];
    const int64_t total = parts_of_space(most, begin);
    char *memory = aligned(total);
    if (!memory) return NULL;
    *space = (batch_space){(uint8_t *)memory + begin[0], (uint16_t *)(memory + begin[1]), (int32_t *)(memory + begin[2]),
                           (int32_t *)(memory + begin[3]), (int32_t *)(memory + begin[4]),
                           {(uint8_t *)memory + begin[5], (uint8_t *)memory + begin[6]}, (uint8_t *)memory + begin[7],
                           (int8_t *)memory + begin[8], (float *)(memory + begin[9]), (uint8_t *)memory + begin[10],
                           (uint8_t *)memory + begin[11], most.mapped};
    return memory;
}

int forward_batches(batch_tiles a, layer_stack m, float *logits, float *hidden) {
    const space_sizes most = sizes_of(&a, &m);
    int faults = LAYERS_FINE;
#pragma omp parallel reduction(| : faults)
    {
        batch_space space;
        char *memory = make_space(most, &space);
        if (!memory) faults |= LAYERS_SHORT;
        BEGIN[m.level]();
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < a.num_batches; b++)
            if (memory) faults |= FORWARD[m.level](&a, &m, b, &space, logits, hidden);
        END[m.level]();
        free(memory);
    }
    return faults;
}

int forward_rows(layer_stack m, whole_graph g, int64_t l, int64_t first, int64_t stop, float *logits, float *hidden) {
    const space_sizes most = sizes_of(NULL, &m);
    const int64_t block_rows = BLOCK_ROWS_OF[m.level]();
    int faults = LAYERS_FINE;
#pragma omp parallel reduction(| : faults)
    {
        batch_space space;
        char *memory = make_space(most, &space);
        if (!memory) faults |= LAYERS_SHORT;
        BEGIN[m.level]();
#pragma omp for schedule(dynamic, BLOCKS_AT_ONCE)
        for (int64_t row = first; row < stop; row += block_rows)
            if (memory)
                faults |= FORWARD_ROWS[m.level](&m, &g, l, row, least(stop - row, block_rows), &space, logits, hidden);
        END[m.level]();
        free(memory);
    }
    return faults;
}
