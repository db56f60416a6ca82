/* CUDA's functions on numbers and bits. Those that round to nearest are exact; approximations are libm's. */
#ifndef HPCGNN_INTRINSICS_H
#define HPCGNN_INTRINSICS_H
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

using std::max;
using std::min;
/* CUDA has these of mixed integers and floats; the result is float's, as there. */
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }

namespace emulation {
template <typename To, typename From> To reinterpret_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

/* The device clamps to the range of the integer, and makes NaN 0. */
template <typename To> To saturate(double x) {
    if (std::isnan(x)) return 0;
    if (x <= static_cast<double>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (x >= static_cast<double>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
}
}

#define REINTERPRET(name, to, from) inline to name(from x) { return emulation::reinterpret_bits<to>(x); }
REINTERPRET(__float_as_uint, unsigned int, float)
REINTERPRET(__float_as_int, int, float)
REINTERPRET(__uint_as_float, float, unsigned int)
REINTERPRET(__int_as_float, float, int)
REINTERPRET(__double_as_longlong, long long, double)
REINTERPRET(__longlong_as_double, double, long long)
#undef REINTERPRET

template <typename T> inline T __ldg(const T *address) { return *address; }
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned int>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned int __brev(unsigned int x) {
    unsigned int reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
    return static_cast<unsigned int>(static_cast<uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned int bytes = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned int choice = selector >> 4 * i & 15u, byte = both >> 8 * (choice & 7u) & 255u;
        bytes |= (choice & 8u ? (byte & 128u ? 255u : 0u) : byte) << 8 * i;
    }
    return bytes;
}
inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) {
    return static_cast<unsigned int>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31u));
}
inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift) {
    return static_cast<unsigned int>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31u) >> 32);
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    return c;
}
inline unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255u) * (b >> 8 * i & 255u);
    return c;
}

#define ROUNDED(prefix, type)                                                                                       \
    inline type __##prefix##add_rn(type x, type y) { return x + y; }                                                \
    inline type __##prefix##sub_rn(type x, type y) { return x - y; }                                                \
    inline type __##prefix##mul_rn(type x, type y) { return x * y; }                                                \
    inline type __##prefix##div_rn(type x, type y) { return x / y; }                                                \
    inline type __##prefix##sqrt_rn(type x) { return std::sqrt(x); }
ROUNDED(f, float)
ROUNDED(d, double)
#undef ROUNDED
inline float __frcp_rn(float x) { return 1.0f / x; }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __saturatef(float x) { return std::isnan(x) ? 0.0f : std::fmin(std::fmax(x, 0.0f), 1.0f); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline int __float2int_rz(float x) { return emulation::saturate<int>(std::trunc(x)); }
inline int __float2int_rn(float x) { return emulation::saturate<int>(std::nearbyint(x)); }
inline int __float2int_rd(float x) { return emulation::saturate<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return emulation::saturate<int>(std::ceil(x)); }
inline unsigned int __float2uint_rz(float x) { return emulation::saturate<unsigned int>(std::trunc(x)); }
inline unsigned int __float2uint_rn(float x) { return emulation::saturate<unsigned int>(std::nearbyint(x)); }
inline long long __float2ll_rn(float x) { return emulation::saturate<long long>(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned int x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
#endif
