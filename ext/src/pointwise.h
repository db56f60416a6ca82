/* Element-wise work whose randomness is keyed by global node id and column. */
#ifndef HPCGNN_POINTWISE_H
#define HPCGNN_POINTWISE_H
#include "philox.h"

/* out = rows * scale where the draw of (node_id, column) is >= threshold, 0 elsewhere. threshold = round(p * 2^16),
 * scale = 2^16 / (2^16 - threshold), so E[out] = rows exactly. Its own backward: the same call on the gradient. */
void dropout_rows(const float *rows, const int64_t *node_id, int64_t num_rows, int64_t dim, counter_key key,
                  uint32_t threshold, float scale, float *out);
#endif
