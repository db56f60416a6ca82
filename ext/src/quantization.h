/* Rows of any storage <-> bytes on the wire: affine or rotated codes of 1, 2, 4 or 8 bits, or 16- or 32-bit elements.
 *
 * Wire of one row of dim columns at width b: ceil(dim*b/8) bytes, a little-endian bit stream, code of column j at bits
 * [j*b, (j+1)*b). Rows of 1 to 8 bits also have a parameter pair (zero_point, step), two bf16 values; rotated ones a step.
 *   value ~ zero_point + step*code,  zero_point <= min(row) and never -0,  step >= (max(row) - zero_point)/(2^b - 1)
 * Codes are floor((x - zero_point)/step + u), u = (draw + 1/2)/2^16, so the expectation is x up to
 * 2^-17 + 2^(b-22) steps: half the spacing of the draws, and four float32 roundings of up to 2^b steps.
 * Rounding to the nearest has u = 1/2, and values beyond the ends get the first or the last code. At 8 bits its
 * parameters are those above; at 2 and 4 bits, the line of least squares through the codes that those would yield; at 1
 * bit, the centroids of both parts of the row, split where the least error energy is left, always less than the row's.
 * In a rotated message a row of 1 to 8 bits is x ~ R' (step * q), R the rotation of rotation.h and q = code -
 * (2^b - 1)/2. With u the power of two at or below max|x|, y = R (x/u) is nearly normal whatever x is: its codes are
 * floor(y/delta + 2^(b-1)), clamped, delta = K_b rms(y) the best step of a normal distribution, and at 1 bit whether y
 * >= 0. step = u y.y/y.q, so that the decoded row's product with x is x.x; to the nearest u y.q/q.q, which has the least
 * error. Sums are those of sum_sixteen. (Vargaftik et al., DRIVE, NeurIPS 2021; EDEN, ICML 2022; Max, 1960.)
 * A row of 16 bits has no parameters. From float32 it is bf16 with stochastic rounding of the 16 bits dropped, exactly
 * unbiased, or the nearest bf16; from 16-bit storage it is the row's own elements. A row of 32 bits is the row in
 * float32.
 */
#ifndef HPCGNN_QUANTIZATION_H
#define HPCGNN_QUANTIZATION_H
#include "philox.h"
#include "storage.h"

/* One message: rows row_index[i] of `rows` (leading dimension dim, of one storage) at bit_width[i]; its bytes begin at
 * message[payload_offset[i]], its parameters at message[parameter_offset[i]]. node_id[i] keys the randomness. */
typedef struct {
    int64_t num_rows, dim, num_table_rows, num_bytes; /* of the message; of `rows`; of the message's bytes */
    int storage, is_rotated;
    counter_key rotation; /* of the signs, where rows are rotated */
    const int32_t *row_index;
    const int64_t *node_id;
    const uint8_t *bit_width;
    const int64_t *payload_offset, *parameter_offset;
} message_rows;

enum { ROUND_STOCHASTIC = 0, ROUND_NEAREST = 1 };

/* Returns -1, or the first i whose row can't be quantized: NaN, infinite or too large (checked at 1 to 8 bits only); or
 * -2 - i for the first i whose row is not in the table or not within the message. */
int64_t quantize_rows(const void *rows, message_rows m, counter_key key, int rounding, uint8_t *message);

/* accumulate = 0: rows[row_index[i]] = value; 1: rows[row_index[i]] += value, in float32. Stored to nearest even.
 * Returns -1, or -2 - i as above. */
int64_t dequantize_rows(const uint8_t *message, message_rows m, int accumulate, void *rows);
#endif
