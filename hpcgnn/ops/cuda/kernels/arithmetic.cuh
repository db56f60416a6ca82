/* How weighted pairs of columns are added up.
 *
 * float_arithmetic: every product and sum in float32; the row's scale is applied once, where the sum is stored.
 *
 * half_arithmetic: HalfGNN's discretised reduction, Section 4.3.1. BATCH products are summed in pairs of the
 * storage's own type, two an instruction (bfloat16 is widened before sm_80, which has none for it), the batch is
 * scaled by the row's scale and added to a float32 sum, and the next batch begins at zero. Deviation: the paper adds
 * scaled batches in half precision too, where the last batches of a long mean would be too small to be added.
 * Accuracy: with e = 2^-11 for float16, 2^-8 for bfloat16, a batch is off by at most (BATCH + 1) e times the sum of
 * its magnitudes, the rounding of weights counted; a product below 6e-8 vanishes in float16; sums are finite while
 * BATCH products stay below 65,504. */
#ifndef HPCGNN_ARITHMETIC_CUH
#define HPCGNN_ARITHMETIC_CUH
#include "pairs.cuh"

constexpr int BATCH = 16;

DEVICE __half2 fma_pair(__half2 x, __half2 y, __half2 z) { return __hfma2(x, y, z); }
DEVICE __nv_bfloat162 fma_pair(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __hfma2(x, y, z);
#else
    const float2 a = widen(x), b = widen(y), c = widen(z);
    return narrow<__nv_bfloat16>(make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)));
#endif
}

template <class T> struct float_arithmetic {
    typedef T storage;
    typedef float2 operand;
    struct sum {
        float2 total;
    };

    static DEVICE operand of(typename pair_of<T>::type x) { return widen(x); }
    static DEVICE operand of_floats(float2 x) { return x; }
    static DEVICE uint32_t mirror(float weight) { return __float_as_uint(weight); }
    static DEVICE operand mirrored(uint32_t word) {
        return make_float2(__uint_as_float(word), __uint_as_float(word));
    }
    static DEVICE sum begin(const float *, int64_t) { return {make_float2(0.0f, 0.0f)}; }
    static DEVICE void add(sum &s, operand weight, operand x) {
        s.total.x = fmaf(weight.x, x.x, s.total.x);
        s.total.y = fmaf(weight.y, x.y, s.total.y);
    }
    static DEVICE float2 close(sum &s) { return s.total; }
    /* What the whole sum is still to be scaled by. */
    static DEVICE float scale(const float *row_scale, int64_t v) { return row_scale ? row_scale[v] : 1.0f; }
};

template <class T> struct half_arithmetic {
    typedef T storage;
    typedef typename pair_of<T>::type operand;
    struct sum {
        operand batch;
        int num_added;
        float scale;
        float2 total;
    };

    static DEVICE operand of(operand x) { return x; }
    static DEVICE operand of_floats(float2 x) { return narrow<T>(x); }
    /* Edge-feature mirroring, Section 4.1.1: one weight for both columns. */
    static DEVICE uint32_t mirror(float weight) {
        const operand both = narrow<T>(make_float2(weight, weight));
        return *reinterpret_cast<const uint32_t *>(&both);
    }
    static DEVICE operand mirrored(uint32_t word) { return *reinterpret_cast<const operand *>(&word); }
    static DEVICE sum begin(const float *row_scale, int64_t v) {
        return {no_pair<T>(), 0, row_scale ? row_scale[v] : 1.0f, make_float2(0.0f, 0.0f)};
    }
    static DEVICE void end_batch(sum &s) {
        const float2 batch = widen(s.batch);
        s.total.x = fmaf(s.scale, batch.x, s.total.x);
        s.total.y = fmaf(s.scale, batch.y, s.total.y);
        s.batch = no_pair<T>();
        s.num_added = 0;
    }
    static DEVICE void add(sum &s, operand weight, operand x) {
        s.batch = fma_pair(weight, x, s.batch);
        if (++s.num_added == BATCH) end_batch(s);
    }
    static DEVICE float2 close(sum &s) {
        end_batch(s);
        return s.total;
    }
    static DEVICE float scale(const float *, int64_t) { return 1.0f; }
};
#endif
