/* Element types that rows of activations are stored in. Arithmetic is float32 everywhere. */
#ifndef HPCGNN_STORAGE_H
#define HPCGNN_STORAGE_H
#include <stdint.h>
#include <string.h>

enum { STORAGE_F32 = 0, STORAGE_BF16 = 1, STORAGE_F16 = 2, NUM_STORAGES = 3 };

static inline float bf16_value(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline int64_t storage_bytes(int storage) { return storage == STORAGE_F32 ? 4 : 2; }
#endif
