"""Convolutions of a model on batches or a whole graph. A shell over ext/src/integer_layers.c; hpcgnn.ops checks contracts."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

cdef extern from "integer_layers.h":
    ctypedef unsigned int uint32_t
    ctypedef struct batch_tiles:
        int64_t num_batches
        const int64_t *row_begin
        const int64_t *tile_row_begin
        const int64_t *tile_begin
        const int32_t *tile_column
        const uint32_t *tile_words
        const int64_t *indptr
    ctypedef struct weight_rows:
        const int8_t *codes
        int64_t num_outputs, dim
    ctypedef struct degree_scales:
        int64_t num_degrees
        const float *step
        const float *limit
    ctypedef struct integer_layer:
        weight_rows map, own, second
        const float *ratio
        const float *mapped_step
        const float *bias
        const float *own_scale
        const float *second_scale
        const float *second_bias
        const float *norm_weight
        const float *norm_bias
        const float *row_factor
        degree_scales rows, second_rows
        float mapped_limit, epsilon, norm_eps
        int mapped_bits, adds_near, scales_mapped
        const uint8_t *takes_tiles
        int stored_bits, code_bits
        int64_t mapped_bytes, code_bytes
    ctypedef struct code_planes:
        const uint32_t *words
        int64_t row_words, num_padded
        int num_planes
        const int32_t *begin
        int is_signed
    ctypedef struct layer_stack:
        int64_t num_layers
        integer_layer *layers
        const int32_t *indices
        const int32_t *in_degree
        int is_whole
        code_planes rows
    int c_lay_out_layers "lay_out_layers" (layer_stack *) nogil
    void c_free_layers "free_layers" (layer_stack *) nogil
    int64_t c_batch_space_bytes "batch_space_bytes" (batch_tiles, layer_stack) nogil
    ctypedef struct whole_graph:
        int64_t num_rows
        const int64_t *indptr
        uint8_t *mapped[2]
        uint8_t *codes
        int64_t code_stride
    int c_forward_rows "forward_rows" (layer_stack, whole_graph, int64_t, int64_t, int64_t, float *, float *) nogil
    int c_forward_batches "forward_batches" (batch_tiles, layer_stack, float *, float *) nogil

cdef float *values_of(float[:, ::1] values) noexcept:
    return NULL if values is None or values.shape[0] == 0 or values.shape[1] == 0 else &values[0, 0]

cdef const float *floats(const float[::1] values) noexcept:
    return NULL if values is None or values.shape[0] == 0 else &values[0]

cdef degree_scales scales_of(scales):
    cdef degree_scales made
    made.num_degrees, made.step, made.limit = 0, NULL, NULL
    if scales is not None:
        made.num_degrees, made.step, made.limit = len(scales.step), floats(scales.step), floats(scales.limit)
    return made

cdef weight_rows weights_of(const int8_t[:, ::1] codes) noexcept:
    cdef weight_rows weights
    weights.num_outputs = weights.dim = 0
    weights.codes = NULL
    if codes is not None:
        weights.num_outputs, weights.dim, weights.codes = codes.shape[0], codes.shape[1], &codes[0, 0]
    return weights


cdef class Layers:
    """The convolutions of a model with the arrays that they point to."""
    cdef layer_stack model
    cdef object kept

    def __cinit__(self, layers, *arguments):
        self.model.layers = <integer_layer *>calloc(len(layers) + 1, sizeof(integer_layer))
        if not self.model.layers:
            raise MemoryError("no memory for the convolutions of a model")
        self.model.num_layers = len(layers)

    def __dealloc__(self):
        if self.model.layers:
            c_free_layers(&self.model)
        free(self.model.layers)

    def __init__(self, layers, const int32_t[::1] indices, const int32_t[::1] in_degree, const int32_t[:, ::1] words,
                 const int32_t[::1] begin, int num_planes, bint is_signed, bint is_whole):
        """`words` holds the planes of all rows, one after the other; if `begin` is None, num_planes of each row."""
        cdef integer_layer *layer
        cdef const uint8_t[::1] takes_tiles
        self.kept = (layers, indices, in_degree, words, begin)
        for number, one in enumerate(layers):
            layer = &self.model.layers[number]
            layer.map, layer.own, layer.second = weights_of(one.map), weights_of(one.own), weights_of(one.second)
            layer.own_scale = floats(one.own_scale)
            layer.adds_near, layer.scales_mapped = one.adds_near, one.scales_mapped
            layer.ratio, layer.mapped_step, layer.bias = floats(one.ratio), floats(one.mapped_step), floats(one.bias)
            layer.second_scale, layer.second_bias = floats(one.second_scale), floats(one.second_bias)
            layer.norm_weight, layer.norm_bias = floats(one.norm_weight), floats(one.norm_bias)
            layer.rows, layer.second_rows = scales_of(one.rows), scales_of(one.second_rows)
            layer.row_factor = floats(one.row_factor)
            layer.mapped_limit, layer.epsilon, layer.norm_eps = one.mapped_limit, one.epsilon, one.norm_eps
            layer.mapped_bits = one.mapped_bits
            takes_tiles = one.takes_tiles
            layer.takes_tiles = NULL if takes_tiles is None else &takes_tiles[0]
        self.model.is_whole = is_whole
        self.model.indices = &indices[0] if indices.shape[0] else NULL
        self.model.in_degree = &in_degree[0] if in_degree.shape[0] else NULL
        self.model.rows.words = <const uint32_t *>&words[0, 0] if words.shape[0] else NULL
        self.model.rows.row_words, self.model.rows.is_signed = words.shape[1], is_signed
        self.model.rows.num_planes, self.model.rows.num_padded = num_planes, words.shape[0] // max(num_planes, 1)
        self.model.rows.begin = NULL if begin is None else &begin[0]
        if not c_lay_out_layers(&self.model):
            raise MemoryError("no memory for the weights of a model")

    def forward(self, const int64_t[::1] row_begin, const int64_t[::1] tile_row_begin, const int64_t[::1] tile_begin,
                const int32_t[::1] tile_column, const int32_t[:, :, ::1] words, const int64_t[::1] indptr,
                float[:, ::1] logits, float[:, ::1] hidden):
        """Write logits and, unless it is None, what the last convolution reads; return integer_layers.h's faults."""
        cdef batch_tiles tiles
        cdef float *hidden_rows = values_of(hidden)
        cdef int faults
        tiles.num_batches = row_begin.shape[0] - 1
        tiles.row_begin, tiles.tile_row_begin = &row_begin[0], &tile_row_begin[0]
        tiles.tile_begin, tiles.indptr = &tile_begin[0], &indptr[0]
        tiles.tile_column, tiles.tile_words = NULL, NULL
        if tile_column.shape[0]:
            tiles.tile_column = &tile_column[0]
            tiles.tile_words = <const uint32_t *>&words[0, 0, 0]
        with nogil:
            faults = c_forward_batches(tiles, self.model, &logits[0, 0], hidden_rows)
        return faults

    def space_bytes(self, const int64_t[::1] row_begin):
        """Bytes that one thread works in."""
        cdef batch_tiles tiles
        tiles.num_batches, tiles.row_begin = row_begin.shape[0] - 1, &row_begin[0]
        return c_batch_space_bytes(tiles, self.model)

    def forward_rows(self, int64_t number, int64_t first, int64_t stop, const int64_t[::1] indptr,
                     uint8_t[::1] even, uint8_t[::1] odd, uint8_t[:, ::1] codes, float[:, ::1] logits,
                     float[:, ::1] hidden):
        """Run convolution `number` of some rows, -1 for none, and the map of the next one; return the faults."""
        cdef whole_graph graph
        cdef float *logit_rows = values_of(logits)
        cdef float *hidden_rows = values_of(hidden)
        cdef int faults
        graph.num_rows, graph.indptr = indptr.shape[0] - 1, &indptr[0]
        graph.mapped[0], graph.mapped[1] = &even[0], &odd[0]
        graph.codes, graph.code_stride = NULL, 0
        if codes is not None:
            graph.codes, graph.code_stride = &codes[0, 0], codes.shape[1]
        with nogil:
            faults = c_forward_rows(self.model, graph, number, first, stop, logit_rows, hidden_rows)
        return faults

    def mapped_form(self, int64_t number):
        """Bits of a convolution's mapped codes, and bytes of a row of them."""
        return self.model.layers[number].stored_bits, self.model.layers[number].mapped_bytes

    def code_form(self, int64_t number):
        """Bits of the codes that a convolution reads, and bytes of a row of them."""
        return self.model.layers[number].code_bits, self.model.layers[number].code_bytes
