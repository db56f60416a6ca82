/* The most products of bits, small integers and floats that the instructions of the kernels can do: the same ones on
 * registers, with nothing read or written. hpcgnn bench measures those kernels against these. */
#ifndef HPCGNN_PEAKS_H
#define HPCGNN_PEAKS_H
#include <stdint.h>

/* At least num_products products of ones, shared among the threads; return their sum, which is how many were done, up to
 * 2^32 for each of some registers. */
int64_t peak_bit_products(int64_t num_products);
int64_t peak_byte_products(int64_t num_products);

/* The same in float32; and of bfloat16 with sums in float32, by tiles where they are allowed and there, else by pairs,
 * else by float32, which is what a processor without either has to do. */
int64_t peak_float_products(int64_t num_products);
int64_t peak_bfloat16_products(int64_t num_products, int allows_tiles);
#endif
