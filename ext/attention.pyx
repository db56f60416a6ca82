"""Attention over the entries of a sparse matrix. A shell over ext/src/attention.c; hpcgnn.ops checks contracts."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "attention.h":
    ctypedef struct entry_rows:
        int64_t num_entries, num_tasks, num_heads
        const int64_t *begin
        const int64_t *end
        const int64_t *task
        const int32_t *indices
    ctypedef struct head_rows:
        void *rows
        int64_t num_rows, num_heads, head_dim
        int storage
    const int64_t HEAD_TASK_ROWS
    void c_head_scores "head_scores" (head_rows, int64_t, const float *, float *) nogil
    void c_head_scores_backward "head_scores_backward" (head_rows, head_rows, int64_t, const float *, const float *,
                                                        float *) nogil
    void c_edge_softmax "edge_softmax" (entry_rows, const float *, const float *, float, float *) nogil
    void c_edge_softmax_backward "edge_softmax_backward" (entry_rows, const float *, const float *, float,
                                                          const float *, float *, float *) nogil
    void c_sum_entries "sum_entries" (entry_rows, const int64_t *, const float *, float *) nogil
    void c_take_entries "take_entries" (int64_t, int64_t, const int64_t *, const float *, float *) nogil
    void c_sampled_products "sampled_products" (entry_rows, head_rows, head_rows, float *) nogil
    void c_sums_by_head "sums_by_head" (entry_rows, const float *, head_rows, head_rows) nogil
    void c_products_by_head "products_by_head" (entry_rows, head_rows, head_rows, float *) nogil
    void c_sum_over_heads "sum_over_heads" (entry_rows, const float *, head_rows, head_rows) nogil

TASK_ROWS = HEAD_TASK_ROWS

cdef entry_rows entries_of(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                           const int32_t[::1] indices, int64_t num_heads) noexcept:
    cdef entry_rows a
    a.num_entries, a.num_tasks, a.num_heads = indices.shape[0], task.shape[0] - 1, num_heads
    a.begin, a.end, a.task, a.indices = &begin[0], &end[0], &task[0], &indices[0]
    return a

cdef head_rows heads_of(const uint8_t[:, ::1] rows, int64_t num_heads, int64_t head_dim, int storage) noexcept:
    cdef head_rows h
    h.rows = <void *>&rows[0, 0]
    h.num_rows, h.num_heads, h.head_dim, h.storage = rows.shape[0], num_heads, head_dim, storage
    return h


def head_scores(const uint8_t[:, ::1] rows, int storage, int64_t head_dim, const float[:, ::1] vectors,
                float[:, :, ::1] score):
    """score[k, u, head] = <row u, vector k> over the head's columns."""
    if score.shape[0] == 0 or score.shape[1] == 0 or score.shape[2] == 0:
        return
    if head_dim == 0:
        score[:, :, :] = 0
        return
    cdef head_rows h = heads_of(rows, score.shape[2], head_dim, storage)
    with nogil:
        c_head_scores(h, vectors.shape[0], &vectors[0, 0], &score[0, 0, 0])


def head_scores_backward(const uint8_t[:, ::1] rows, uint8_t[:, ::1] gradient, int storage, int64_t head_dim,
                         const float[:, ::1] vectors, const float[:, :, ::1] score_gradient, float[:, :, ::1] partial):
    """Add to gradient; partial[t] is the gradient of the vectors over rows t * TASK_ROWS and on."""
    if partial.shape[0] == 0 or partial.shape[1] == 0 or partial.shape[2] == 0:
        return
    cdef head_rows z = heads_of(rows, score_gradient.shape[2], head_dim, storage)
    cdef head_rows g = heads_of(gradient, score_gradient.shape[2], head_dim, storage)
    with nogil:
        c_head_scores_backward(z, g, vectors.shape[0], &vectors[0, 0], &score_gradient[0, 0, 0], &partial[0, 0, 0])


def edge_softmax(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                 const int32_t[::1] indices, const float[:, ::1] target, const float[:, ::1] source, float slope,
                 float[:, ::1] alpha):
    """alpha[e] = softmax over the entries of row v of LeakyReLU(target[v] + source[u])."""
    if alpha.shape[0] == 0 or alpha.shape[1] == 0:
        return
    cdef entry_rows a = entries_of(begin, end, task, indices, alpha.shape[1])
    with nogil:
        c_edge_softmax(a, &target[0, 0], &source[0, 0], slope, &alpha[0, 0])


def edge_softmax_backward(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                          const int32_t[::1] indices, const float[:, ::1] target, const float[:, ::1] source,
                          float slope, const float[:, ::1] alpha, float[:, ::1] gradient,
                          float[:, ::1] target_gradient):
    """Turn the gradient of alpha, in place, into that of target[v] + source[u]; target_gradient sums it by row."""
    if alpha.shape[0] == 0 or alpha.shape[1] == 0:
        target_gradient[:, :] = 0
        return
    cdef entry_rows a = entries_of(begin, end, task, indices, alpha.shape[1])
    with nogil:
        c_edge_softmax_backward(a, &target[0, 0], &source[0, 0], slope, &alpha[0, 0], &gradient[0, 0],
                                &target_gradient[0, 0])


def sum_entries(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                const int32_t[::1] indices, const int64_t[::1] entry_index, const float[:, ::1] value,
                float[:, ::1] out):
    """out[v] = sum of value[entry_index[e]] over the entries of row v."""
    if value.shape[0] == 0 or value.shape[1] == 0:
        out[:, :] = 0
        return
    cdef entry_rows a = entries_of(begin, end, task, indices, value.shape[1])
    with nogil:
        c_sum_entries(a, &entry_index[0], &value[0, 0], &out[0, 0])


def take_entries(const int64_t[::1] entry_index, const float[:, ::1] value, float[:, ::1] out):
    """out[i] = value[entry_index[i]]."""
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    with nogil:
        c_take_entries(out.shape[0], out.shape[1], &entry_index[0], &value[0, 0], &out[0, 0])


def sampled_products(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                     const int32_t[::1] indices, int storage, int64_t head_dim, const uint8_t[:, ::1] left,
                     const uint8_t[:, ::1] right, float[:, ::1] out):
    """out[e, head] = <left row v, right row u> over the head's columns."""
    if out.shape[0] == 0 or out.shape[1] == 0 or head_dim == 0:
        out[:, :] = 0
        return
    cdef entry_rows a = entries_of(begin, end, task, indices, out.shape[1])
    cdef head_rows x = heads_of(left, out.shape[1], head_dim, storage)
    cdef head_rows y = heads_of(right, out.shape[1], head_dim, storage)
    with nogil:
        c_sampled_products(a, x, y, &out[0, 0])


def sums_by_head(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                 const int32_t[::1] indices, const float[:, ::1] weight, int storage, const uint8_t[:, ::1] shared,
                 uint8_t[:, ::1] by_head):
    """by_head[k * num_rows + v] = sum over the entries of row v of weight[e, k] * shared[u]."""
    if by_head.shape[0] == 0 or by_head.shape[1] == 0:
        return
    if indices.shape[0] == 0:
        by_head[:, :] = 0
        return
    cdef int64_t num_heads = weight.shape[1]
    cdef entry_rows a = entries_of(begin, end, task, indices, num_heads)
    cdef head_rows x = shared_of(shared, storage)
    cdef head_rows y = shared_of(by_head, storage)
    y.num_rows = begin.shape[0]
    with nogil:
        c_sums_by_head(a, &weight[0, 0], x, y)


def products_by_head(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                     const int32_t[::1] indices, int storage, const uint8_t[:, ::1] by_head,
                     const uint8_t[:, ::1] shared, float[:, ::1] out):
    """out[e, k] = <by_head[k * num_rows + v], shared[u]>."""
    if out.shape[0] == 0 or out.shape[1] == 0 or shared.shape[1] == 0:
        out[:, :] = 0
        return
    cdef entry_rows a = entries_of(begin, end, task, indices, out.shape[1])
    cdef head_rows x = shared_of(by_head, storage)
    cdef head_rows y = shared_of(shared, storage)
    x.num_rows = begin.shape[0]
    with nogil:
        c_products_by_head(a, x, y, &out[0, 0])


def sum_over_heads(const int64_t[::1] begin, const int64_t[::1] end, const int64_t[::1] task,
                   const int32_t[::1] indices, const float[:, ::1] weight, int64_t num_columns, int storage,
                   const uint8_t[:, ::1] by_head, uint8_t[:, ::1] shared):
    """shared[v] = sum over the entries of row v and over k of weight[e, k] * by_head[k * num_columns + u]."""
    if shared.shape[0] == 0 or shared.shape[1] == 0:
        return
    if indices.shape[0] == 0:
        shared[:, :] = 0
        return
    cdef entry_rows a = entries_of(begin, end, task, indices, weight.shape[1])
    cdef head_rows x = shared_of(by_head, storage)
    cdef head_rows y = shared_of(shared, storage)
    x.num_rows = num_columns
    with nogil:
        c_sum_over_heads(a, &weight[0, 0], x, y)


cdef head_rows shared_of(const uint8_t[:, ::1] rows, int storage) noexcept:
    return heads_of(rows, 1, rows.shape[1] // (4 if storage == 0 else 2), storage)
