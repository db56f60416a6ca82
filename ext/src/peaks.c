#include "peaks.h"

#include <omp.h>

#define BODY "peaks_body.h"
#include "levels.h"
#if HPCGNN_LEVELS == 3
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx512bitalg,avx512vnni,avx2,prefer-vector-width=512")
#define LEVEL_NAME special
#define LEVEL_LANES 16
#define LEVEL_COUNTS_BITS
#define LEVEL_SUMS_BYTES
#include BODY
#undef LEVEL_SUMS_BYTES
#undef LEVEL_COUNTS_BITS
#undef LEVEL_LANES
#undef LEVEL_NAME
#pragma GCC pop_options
#define KERNEL(name) {name##_portable, name##_avx2, name##_avx512, name##_special}
#else
#define KERNEL(name) {name##_portable}
#endif

typedef int64_t (*products_function)(int64_t);
static const products_function BIT_PRODUCTS[] = KERNEL(bit_products), BYTE_PRODUCTS[] = KERNEL(byte_products);

static int64_t on_all_threads(products_function products, int64_t num_products) {
    int64_t done = 0;
#pragma omp parallel reduction(+ : done)
    done += products((num_products + omp_get_num_threads() - 1) / omp_get_num_threads());
    return done;
}

int64_t peak_bit_products(int64_t num_products) {
    return on_all_threads(BIT_PRODUCTS[simd_counts_bits() ? 3 : simd_level()], num_products);
}

int64_t peak_byte_products(int64_t num_products) {
    return on_all_threads(BYTE_PRODUCTS[simd_sums_bytes() ? 3 : simd_level()], num_products);
}
