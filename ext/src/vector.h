/* LANES columns of a row as one value, loaded from and stored to float32, bfloat16 or float16.
 *
 * Included by kernel bodies once per SIMD level, after levels.h has set LEVEL and the target; no include guard, since
 * each level needs its own copy. Arithmetic is GCC's vector extension on the level's own registers, 16, 8 or 4 lanes.
 * `storage` is a constant at every call: the switch is gone after inlining. */
#include "storage.h"

#undef LANES
#define LANES LEVEL_LANES
#undef INLINE
#define INLINE static inline __attribute__((always_inline))

typedef float LEVEL(f32s) __attribute__((vector_size(4 * LANES)));
typedef uint32_t LEVEL(u32s) __attribute__((vector_size(4 * LANES)));
typedef int32_t LEVEL(i32s) __attribute__((vector_size(4 * LANES)));
typedef uint16_t LEVEL(u16s) __attribute__((vector_size(2 * LANES)));
#undef vector_f32
#undef vector_u32
#undef vector_i32
#undef vector_u16
#define vector_f32 LEVEL(f32s)
#define vector_u32 LEVEL(u32s)
#define vector_i32 LEVEL(i32s)
#define vector_u16 LEVEL(u16s)

/* Whole vectors. p points at element 0 of the row; j is the first column. */
INLINE vector_f32 LEVEL(load_f32)(const float *p) {
    vector_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The same value in all columns. */
INLINE vector_f32 LEVEL(repeat)(float value) {
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_set1_ps(value);
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_set1_ps(value);
#else
    return (vector_f32){0} + value;
#endif
}

/* a * b + sum, rounded once where the level has an instruction for it. */
INLINE vector_f32 LEVEL(multiply_add)(vector_f32 a, vector_f32 b, vector_f32 sum) {
#if LEVEL_LANES == 16
    return (vector_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif LEVEL_LANES == 8
    return (vector_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (vector_f32)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + sum;
#endif
}

/* As __builtin_convertvector, which GCC 12 breaks into pieces. */
INLINE vector_u32 LEVEL(widen)(vector_u16 half) {
#if LEVEL_LANES == 16
    return (vector_u32)_mm512_cvtepu16_epi32((__m256i)half);
#elif LEVEL_LANES == 8
    return (vector_u32)_mm256_cvtepu16_epi32((__m128i)half);
#else
    return __builtin_convertvector(half, vector_u32);
#endif
}

INLINE vector_u16 LEVEL(narrow)(vector_u32 word) {
#if LEVEL_LANES == 16
    return (vector_u16)_mm512_cvtepi32_epi16((__m512i)word);
#elif LEVEL_LANES == 8
    /* Packing works within 128-bit halves; the permutation joins the two that matter. */
    const __m256i low_halves = _mm256_packus_epi32(_mm256_and_si256((__m256i)word, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
    return (vector_u16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(low_halves, 0x08));
#else
    return __builtin_convertvector(word, vector_u16);
#endif
}

INLINE vector_f32 LEVEL(widen_bf16)(vector_u16 half) { return (vector_f32)(LEVEL(widen)(half) << 16); }

INLINE vector_u16 LEVEL(narrow_bf16)(vector_f32 v) {
    const vector_u32 bits = (vector_u32)v;
    const vector_u32 nearest_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#if LEVEL_LANES == 16
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    const vector_u32 quiet = (bits >> 16) | 0x40;
    return LEVEL(narrow)((vector_u32)_mm512_mask_mov_epi32((__m512i)nearest_even, nan, (__m512i)quiet));
#else
    const vector_u32 is_nan = (vector_u32)((bits & 0x7fffffff) > 0x7f800000);
    return LEVEL(narrow)((is_nan & ((bits >> 16) | 0x40)) | (~is_nan & nearest_even));
#endif
}

#if LEVEL_LANES == 16
INLINE vector_f32 LEVEL(widen_f16)(vector_u16 half) { return (vector_f32)_mm512_cvtph_ps((__m256i)half); }
INLINE vector_u16 LEVEL(narrow_f16)(vector_f32 v) {
    return (vector_u16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif LEVEL_LANES == 8
INLINE vector_f32 LEVEL(widen_f16)(vector_u16 half) { return (vector_f32)_mm256_cvtph_ps((__m128i)half); }
INLINE vector_u16 LEVEL(narrow_f16)(vector_f32 v) {
    return (vector_u16)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}
#else
/* After F. Giesen, "float->half variants": exponents are moved by a multiplication that is exact, subnormals too. */
INLINE vector_f32 LEVEL(widen_f16)(vector_u16 half) {
    const vector_u32 h = LEVEL(widen)(half);
    const vector_u32 magnitude = (h & 0x7fff) << 13;
    const vector_u32 is_special = (vector_u32)(magnitude >= 0x0f800000);
    const vector_u32 scaled = (vector_u32)((vector_f32)magnitude * 0x1p112f);
    const vector_u32 quiet = (vector_u32)(magnitude > 0x0f800000) & 0x00400000;
    return (vector_f32)((is_special & (magnitude | 0x7f800000 | quiet)) | (~is_special & scaled) | (h & 0x8000) << 16);
}
INLINE vector_u16 LEVEL(narrow_f16)(vector_f32 v) {
    const vector_u32 bits = (vector_u32)v, sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const vector_u32 is_nan = (vector_u32)(magnitude > 0x7f800000);
    const vector_u32 is_large = (vector_u32)(magnitude >= 0x477ff000); /* rounds to 65,536 or more */
    const vector_u32 is_small = (vector_u32)(magnitude < 0x38800000);  /* a subnormal of float16, or zero */
    const vector_u32 normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const vector_u32 small = (vector_u32)((vector_f32)magnitude + 0.5f) - 0x3f000000;
    const vector_u32 finite = (is_small & small) | (~is_small & normal);
    const vector_u32 special = (is_nan & (0x7e00 | ((magnitude >> 13) & 0x3ff))) | (~is_nan & 0x7c00);
    return LEVEL(narrow)(sign | (is_large & special) | (~is_large & finite));
}
#endif

/* Columns j .. j+LANES-1 of a row, as float32. Addresses are those of bytes: a row of a message begins at any byte. */
INLINE vector_f32 LEVEL(load)(const void *row, int64_t j, int storage) {
    vector_f32 value;
    vector_u16 half;
    if (storage == STORAGE_F32) {
        memcpy(&value, (const char *)row + 4 * j, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)row + 2 * j, sizeof half);
    return storage == STORAGE_BF16 ? LEVEL(widen_bf16)(half) : LEVEL(widen_f16)(half);
}

INLINE void LEVEL(store)(void *row, int64_t j, int storage, vector_f32 v) {
    if (storage == STORAGE_F32) {
        memcpy((char *)row + 4 * j, &v, sizeof v);
        return;
    }
    const vector_u16 half = storage == STORAGE_BF16 ? LEVEL(narrow_bf16)(v) : LEVEL(narrow_f16)(v);
    memcpy((char *)row + 2 * j, &half, sizeof half);
}

/* The first n < LANES of these columns; the others read as zero and are not touched by a store. */
INLINE vector_f32 LEVEL(load_first)(const void *row, int64_t j, int64_t n, int storage) {
#if LEVEL_LANES == 16
    const __mmask16 first = (__mmask16)((1u << n) - 1);
    if (storage == STORAGE_F32) return (vector_f32)_mm512_maskz_loadu_ps(first, (const char *)row + 4 * j);
    const vector_u16 half = (vector_u16)_mm256_maskz_loadu_epi16(first, (const char *)row + 2 * j);
    return storage == STORAGE_BF16 ? LEVEL(widen_bf16)(half) : LEVEL(widen_f16)(half);
#else
    const size_t size = storage == STORAGE_F32 ? 4 : 2;
    float padded[LANES] = {0};
    memcpy(padded, (const char *)row + (size_t)j * size, (size_t)(n & (LANES - 1)) * size);
    return LEVEL(load)(padded, 0, storage);
#endif
}

INLINE void LEVEL(store_first)(void *row, int64_t j, int64_t n, int storage, vector_f32 v) {
#if LEVEL_LANES == 16
    const __mmask16 first = (__mmask16)((1u << n) - 1);
    if (storage == STORAGE_F32) {
        _mm512_mask_storeu_ps((char *)row + 4 * j, first, (__m512)v);
        return;
    }
    const vector_u16 half = storage == STORAGE_BF16 ? LEVEL(narrow_bf16)(v) : LEVEL(narrow_f16)(v);
    _mm256_mask_storeu_epi16((char *)row + 2 * j, first, (__m256i)half);
#else
    const size_t size = storage == STORAGE_F32 ? 4 : 2;
    float padded[LANES];
    LEVEL(store)(padded, 0, storage, v);
    memcpy((char *)row + (size_t)j * size, padded, (size_t)(n & (LANES - 1)) * size);
#endif
}

/* Columns j .. j+LANES-1 of a row of dim columns, fewer at its end. */
INLINE vector_f32 LEVEL(load_columns)(const void *row, int64_t j, int64_t dim, int storage) {
    return j + LANES <= dim ? LEVEL(load)(row, j, storage) : LEVEL(load_first)(row, j, dim - j, storage);
}

INLINE void LEVEL(store_columns)(void *row, int64_t j, int64_t dim, int storage, vector_f32 v) {
    if (j + LANES <= dim)
        LEVEL(store)(row, j, storage, v);
    else
        LEVEL(store_first)(row, j, dim - j, storage, v);
}

/* Sum of sixteen lanes, held in 16 / LANES vectors, in one order at every level: halves are added until one is left. */
#define SIXTEEN (16 / LANES)
INLINE float LEVEL(sum_sixteen)(const vector_f32 *parts) {
#if LEVEL_LANES >= 8
#if LEVEL_LANES == 16
    const __m512d all = (__m512d)parts[0];
    const __m256 eight = (__m256)_mm512_castpd512_pd256(all) + (__m256)_mm512_extractf64x4_pd(all, 1);
#else
    const __m256 eight = (__m256)(parts[0] + parts[1]);
#endif
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    float lane[16];
    memcpy(lane, parts, sizeof lane);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
#endif
}
