/* __half and __nv_bfloat16 with their pairs: each operation is computed exactly and rounded once, to nearest even. */
#ifndef HPCGNN_NARROW_FLOATS_H
#define HPCGNN_NARROW_FLOATS_H
#include <cmath>
#include <cstdint>
#include <cstring>
#include "vector_types.h"

namespace emulation {

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

struct half_format {
    static constexpr int significant_bits = 11, least_exponent = -14;
    static constexpr double largest = 65504;
    static constexpr uint16_t infinity = 0x7c00, nan = 0x7fff;
    static float widen(uint16_t half) {
        const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
        if (exponent == 31) return float_of(fraction ? 0x7fffffffu : sign | 0x7f800000u);
        const uint32_t significand = exponent ? 1024u + fraction : fraction;
        const int scale = exponent ? static_cast<int>(exponent) - 25 : -24;
        const float magnitude = std::ldexp(static_cast<float>(significand), scale);
        return sign ? -magnitude : magnitude;
    }
    /* Bits of a magnitude that the format holds exactly. */
    static uint16_t encode(double magnitude) {
        int exponent;
        std::frexp(magnitude, &exponent);
        if (exponent - 1 < least_exponent) return static_cast<uint16_t>(std::ldexp(magnitude, 24));
        const int significand = static_cast<int>(std::ldexp(magnitude, significant_bits - exponent));
        return static_cast<uint16_t>((exponent + 14) * 1024 + significand - 1024);
    }
};

struct bfloat16_format {
    static constexpr int significant_bits = 8, least_exponent = -126;
    static constexpr double largest = 0x1.fep127;
    static constexpr uint16_t infinity = 0x7f80, nan = 0x7fff;
    static float widen(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }
    static uint16_t encode(double magnitude) {
        return static_cast<uint16_t>(bits_of(static_cast<float>(magnitude)) >> 16);
    }
};

/* Nearest value of the format, ties to even, from a double. */
template <typename Format> uint16_t narrow(double x) {
    if (std::isnan(x)) return Format::nan;
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::fabs(x);
    int exponent = 0;
    if (magnitude > 0 && std::isfinite(magnitude)) std::frexp(magnitude, &exponent);
    const int least = Format::least_exponent + 1;
    const int scale = (exponent < least ? least : exponent) - Format::significant_bits;
    const double nearest = std::ldexp(std::nearbyint(std::ldexp(magnitude, -scale)), scale);
    if (nearest > Format::largest) return sign | Format::infinity;
    return sign | (nearest == 0 ? uint16_t{0} : Format::encode(nearest));
}

/* a * b + c of narrow values, rounded to odd in double, so that rounding it again to a narrow format is right. */
inline double fused(double a, double b, double c) {
    const double product = a * b, sum = product + c;
    if (!std::isfinite(sum)) return sum;
    const double part = sum - product, lost = (product - (sum - part)) + (c - part);
    uint64_t bits;
    std::memcpy(&bits, &sum, 8);
    if (lost != 0 && !(bits & 1)) return std::nextafter(sum, lost > 0 ? INFINITY : -INFINITY);
    return sum;
}

template <typename Format> struct narrow_float {
    uint16_t bits;
    narrow_float() = default;
    narrow_float(float x) : bits(narrow<Format>(x)) {}
    narrow_float(double x) : bits(narrow<Format>(x)) {}
    narrow_float(int x) : bits(narrow<Format>(x)) {}
    operator float() const { return Format::widen(bits); }
    static narrow_float of_bits(uint16_t bits) {
        narrow_float x;
        x.bits = bits;
        return x;
    }
};

template <typename Format> struct alignas(4) narrow_pair {
    narrow_float<Format> x, y;
    narrow_pair() = default;
    narrow_pair(narrow_float<Format> first, narrow_float<Format> second) : x(first), y(second) {}
};
}

using __half = emulation::narrow_float<emulation::half_format>;
using __half2 = emulation::narrow_pair<emulation::half_format>;
using __nv_bfloat16 = emulation::narrow_float<emulation::bfloat16_format>;
using __nv_bfloat162 = emulation::narrow_pair<emulation::bfloat16_format>;
using half = __half;
using half2 = __half2;

#define NARROW template <typename F> inline
#define ONE emulation::narrow_float<F>
#define TWO emulation::narrow_pair<F>

#define BINARY(name, expression)                                                                                    \
    NARROW ONE __h##name(ONE a, ONE b) { const double x = float(a), y = float(b); return ONE(expression); }         \
    NARROW TWO __h##name##2(TWO a, TWO b) { return {__h##name(a.x, b.x), __h##name(a.y, b.y)}; }
BINARY(add, x + y)
BINARY(sub, x - y)
BINARY(mul, x * y)
BINARY(max, std::fmax(x, y))
BINARY(min, std::fmin(x, y))
#undef BINARY
NARROW ONE __hdiv(ONE a, ONE b) { return ONE(double(float(a)) / double(float(b))); }
NARROW TWO __h2div(TWO a, TWO b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
NARROW ONE __hneg(ONE a) { return ONE::of_bits(a.bits ^ 0x8000); }
NARROW TWO __hneg2(TWO a) { return {__hneg(a.x), __hneg(a.y)}; }
NARROW ONE __habs(ONE a) { return ONE::of_bits(a.bits & 0x7fff); }
NARROW TWO __habs2(TWO a) { return {__habs(a.x), __habs(a.y)}; }

#define COMPARISON(name, sign) NARROW bool __h##name(ONE a, ONE b) { return float(a) sign float(b); }
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
#undef COMPARISON
NARROW bool __hisnan(ONE a) { return std::isnan(float(a)); }
NARROW int __hisinf(ONE a) { return std::isinf(float(a)) ? (a.bits & 0x8000 ? -1 : 1) : 0; }

/* On the device these are approximations of at most 2 units in the last place; tests must not ask for more. */
#define FUNCTION(name, expression)                                                                                  \
    NARROW ONE h##name(ONE a) { const double x = float(a); return ONE(expression); }                                \
    NARROW TWO h2##name(TWO a) { return {h##name(a.x), h##name(a.y)}; }
FUNCTION(exp, std::exp(x))
FUNCTION(exp2, std::exp2(x))
FUNCTION(log, std::log(x))
FUNCTION(rcp, 1 / x)
FUNCTION(sqrt, std::sqrt(x))
FUNCTION(rsqrt, 1 / std::sqrt(x))
#undef FUNCTION

#define CONVERSIONS(one, two, name)                                                                                 \
    inline one __float2##name(float x) { return one(x); }                                                           \
    inline one __float2##name##_rn(float x) { return one(x); }                                                      \
    inline float __##name##2float(one x) { return float(x); }                                                       \
    inline two __float2##name##2_rn(float x) { return {one(x), one(x)}; }                                           \
    inline two __floats2##name##2_rn(float x, float y) { return {one(x), one(y)}; }                                 \
    inline two __float22##name##2_rn(float2 x) { return {one(x.x), one(x.y)}; }                                     \
    inline float2 __##name##22float2(two x) { return {float(x.x), float(x.y)}; }                                    \
    inline two __##name##2##name##2(one x) { return {x, x}; }                                                       \
    inline uint16_t __##name##_as_ushort(one x) { return x.bits; }                                                  \
    inline one __ushort_as_##name(uint16_t bits) { return one::of_bits(bits); }
CONVERSIONS(__half, __half2, half)
CONVERSIONS(__nv_bfloat16, __nv_bfloat162, bfloat16)
#undef CONVERSIONS
/* Of bfloat16 only from sm_80 on, so it is left out. */
inline __half __hfma(__half a, __half b, __half c) { return __half(emulation::fused(float(a), float(b), float(c))); }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __half __low2half(__half2 x) { return x.x; }
inline __half __high2half(__half2 x) { return x.y; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) { return x.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) { return x.y; }
NARROW float __low2float(TWO x) { return float(x.x); }
NARROW float __high2float(TWO x) { return float(x.y); }
inline __half2 __lowhigh2highlow(__half2 x) { return {x.y, x.x}; }

#undef NARROW
#undef ONE
#undef TWO
#endif
