/* Tiles of AMX (Sapphire Rapids and later): who has them, and may use them. Include it first in a file that defines
 * _GNU_SOURCE, for syscall. */
#ifndef HPCGNN_AMX_H
#define HPCGNN_AMX_H
#include "simd.h"

#if HPCGNN_X86 && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Bits of cpuid. */
enum { TILES_OF_BF16 = 22, TILES = 24, TILES_OF_BYTES = 25 };

/* Whether the processor multiplies tiles of that kind, and the system lets this process use them. */
static inline int amx_may_use(int kind) {
#if HPCGNN_X86 && defined(__linux__)
    const int request_permission = 0x1023, tile_data = 18; /* of asm/prctl.h; a state of the processor */
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> TILES & 1) && (d >> kind & 1) &&
           !syscall(SYS_arch_prctl, request_permission, tile_data);
#else
    (void)kind;
    return 0;
#endif
}

/* AVX-512 in effect, with tiles that multiply bytes. HPCGNN_AMX=0 does without. */
static inline int amx_multiplies_bytes(void) {
    return simd_sums_bytes() && !simd_is_refused("HPCGNN_AMX") && amx_may_use(TILES_OF_BYTES);
}

#if HAS_AVX512
/* All eight tiles of 16 rows of 64 bytes. */
typedef struct {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

static const tile_shapes WHOLE_TILES = {.palette = 1,
                                        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                        .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
#endif
#endif
