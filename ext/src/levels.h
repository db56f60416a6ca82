/* Compiles BODY once for each SIMD level of this build. Define BODY as the quoted name of the body's file, then include
 * this file. LEVEL_LANES float32 values fill a register: 4 (SSE2, NEON), 8 (AVX2) or 16 (AVX-512). */
#include "simd.h"
#include "storage.h"
#if HPCGNN_X86
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define LEVEL(name) JOIN(name, LEVEL_NAME)

#if HAS_PORTABLE
#define LEVEL_NAME portable
#define LEVEL_LANES 4
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
#define PORTABLE_OF(name) name##_portable
#else
#define PORTABLE_OF(name) 0
#endif
#if HAS_AVX2
BEGIN_TARGET(AVX2)
#define LEVEL_NAME avx2
#define LEVEL_LANES 8
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#define AVX2_OF(name) name##_avx2
#else
#define AVX2_OF(name) 0
#endif
#if HAS_AVX512
BEGIN_TARGET(AVX512)
#define LEVEL_NAME avx512
#define LEVEL_LANES 16
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#define AVX512_OF(name) name##_avx512
#else
#define AVX512_OF(name) 0
#endif
/* The function, or the constant, of each level, indexed by simd_level(); 0 for those that were not built. */
#if HPCGNN_LEVELS == 3
#define ALL_LEVELS(name) {PORTABLE_OF(name), AVX2_OF(name), AVX512_OF(name)}
#else
#define ALL_LEVELS(name) {PORTABLE_OF(name)}
#endif
