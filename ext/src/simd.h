/* Run-time choice of the instruction set: one kernel body is compiled once per level, and `simd_level` picks.
 * HPCGNN_SIMD=portable|avx2|avx512 forces a level; hpcgnn/ops/simd.py refuses one that the processor or the build
 * lacks.
 *
 * A kernel file NAME.c includes NAME_body.h once per level, with LEVEL(f) naming that level's function.
 */
#ifndef HPCGNN_SIMD_H
#define HPCGNN_SIMD_H
#include <stdlib.h>
#include <string.h>

enum { SIMD_PORTABLE = 0, SIMD_AVX2 = 1, SIMD_AVX512 = 2, SIMD_NONE = -1 };

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HPCGNN_X86 1
#else
#define HPCGNN_X86 0
#endif

#define HPCGNN_LEVELS (HPCGNN_X86 ? 3 : 1)

/* The levels of this build, one bit each. Set the environment variable HPCGNN_LEVELS for fewer (setup.py). */
#ifndef HPCGNN_BUILT
#define HPCGNN_BUILT ((1 << HPCGNN_LEVELS) - 1)
#endif
#if HPCGNN_BUILT >> HPCGNN_LEVELS || !HPCGNN_BUILT
#error "HPCGNN_LEVELS names instruction sets of x86, and this compiler makes code for another processor"
#endif
#define HAS_PORTABLE (HPCGNN_BUILT & 1)
#define HAS_AVX2 (HPCGNN_BUILT & 2)
#define HAS_AVX512 (HPCGNN_BUILT & 4)

/* Functions between BEGIN_TARGET(instructions) and END_TARGET are compiled for these instructions. */
#define HPCGNN_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(instructions) \
    HPCGNN_PRAGMA(clang attribute push(__attribute__((target(instructions))), apply_to = function))
#define END_TARGET HPCGNN_PRAGMA(clang attribute pop)
#define WHOLE_VECTORS
#else
#define BEGIN_TARGET(instructions) HPCGNN_PRAGMA(GCC push_options) HPCGNN_PRAGMA(GCC target(instructions))
#define END_TARGET HPCGNN_PRAGMA(GCC pop_options)
#define WHOLE_VECTORS ",prefer-vector-width=512"
#endif
#define AVX2 "avx2,fma,f16c"
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c" WHOLE_VECTORS
#define AVX512_VNNI "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2" WHOLE_VECTORS
#define AVX512_TILES "amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2" WHOLE_VECTORS
#define AVX512_BITS "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx512bitalg,avx512vnni,avx2" WHOLE_VECTORS

#if HPCGNN_X86
#include <cpuid.h>
/* What __builtin_cpu_supports does not know in every compiler. */
static inline int simd_converts_f16(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* The highest level that the processor has. */
static inline int simd_processor(void) {
#if HPCGNN_LEVELS == 3
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return SIMD_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && simd_converts_f16()) return SIMD_AVX2;
#endif
    return SIMD_PORTABLE;
}

/* The highest level that the processor and this build have, or SIMD_NONE, with which hpcgnn/_ext does not start. */
static inline int simd_supported(void) {
    int level = simd_processor();
    while (level > SIMD_NONE && !(HPCGNN_BUILT >> level & 1)) level--;
    return level;
}

static inline int simd_level(void) {
    int level = simd_supported();
    const char *forced = getenv("HPCGNN_SIMD");
    if (HAS_PORTABLE && forced && !strcmp(forced, "portable")) return SIMD_PORTABLE;
    if (HAS_AVX2 && forced && !strcmp(forced, "avx2") && level > SIMD_AVX2) return SIMD_AVX2;
    return level;
}

static inline int simd_is_refused(const char *variable) {
    const char *allowed = getenv(variable);
    return allowed && !strcmp(allowed, "0");
}

/* Whether AVX-512 is in effect and counts bits (Ice Lake, Zen 4 and later). HPCGNN_VPOPCNT=0 makes it 0. */
static inline int simd_counts_bits(void) {
#if HPCGNN_LEVELS == 3
    return simd_level() == SIMD_AVX512 && !simd_is_refused("HPCGNN_VPOPCNT") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

/* Whether AVX-512 is in effect and sums four products of bytes (Cascade Lake, Zen 4 and later). HPCGNN_VNNI=0 makes it
 * 0. */
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
