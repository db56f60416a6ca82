#define _GNU_SOURCE /* syscall */
#include "peaks.h"

#include "amx.h"

#include <omp.h>

#define BODY "peaks_body.h"
#include "levels.h"
#if HAS_AVX512
BEGIN_TARGET(AVX512_BITS)
#define LEVEL_NAME special
#define LEVEL_LANES 16
#define LEVEL_COUNTS_BITS
#define LEVEL_SUMS_BYTES
#include BODY
#undef LEVEL_SUMS_BYTES
#undef LEVEL_COUNTS_BITS
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#define KERNEL(name) {PORTABLE_OF(name), AVX2_OF(name), name##_avx512, name##_special}
#else
#define KERNEL(name) ALL_LEVELS(name)
#endif

typedef int64_t (*products_function)(int64_t);
static const products_function BIT_PRODUCTS[] = KERNEL(bit_products), BYTE_PRODUCTS[] = KERNEL(byte_products),
                               FLOAT_PRODUCTS[] = KERNEL(float_products);

static int64_t on_all_threads(products_function products, int64_t num_products) {
    int64_t done = 0;
#pragma omp parallel reduction(+ : done)
    done += products((num_products + omp_get_num_threads() - 1) / omp_get_num_threads());
    return done;
}

int64_t peak_bit_products(int64_t num_products) {
    return on_all_threads(BIT_PRODUCTS[simd_counts_bits() ? 3 : simd_level()], num_products);
}

int64_t peak_float_products(int64_t num_products) {
    return on_all_threads(FLOAT_PRODUCTS[simd_level()], num_products);
}

#if HAS_AVX512
#define PAIR_SUMS 12
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512bf16")
static int64_t pair_products(int64_t num_products) {
    __m512 sums[PAIR_SUMS];
    __m512i ones = _mm512_set1_epi16(0x3f80);
    const int64_t a_round = PAIR_SUMS * 32, most_rounds = 1 << 19;
    int64_t total = 0;
    for (int64_t done = 0; done < num_products;) {
        for (int i = 0; i < PAIR_SUMS; i++) sums[i] = _mm512_setzero_ps();
        for (int64_t round = 0; round < most_rounds && done < num_products; round++, done += a_round) {
            FORGET(ones);
#pragma GCC unroll 12
            for (int i = 0; i < PAIR_SUMS; i++) {
                FORGET(ones);
                sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)ones, (__m512bh)ones);
            }
        }
        for (int i = 0; i < PAIR_SUMS; i++) total += (int64_t)_mm512_reduce_add_ps(sums[i]);
    }
    return total;
}
END_TARGET

/* Four tiles of sums, each of 16 rows and columns; two tiles of rows and two of columns, of `together` ones per row.
 * Sums are exact for most_rounds rounds. */
#define TILE_PRODUCTS(name, number, one, sum_type, together, most_rounds, multiply) \
    static int64_t name(int64_t num_products) { \
        static const int64_t a_round = 4 * 16 * 16 * together; \
        number ones[16 * together]; \
        sum_type sums[16 * 16]; \
        int64_t total = 0; \
        for (int i = 0; i < 16 * together; i++) ones[i] = one; \
        _tile_loadconfig(&WHOLE_TILES); \
        _tile_loadd(4, ones, 64); \
        _tile_loadd(5, ones, 64); \
        _tile_loadd(6, ones, 64); \
        _tile_loadd(7, ones, 64); \
        for (int64_t done = 0; done < num_products;) { \
            _tile_zero(0); \
            _tile_zero(1); \
            _tile_zero(2); \
            _tile_zero(3); \
            for (int64_t round = 0; round < most_rounds && done < num_products; round++, done += a_round) { \
                multiply(0, 4, 6); \
                multiply(1, 4, 7); \
                multiply(2, 5, 6); \
                multiply(3, 5, 7); \
            } \
            ADD_TILE(0); \
            ADD_TILE(1); \
            ADD_TILE(2); \
            ADD_TILE(3); \
        } \
        _tile_release(); \
        return total; \
    }
#define ADD_TILE(tile) \
    _tile_stored(tile, sums, 64); \
    for (int i = 0; i < 16 * 16; i++) total += (int64_t)sums[i]

BEGIN_TARGET("amx-tile,amx-bf16")
TILE_PRODUCTS(tile_products_of_bf16, uint16_t, 0x3f80, float, 32, (1 << 19), _tile_dpbf16ps)
END_TARGET
BEGIN_TARGET("amx-tile,amx-int8")
TILE_PRODUCTS(tile_products_of_bytes, uint8_t, 1, int32_t, 64, (1 << 24), _tile_dpbusd)
END_TARGET
#undef ADD_TILE
#endif

int64_t peak_byte_products(int64_t num_products) {
#if HAS_AVX512
    if (amx_multiplies_bytes()) return on_all_threads(tile_products_of_bytes, num_products);
#endif
    return on_all_threads(BYTE_PRODUCTS[simd_sums_bytes() ? 3 : simd_level()], num_products);
}

int64_t peak_bfloat16_products(int64_t num_products, int allows_tiles) {
#if HAS_AVX512
    if (allows_tiles && amx_may_use(TILES_OF_BF16)) return on_all_threads(tile_products_of_bf16, num_products);
    if (simd_multiplies_bf16()) return on_all_threads(pair_products, num_products);
#endif
    (void)allows_tiles;
    return peak_float_products(num_products);
}
