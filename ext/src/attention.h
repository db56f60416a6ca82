/* Attention over the entries of a sparse matrix: scores of rows, softmax over a row's entries, and their backwards.
 *
 * A value of entry e and head k lies at e * num_heads + k. Every sum has one order, whatever the threads and the SIMD
 * level: 16 partial sums taken in turn, then halved until one is left. */
#ifndef HPCGNN_ATTENTION_H
#define HPCGNN_ATTENTION_H
#include "storage.h"

/* Row v has the entries begin[v] .. end[v]-1, entry e the column indices[e]. Tasks are ranges of rows with about
 * equally many entries: task t is rows task[t] .. task[t+1]-1. */
typedef struct {
    int64_t num_entries, num_tasks, num_heads;
    const int64_t *begin, *end, *task;
    const int32_t *indices;
} entry_rows;

/* num_rows rows of num_heads * head_dim columns. */
typedef struct {
    void *rows;
    int64_t num_rows, num_heads, head_dim;
    int storage;
} head_rows;

/* score[k][u][head] = <head's columns of row u, head's columns of vector k>; vectors is (num_vectors, dim). */
void head_scores(head_rows h, int64_t num_vectors, const float *vectors, float *score);

/* Adds the gradient of z through its scores to `gradient`, for the first rows of z. partial[t] is the gradient of the
 * vectors over the HEAD_TASK_ROWS rows of task t. */
enum { HEAD_TASK_ROWS = 2048 };
void head_scores_backward(head_rows z, head_rows gradient, int64_t num_vectors, const float *vectors,
                          const float *score_gradient, float *partial);

/* alpha[e] = softmax over the entries of row v of LeakyReLU(target[v] + source[u]), the row's maximum subtracted.
 * A score of minus infinity has alpha 0, also in a row that has no other. */
void edge_softmax(entry_rows a, const float *target, const float *source, float slope, float *alpha);

/* Turns the gradient of alpha, in place, into that of target[v] + source[u]; sums it over each row. */
void edge_softmax_backward(entry_rows a, const float *target, const float *source, float slope, const float *alpha,
                           float *gradient, float *target_gradient);

/* out[v] = sum of value[entry_index[e]] over the entries e of row v. */
void sum_entries(entry_rows a, const int64_t *entry_index, const float *value, float *out);

/* out[i] = value[entry_index[i]] for num_entries entries. */
void take_entries(int64_t num_entries, int64_t num_heads, const int64_t *entry_index, const float *value, float *out);

/* out[e] = <head's columns of row v of left, head's columns of row u of right>: SDDMM. */
void sampled_products(entry_rows a, head_rows left, head_rows right, float *out);

/* Rows that all heads share. Row v of head k lies at row k * num_rows + v of `by_head`, of head_dim columns. A row's
 * sums take its entries in turn.
 *
 * sums_by_head:       by_head[k][v] = sum over e of weight[e][k] * shared[u]
 * products_by_head:   out[e][k] = <by_head[k][v], shared[u]>
 * sum_over_heads:     shared[v] = sum over e and k of weight[e][k] * by_head[k][u] */
void sums_by_head(entry_rows a, const float *weight, head_rows shared, head_rows by_head);
void products_by_head(entry_rows a, head_rows by_head, head_rows shared, float *out);
void sum_over_heads(entry_rows a, const float *weight, head_rows by_head, head_rows shared);
#endif
