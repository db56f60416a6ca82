#ifndef HPCGNN_NUMBERS_H
#define HPCGNN_NUMBERS_H
#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many parts of that size hold the number. */
static inline int64_t parts(int64_t number, int64_t size) { return (number + size - 1) / size; }

static inline int64_t padded_to(int64_t number, int64_t multiple) { return parts(number, multiple) * multiple; }
#endif
