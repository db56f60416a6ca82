/* For each answer, the candidates of its row whose products are above its own, and those that equal it. */
#ifndef HPCGNN_RIVALS_H
#define HPCGNN_RIVALS_H
#include <stdint.h>

void count_rivals(const float *products, int64_t num_columns, const int64_t *row, const float *bar,
                  int64_t num_answers, int64_t *better, int64_t *equal);
#endif
