/* Softmax over the entries of each row, head by head: alpha[e] = exp(s[e] - m) / sum of exp(s[.] - m), where s[e] =
 * LeakyReLU(target[v] + source[u]) for the entry e = (v, u) and m is the row's maximum, which keeps every exponential
 * in (0, 1]. A score of minus infinity has alpha 0, also in a row that has no other. Backward, with the gradient g of
 * alpha: d[e] = LeakyReLU'(target[v] + source[u]) * alpha[e] * (g[e] - sum of alpha g), put in place of g, and summed
 * over a row. Entries are read twice: once for the maximum and the sum, which is scaled down when a larger score comes
 * (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018), and once to be written. For 16 bits a
 * score is then computed again, not stored in between, which would round it before the maximum is subtracted.
 *
 * alpha, g and d are of one storage, rounded once, when they are stored; scores and sums are float32 (HalfGNN, Section
 * 4.4: what stays in the range of 16 bits is kept in them). alpha is off by 2^-11 of itself in float16, or by 2^-25
 * below 2^-14, and by 2^-8 of itself in bfloat16. The sum of d over a row adds values that are not rounded yet.
 *
 * Threads: 8 lanes for a short row, a warp for a longer row, a block for a long row. Lanes lie along the heads first,
 * then along the entries; if there are more heads than lanes, heads take turns.
 *
 * Determinism: a thread takes every so-many-th entry in ascending order; lanes are joined by halves, warps in their
 * order. All arithmetic is in float32. */
#include "pairs.cuh"

constexpr int BLOCK = 256;

/* The maximum of some scores, and the sum of exp(score - maximum) over them. */
struct __align__(8) running {
    float maximum, sum;

    DEVICE void add(float score) {
        if (score <= maximum) {
            sum += maximum == negative_infinity() ? 0.0f : expf(score - maximum);
        } else {
            sum = sum * expf(maximum - score) + 1.0f;
            maximum = score;
        }
    }
};

DEVICE running both(const running &a, const running &b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    if (maximum == negative_infinity()) return {maximum, 0.0f};
    return {maximum, a.sum * expf(a.maximum - maximum) + b.sum * expf(b.maximum - maximum)};
}

DEVICE float shuffled(float x, int step) { return __shfl_xor_sync(FULL_WARP, x, step); }
DEVICE running shuffled(const running &x, int step) {
    return {__shfl_xor_sync(FULL_WARP, x.maximum, step), __shfl_xor_sync(FULL_WARP, x.sum, step)};
}

/* THREADS threads that share a row: a part of a warp, a warp, or the block. All threads of a warp call alike. */
template <int THREADS> struct row_threads {
    static constexpr int LANES = THREADS < WARP_SIZE ? THREADS : WARP_SIZE;
    int rank, width; /* of the lanes along the heads */

    DEVICE explicit row_threads(int num_heads) : rank(threadIdx.x % THREADS), width(1) {
        while (width < num_heads && width < LANES) width *= 2;
    }
    DEVICE int head() const { return rank % width; }
    DEVICE int64_t first_entry() const { return rank / width; }
    DEVICE int64_t entry_step() const { return THREADS / width; }

    /* x joined over all threads of the head. */
    template <typename T, class Join> DEVICE T joined(T x, Join join) const {
        for (int step = LANES / 2; step >= width; step /= 2) x = join(x, shuffled(x, step));
        if constexpr (THREADS <= WARP_SIZE) {
            return x;
        } else {
            SHARED_ARRAY(T, of_warp, THREADS);
            __syncthreads();
            of_warp[rank] = x;
            __syncthreads();
            T all = of_warp[rank % WARP_SIZE];
            for (int i = WARP_SIZE; i < THREADS; i += WARP_SIZE) all = join(all, of_warp[rank % WARP_SIZE + i]);
            return all;
        }
    }
    DEVICE float sum(float x) const {
        return joined(x, [](float a, float b) { return a + b; });
    }
    DEVICE running sum(const running &x) const {
        return joined(x, [](const running &a, const running &b) { return both(a, b); });
    }
};

/* The row of this thread's group, or -1 for a group that has none. */
template <int THREADS> DEVICE int64_t row_of_group(int num_rows, const int32_t *row) {
    const int64_t group = static_cast<int64_t>(blockIdx.x) * (BLOCK / THREADS) + threadIdx.x / THREADS;
    return group < num_rows ? row[group] : -1;
}

/* The entries of one head that a thread takes: every `step`-th of first .. end-1. */
struct thread_entries {
    int64_t first, end, step;
};

struct scored_rows {
    const int64_t *begin, *end;
    const int32_t *indices;
    int num_heads;
    const float *target, *source;
    float slope;

    template <int THREADS>
    DEVICE thread_entries entries(const row_threads<THREADS> &group, int64_t v, int head) const {
        if (v < 0 || head >= num_heads) return {0, 0, 1};
        return {begin[v] + group.first_entry(), end[v], group.entry_step()};
    }
    DEVICE float score(int64_t v, int64_t e, int head) const {
        return target[v * num_heads + head] + source[static_cast<int64_t>(indices[e]) * num_heads + head];
    }
};

/* Minus infinity, the score of an absent column, stays as it is whatever the slope. */
DEVICE float leaky(float score, float slope) {
    return score > 0.0f || score == negative_infinity() ? score : slope * score;
}

/* Scores wait in alpha's place between the passes, where that rounds nothing. */
template <class T> constexpr bool KEEPS_SCORES = sizeof(T) == sizeof(float);

template <int THREADS, class T> DEVICE void softmax_row(const scored_rows &a, int64_t v, T *alpha) {
    const row_threads<THREADS> group(a.num_heads);
    for (int turn = 0; turn < a.num_heads; turn += group.width) {
        const int head = turn + group.head();
        const thread_entries own = a.entries(group, v, head);
        running all = {negative_infinity(), 0.0f};
        for (int64_t e = own.first; e < own.end; e += own.step) {
            const float score = leaky(a.score(v, e, head), a.slope);
            if constexpr (KEEPS_SCORES<T>) alpha[e * a.num_heads + head] = score;
            all.add(score);
        }
        all = group.sum(all);
        const float maximum = all.maximum == negative_infinity() ? 0.0f : all.maximum;
        const float inverse = all.sum == 0.0f ? 0.0f : 1.0f / all.sum;
        for (int64_t e = own.first; e < own.end; e += own.step) {
            const int64_t place = e * a.num_heads + head;
            const float score = KEEPS_SCORES<T> ? load_f32(alpha, place) : leaky(a.score(v, e, head), a.slope);
            store_f32(alpha, place, expf(score - maximum) * inverse);
        }
    }
}

template <int THREADS, class T>
DEVICE void softmax_backward_row(const scored_rows &a, int64_t v, const T *alpha, T *gradient,
                                 float *target_gradient) {
    const row_threads<THREADS> group(a.num_heads);
    for (int turn = 0; turn < a.num_heads; turn += group.width) {
        const int head = turn + group.head();
        const thread_entries own = a.entries(group, v, head);
        float mean = 0.0f, sum = 0.0f;
        for (int64_t e = own.first; e < own.end; e += own.step) {
            const int64_t place = e * a.num_heads + head;
            mean = fmaf(load_f32(alpha, place), load_f32(gradient, place), mean);
        }
        mean = group.sum(mean);
        for (int64_t e = own.first; e < own.end; e += own.step) {
            const int64_t place = e * a.num_heads + head;
            const float d_score = load_f32(alpha, place) * (load_f32(gradient, place) - mean);
            const float d = a.score(v, e, head) > 0.0f ? d_score : a.slope * d_score;
            store_f32(gradient, place, d);
            sum += d;
        }
        sum = group.sum(sum);
        if (v >= 0 && head < a.num_heads && group.first_entry() == 0) target_gradient[v * a.num_heads + head] = sum;
    }
}

/* Of a multiprocessor, for 40 registers a thread; before sm_80 it has 1,024 threads. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define RESIDENT_BLOCKS 4
#else
#define RESIDENT_BLOCKS 6
#endif

#define EDGE_SOFTMAX_OF(THREADS, size, T, suffix) \
    extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT_BLOCKS) edge_softmax_##size##_##suffix( \
        int num_rows, const int32_t *row, const int64_t *begin, const int64_t *end, const int32_t *indices, \
        int num_heads, const float *target, const float *source, float slope, T *alpha) { \
        const int64_t v = row_of_group<THREADS>(num_rows, row); \
        softmax_row<THREADS>({begin, end, indices, num_heads, target, source, slope}, v, alpha); \
    } \
    extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT_BLOCKS) edge_softmax_backward_##size##_##suffix( \
        int num_rows, const int32_t *row, const int64_t *begin, const int64_t *end, const int32_t *indices, \
        int num_heads, const float *target, const float *source, float slope, const T *alpha, T *gradient, \
        float *target_gradient) { \
        const int64_t v = row_of_group<THREADS>(num_rows, row); \
        softmax_backward_row<THREADS>({begin, end, indices, num_heads, target, source, slope}, v, alpha, gradient, \
                                      target_gradient); \
    }
#define EDGE_SOFTMAX(T, suffix) \
    EDGE_SOFTMAX_OF(8, lanes, T, suffix) EDGE_SOFTMAX_OF(32, warp, T, suffix) EDGE_SOFTMAX_OF(256, block, T, suffix)
FOR_EACH_STORAGE(EDGE_SOFTMAX)
