#define _GNU_SOURCE /* syscall */
#include "peaks.h"

#include <omp.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define BODY "peaks_body.h"
#include "levels.h"
#if HPCGNN_LEVELS == 3
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
#define KERNEL(name) {name##_portable, name##_avx2, name##_avx512, name##_special}
#else
#define KERNEL(name) {name##_portable}
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

int64_t peak_byte_products(int64_t num_products) {
    return on_all_threads(BYTE_PRODUCTS[simd_sums_bytes() ? 3 : simd_level()], num_products);
}

int64_t peak_float_products(int64_t num_products) {
    return on_all_threads(FLOAT_PRODUCTS[simd_level()], num_products);
}

#if HPCGNN_LEVELS == 3
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

/* Four tiles of sums, each of 16 rows and columns; two tiles of rows and two of columns, of 32 ones. */
BEGIN_TARGET("amx-tile,amx-bf16")
static int64_t tile_products(int64_t num_products) {
    static const int64_t a_round = 4 * 16 * 16 * 32, most_rounds = 1 << 19;
    const struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    uint16_t ones[16 * 32];
    float sums[16 * 16];
    int64_t total = 0;
    for (int i = 0; i < 16 * 32; i++) ones[i] = 0x3f80;
    _tile_loadconfig(&shapes);
    _tile_loadd(4, ones, 64);
    _tile_loadd(5, ones, 64);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
    for (int64_t done = 0; done < num_products;) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t round = 0; round < most_rounds && done < num_products; round++, done += a_round) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
#define ADD_TILE(tile) \
    _tile_stored(tile, sums, 64); \
    for (int i = 0; i < 16 * 16; i++) total += (int64_t)sums[i]
        ADD_TILE(0);
        ADD_TILE(1);
        ADD_TILE(2);
        ADD_TILE(3);
#undef ADD_TILE
    }
    _tile_release();
    return total;
}
END_TARGET

#define ARCH_REQ_XCOMP_PERM 0x1023 /* of asm/prctl.h, for state 18 of the processor, data of tiles */

static int may_use_tiles(void) {
    return simd_multiplies_tiles_of_bf16() && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, 18);
}
#endif

int64_t peak_bfloat16_products(int64_t num_products, int allows_tiles) {
#if HPCGNN_LEVELS == 3
    if (allows_tiles && may_use_tiles()) return on_all_threads(tile_products, num_products);
    if (simd_multiplies_bf16()) return on_all_threads(pair_products, num_products);
#endif
    (void)allows_tiles;
    return peak_float_products(num_products);
}
