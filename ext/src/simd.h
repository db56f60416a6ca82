/* Run-time choice of the instruction set: one kernel body is compiled once a level, and `simd_level` picks.
 * HPCGNN_SIMD=portable|avx2|avx512 forces a level; hpcgnn/ops/host/simd.py refuses one that the processor lacks.
 *
 * A kernel file NAME.c includes NAME_body.h once a level, with LEVEL(f) naming that level's function.
 */
#ifndef HPCGNN_SIMD_H
#define HPCGNN_SIMD_H
#include <stdlib.h>
#include <string.h>

enum { SIMD_PORTABLE = 0, SIMD_AVX2 = 1, SIMD_AVX512 = 2 };

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HPCGNN_X86 1
#else
#define HPCGNN_X86 0
#endif

/* #pragma GCC target is what GCC offers for a whole file section; clang builds take the portable body only. */
#if HPCGNN_X86 && !defined(__clang__)
#define HPCGNN_LEVELS 3
#else
#define HPCGNN_LEVELS 1
#endif

static inline int simd_supported(void) {
#if HPCGNN_LEVELS == 3
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return SIMD_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return SIMD_AVX2;
#endif
    return SIMD_PORTABLE;
}

static inline int simd_level(void) {
    int level = simd_supported();
    const char *forced = getenv("HPCGNN_SIMD");
    if (forced && !strcmp(forced, "portable")) return SIMD_PORTABLE;
    if (forced && !strcmp(forced, "avx2") && level > SIMD_AVX2) return SIMD_AVX2;
    return level;
}

static inline int simd_is_refused(const char *variable) {
    const char *allowed = getenv(variable);
    return allowed && !strcmp(allowed, "0");
}

/* AVX-512 in effect, with instructions that count bits (Ice Lake, Zen 4 and later). HPCGNN_VPOPCNT=0 does without. */
static inline int simd_counts_bits(void) {
#if HPCGNN_LEVELS == 3
    return simd_level() == SIMD_AVX512 && !simd_is_refused("HPCGNN_VPOPCNT") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

/* AVX-512 in effect, with one that sums four products of bytes (Cascade Lake, Zen 4 and later). HPCGNN_VNNI=0 does
 * without. */
static inline int simd_sums_bytes(void) {
#if HPCGNN_LEVELS == 3
    return simd_level() == SIMD_AVX512 && !simd_is_refused("HPCGNN_VNNI") && __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

/* Whether the processor multiplies bfloat16 (Cooper Lake, Zen 4 and later), whatever level is in effect. */
static inline int simd_multiplies_bf16(void) {
#if HPCGNN_X86
    return __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}
#endif
