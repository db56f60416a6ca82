/* CUDA's short vectors, with its alignments. */
#ifndef HPCGNN_VECTOR_TYPES_H
#define HPCGNN_VECTOR_TYPES_H
#include <cstdint>

#define VECTOR_TYPES(scalar, base)                                                                                  \
    struct alignas(2 * sizeof(scalar)) base##2 { scalar x, y; };                                                    \
    struct base##3 { scalar x, y, z; };                                                                             \
    struct alignas(4 * sizeof(scalar) < 16 ? 4 * sizeof(scalar) : 16) base##4 { scalar x, y, z, w; };               \
    inline base##2 make_##base##2(scalar x, scalar y) { return {x, y}; }                                            \
    inline base##3 make_##base##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                               \
    inline base##4 make_##base##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

VECTOR_TYPES(float, float)
VECTOR_TYPES(double, double)
VECTOR_TYPES(signed char, char)
VECTOR_TYPES(unsigned char, uchar)
VECTOR_TYPES(short, short)
VECTOR_TYPES(unsigned short, ushort)
VECTOR_TYPES(int, int)
VECTOR_TYPES(unsigned int, uint)
VECTOR_TYPES(long long, longlong)
VECTOR_TYPES(unsigned long long, ulonglong)
#undef VECTOR_TYPES

struct dim3 { unsigned int x, y, z; };
#endif
