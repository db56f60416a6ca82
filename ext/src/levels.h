/* Compiles BODY once a SIMD level. Define BODY as the quoted name of the body's file, then include this file. */
#include "simd.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define LEVEL(name) JOIN(name, LEVEL_NAME)

#define LEVEL_NAME portable
#include BODY
#undef LEVEL_NAME
#if HPCGNN_LEVELS == 3
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LEVEL_NAME avx2
#include BODY
#undef LEVEL_NAME
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define LEVEL_NAME avx512
#include BODY
#undef LEVEL_NAME
#pragma GCC pop_options
/* The function of each level, indexed by simd_level(). */
#define ALL_LEVELS(name) {name##_portable, name##_avx2, name##_avx512}
#else
#define ALL_LEVELS(name) {name##_portable}
#endif
