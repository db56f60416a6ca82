/* Compiles BODY once a SIMD level. Define BODY as the quoted name of the body's file, then include this file.
 * LEVEL_LANES float32 values fill a register: 4 (SSE2, NEON), 8 (AVX2) or 16 (AVX-512). */
#include "simd.h"
#include "storage.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define LEVEL(name) JOIN(name, LEVEL_NAME)

#define LEVEL_NAME portable
#define LEVEL_LANES 4
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
#if HPCGNN_LEVELS == 3
BEGIN_TARGET(AVX2)
#define LEVEL_NAME avx2
#define LEVEL_LANES 8
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
BEGIN_TARGET(AVX512)
#define LEVEL_NAME avx512
#define LEVEL_LANES 16
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
/* The function of each level, indexed by simd_level(). */
#define ALL_LEVELS(name) {name##_portable, name##_avx2, name##_avx512}
#else
#define ALL_LEVELS(name) {name##_portable}
#endif
