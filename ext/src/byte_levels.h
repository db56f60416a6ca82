/* Compiles BODY once per SIMD level (levels.h) and once per level that sums products of bytes: BYTE_LEVELS(function),
 * indexed by byte_level(). Include it after amx.h. */
#include "code_products.h"

#include "levels.h"
#if HAS_AVX512
/* Cascade Lake, Zen 4 and later sum four products of bytes in one instruction. */
BEGIN_TARGET(AVX512_VNNI)
#define LEVEL_NAME vnni
#define LEVEL_LANES 16
#define LEVEL_SUMS_BYTES
#include BODY
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
/* Sapphire Rapids and later sum the products of whole tiles. */
BEGIN_TARGET(AVX512_TILES)
#define LEVEL_NAME tiles
#define LEVEL_LANES 16
#define LEVEL_TILES
#include BODY
#undef LEVEL_TILES
#undef LEVEL_SUMS_BYTES
#undef LEVEL_LANES
#undef LEVEL_NAME
END_TARGET
#define BYTE_LEVELS(name) {PORTABLE_OF(name), AVX2_OF(name), name##_avx512, name##_vnni, name##_tiles}
#else
#define BYTE_LEVELS(name) ALL_LEVELS(name)
#endif

enum { SIMD_VNNI = SIMD_AVX512 + 1, SIMD_TILES };
static const int PANEL_OUTPUTS[] = {4, 8, 16, 16, 16}, WORD_CODES[] = {2, 2, 2, 4, 4};

static int byte_level(void) {
    return amx_multiplies_bytes() ? SIMD_TILES : simd_sums_bytes() ? SIMD_VNNI : simd_level();
}

/* Words of a row of codes, padded to the number that products read at once. */
static int64_t words_of_row(int level, int64_t dim) {
    const int64_t num_words = parts(dim, WORD_CODES[level]);
    return level == SIMD_TILES ? padded_to(num_words, 16) : num_words;
}
