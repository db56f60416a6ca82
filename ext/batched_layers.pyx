"""All convolutions of a model on batches. A shell over ext/src/batched_layers.c; contracts are checked in hpcgnn.ops."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

cdef extern from "batched_layers.h":
    ctypedef unsigned int uint32_t
    ctypedef struct batch_tiles:
        int64_t num_batches
        const int64_t *row_begin
        const int64_t *tile_row_begin
        const int64_t *tile_begin
        const int32_t *tile_column
        const uint32_t *tile_words
        const int64_t *indptr
    ctypedef struct weight_pairs:
        int64_t in_dim, out_dim
        const int16_t *weight
    ctypedef struct batched_layer:
        weight_pairs map, second, own
        const float *ratio
        const float *mapped_step
        const float *bias
        const float *second_scale
        const float *second_bias
        const float *own_scale
        const float *row_step
        const float *row_limit
        const float *row_factor
        const float *second_step
        const float *second_limit
        float mapped_limit, epsilon
        int mapped_bits, reads_signed, adds_near, scales_mapped
        const uint8_t *takes_tiles
    ctypedef struct batched_model:
        int64_t num_layers
        const batched_layer *layers
        const int32_t *indices
        const uint8_t *codes
    int c_forward_batches "forward_batches" (batch_tiles, batched_model, float *, float *) nogil

cdef const float *floats(const float[::1] values) noexcept:
    return NULL if values is None or values.shape[0] == 0 else &values[0]

cdef weight_pairs pairs_of(weights):
    cdef weight_pairs pairs
    cdef const int16_t[:, :, :, ::1] view
    pairs.in_dim = pairs.out_dim = 0
    pairs.weight = NULL
    if weights is not None:
        view = weights.pairs
        pairs.in_dim, pairs.out_dim, pairs.weight = weights.in_dim, weights.out_dim, &view[0, 0, 0, 0]
    return pairs


cdef class Layers:
    """The convolutions of a model with the arrays that they point to."""
    cdef batched_layer *layers
    cdef batched_model model
    cdef object kept

    def __cinit__(self, layers, *arguments):
        self.layers = <batched_layer *>calloc(len(layers) + 1, sizeof(batched_layer))
        if not self.layers:
            raise MemoryError("no memory for the convolutions of a model")

    def __dealloc__(self):
        free(self.layers)

    def __init__(self, layers, const int32_t[::1] indices, const uint8_t[:, ::1] codes):
        cdef batched_layer *layer
        cdef const uint8_t[::1] takes_tiles
        self.kept = (layers, indices, codes)
        for number, one in enumerate(layers):
            layer = &self.layers[number]
            layer.map, layer.second, layer.own = pairs_of(one.map), pairs_of(one.second), pairs_of(one.own)
            layer.own_scale = floats(one.own_scale)
            layer.adds_near, layer.scales_mapped = one.adds_near, one.scales_mapped
            layer.ratio, layer.mapped_step, layer.bias = floats(one.ratio), floats(one.mapped_step), floats(one.bias)
            layer.second_scale, layer.second_bias = floats(one.second_scale), floats(one.second_bias)
            layer.row_step, layer.row_limit = floats(one.row_step), floats(one.row_limit)
            layer.row_factor = floats(one.row_factor)
            layer.second_step, layer.second_limit = floats(one.second_step), floats(one.second_limit)
            layer.mapped_limit, layer.epsilon = one.mapped_limit, one.epsilon
            layer.mapped_bits, layer.reads_signed = one.mapped_bits, one.reads_signed
            takes_tiles = one.takes_tiles
            layer.takes_tiles = &takes_tiles[0]
        self.model.num_layers, self.model.layers = len(layers), self.layers
        self.model.indices = &indices[0] if indices.shape[0] else NULL
        self.model.codes = &codes[0, 0]

    def forward(self, const int64_t[::1] row_begin, const int64_t[::1] tile_row_begin, const int64_t[::1] tile_begin,
                const int32_t[::1] tile_column, const int32_t[:, :, ::1] words, const int64_t[::1] indptr,
                float[:, ::1] logits, float[:, ::1] hidden):
        """Logits, and what the last convolution reads unless that is None; the faults of ext/src/batched_layers.h."""
        cdef batch_tiles tiles
        cdef float *hidden_rows = NULL
        cdef int faults
        tiles.num_batches = row_begin.shape[0] - 1
        tiles.row_begin, tiles.tile_row_begin = &row_begin[0], &tile_row_begin[0]
        tiles.tile_begin, tiles.indptr = &tile_begin[0], &indptr[0]
        tiles.tile_column, tiles.tile_words = NULL, NULL
        if tile_column.shape[0]:
            tiles.tile_column = &tile_column[0]
            tiles.tile_words = <const uint32_t *>&words[0, 0, 0]
        if hidden is not None:
            hidden_rows = &hidden[0, 0]
        with nogil:
            faults = c_forward_batches(tiles, self.model, &logits[0, 0], hidden_rows)
        return faults
