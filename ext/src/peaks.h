/* Peak rates of products of bits, small integers and floats: the instructions of the kernels, on registers alone, with
 * nothing read or written. hpcgnn bench measures the kernels against these. */
#ifndef HPCGNN_PEAKS_H
#define HPCGNN_PEAKS_H
#include <stdint.h>

/* Do at least num_products products of ones, shared among the threads; return their sum, which is the number done, as
 * long as no lane of a register sums more than 2^32. */
int64_t peak_bit_products(int64_t num_products);
int64_t peak_byte_products(int64_t num_products);

/* The same in float32; and of bfloat16 with sums in float32, by tiles where they are allowed and there, else by pairs,
 * else by float32, which is what a processor without either has to do. */
int64_t peak_float_products(int64_t num_products);
int64_t peak_bfloat16_products(int64_t num_products, int allows_tiles);
#endif
