/* Codes times weight codes, without products for zeros: from rows of codes, or from packages while they are read. A row
 * becomes a list of its non-zero codes; each is multiplied by the weights of its column. Sums are as in combination.h.
 *
 * Codes are taken whole, two per multiplication, or one bit at a time as the paper's hardware does (MEGA, section V-C):
 * plane by plane from the highest, the sum is doubled, and weights are added where the bit is set. */
#ifndef HPCGNN_COMBINATION_SPARSE_H
#define HPCGNN_COMBINATION_SPARSE_H
#include "combination.h"
#include "package.h"

/* Into out (num_rows, num_outputs); returns whether memory sufficed. */
int combine_sparse(code_rows rows, weight_rows weight, int is_by_bit, int32_t *out);

/* Rows [first, last) of packages, into out (last - first, num_outputs). Where a fault is found, out is undefined; its
 * code is NO_MEMORY where memory is short. */
enum { NO_MEMORY = -1 };
package_fault combine_packages(const packages *p, int64_t first, int64_t last, weight_rows weight, int is_by_bit,
                               int32_t *out);
#endif
