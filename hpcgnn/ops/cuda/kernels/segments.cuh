/* Folds over the rows of a sparse matrix, edge-parallel and without atomics: HalfGNN, Sections 4.1 and 4.3.2.
 *
 * The items of row v, offset[v] .. offset[v+1]-1, are its implied self-loop, then its entries; a row without either
 * has one item that adds nothing. A block takes items_a_block successive items, whatever their rows, so that hubs and
 * long tails cost alike.
 *
 * Threads. Phase 1: all threads of the block find the row of each item and put what names its operand into shared
 * memory. Phase 2: lanes lie along the columns, Fold::COLUMNS per lane; if they need fewer lanes than a warp has, it is
 * cut into sub-warps. The sub-warps of a block take successive chunks of its items, in order.
 *
 * Determinism. A row inside one chunk is folded by one lane in the order of its items, and stored. If a row spans
 * several chunks, each leaves its part in shared memory, and the chunk that ends the row merges the parts in order.
 * If a row spans several blocks, each writes its part to the staging buffer (slot 2b for the row that block b ends
 * with, slot 2b + 1 for the row that it begins with), and a kernel that follows merges these parts in their
 * order. Geometry comes from hpcgnn/ops/cuda/segments.py and depends on the matrix alone, so results have the same
 * bits in any order of blocks. */
#ifndef HPCGNN_SEGMENTS_CUH
#define HPCGNN_SEGMENTS_CUH
#include "pairs.cuh"

constexpr int MAX_ITEMS = 1024; /* of a block */
constexpr int MAX_THREADS = 256;
constexpr int LOADS_AHEAD = 4; /* loads that a lane starts before it uses the first */
constexpr int64_t NO_ENTRY = -1, OWN_ROW = -2;

/* Rows of the matrix, and what Segments of segments.py says of this launch. */
struct segments {
    const int64_t *offset;
    const int32_t *block_row;
    int64_t first_item, last_item;
    int items_a_block;
    const int64_t *begin, *end;
    int64_t num_self;
};

/* Where the rows of a block begin among its items: -1 for before them, num_items + 1 for behind their end. */
DEVICE auto &shared_bounds() {
    SHARED_ARRAY(int32_t, bound, MAX_ITEMS + 2);
    return bound;
}

/* An array of a block with one element per item. Sub-warps read items at distances of a power of two: one place after
 * every 128 bytes is left out, so that they meet at different banks. */
constexpr int RUN_BYTES = 128, ITEM_PLACES = MAX_ITEMS + MAX_ITEMS / (RUN_BYTES / 8);

template <class T> struct item_array {
    T *place;
    DEVICE T &operator[](int i) const { return place[i + i / static_cast<int>(RUN_BYTES / sizeof(T))]; }
};

DEVICE item_array<int32_t> shared_rows() {
    SHARED_ARRAY(int32_t, row, ITEM_PLACES);
    return {row};
}

template <int WORDS> DEVICE auto &shared_parts() {
    SHARED_ARRAY(uint32_t, part, WORDS * MAX_THREADS);
    return part;
}

struct item_block {
    int64_t start, first_row;
    int num_items, num_bounds;
};

/* A sub-warp's share of a block: items first .. stop-1, and this lane's columns. */
struct item_chunk {
    int index, size, first, stop, lanes;
    lane_columns columns;
};

DEVICE item_block open_block(const segments &a) {
    item_block block;
    block.start = a.first_item + static_cast<int64_t>(blockIdx.x) * a.items_a_block;
    const int64_t left = a.last_item - block.start;
    block.num_items = left < a.items_a_block ? static_cast<int>(left) : a.items_a_block;
    block.first_row = a.block_row[blockIdx.x];
    block.num_bounds = static_cast<int>(a.block_row[blockIdx.x + 1] - block.first_row) + 2;
    auto &bound = shared_bounds();
    for (int i = threadIdx.x; i < block.num_bounds; i += blockDim.x) {
        const int64_t place = a.offset[block.first_row + i] - block.start;
        bound[i] = place < 0 ? -1 : place > block.num_items ? block.num_items + 1 : static_cast<int>(place);
    }
    __syncthreads();
    return block;
}

/* The last of a block's rows that begins at or before item i. */
DEVICE int row_at(int i, int num_bounds) {
    auto &bound = shared_bounds();
    int low = 0, high = num_bounds - 1;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (bound[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The entry of item `item` of row v, OWN_ROW for its self-loop, or NO_ENTRY. */
DEVICE int64_t entry_of(const segments &a, int64_t v, int64_t item) {
    const int64_t place = item - a.offset[v], has_self = v < a.num_self;
    if (has_self && place == 0) return OWN_ROW;
    const int64_t entry = a.begin[v] + place - has_self;
    return entry < a.end[v] ? entry : NO_ENTRY;
}

/* Phase 1. Use is a functor of (i, v, entry): what item i of the block needs. */
template <class Use> DEVICE void prepare_items(const segments &a, const item_block &block, const Use &use) {
    const item_array<int32_t> row = shared_rows();
    for (int i = threadIdx.x; i < block.num_items; i += blockDim.x) {
        const int r = row_at(i, block.num_bounds);
        row[i] = r;
        use.prepare(i, block.first_row + r, entry_of(a, block.first_row + r, block.start + i));
    }
    __syncthreads();
}

DEVICE int power_of_two_from(int64_t n) {
    int power = 1;
    while (power < n && power < WARP_SIZE) power *= 2;
    return power;
}

template <int COLUMNS>
DEVICE item_chunk open_chunk(const segments &a, const item_block &block, int64_t dim, int64_t head_dim) {
    const int64_t first_column = static_cast<int64_t>(blockIdx.y) * COLUMNS * WARP_SIZE;
    item_chunk chunk;
    chunk.lanes = power_of_two_from((dim - first_column + COLUMNS - 1) / COLUMNS);
    chunk.index = threadIdx.x / chunk.lanes;
    chunk.size = a.items_a_block / (blockDim.x / chunk.lanes);
    chunk.first = chunk.index * chunk.size;
    chunk.stop = min(chunk.first + chunk.size, block.num_items);
    chunk.columns = columns_from<COLUMNS>(first_column + COLUMNS * (threadIdx.x % chunk.lanes), dim, head_dim);
    return chunk;
}

/* One lane's fold of its chunk. Fold has
 *   sum, loaded, part           in the middle of a row, of one operand, and of the row as far as it was read
 *   COLUMNS, WORDS              of a lane, and of 32 bits in a part
 *   begin(v), load(i, columns), add(sum, i, loaded), close(sum)      load only loads, so that it waits for nothing
 *   none(), merge(part, later), word(part, w), of_words(words)
 *   store(v, columns, part), stage(slot, columns, part), staged(slot, columns) */
template <class Fold> struct lane_fold {
    const Fold &fold;
    const item_block &block;
    const item_chunk &chunk;
    typename Fold::part head; /* of the row that earlier chunks began and this one ends */
    int head_row;

    DEVICE void share(const typename Fold::part &part) {
        auto &shared = shared_parts<Fold::WORDS>();
        for (int w = 0; w < Fold::WORDS; w++) shared[w * MAX_THREADS + threadIdx.x] = Fold::word(part, w);
    }

    DEVICE typename Fold::part shared_part(int chunk_index) {
        auto &shared = shared_parts<Fold::WORDS>();
        const int thread = chunk_index * chunk.lanes + threadIdx.x % chunk.lanes;
        uint32_t words[Fold::WORDS];
        for (int w = 0; w < Fold::WORDS; w++) words[w] = shared[w * MAX_THREADS + thread];
        return Fold::of_words(words);
    }

    /* The chunk's items of a row have been read. */
    DEVICE void leave(int row, const typename Fold::part &part) {
        auto &bound = shared_bounds();
        const bool begins = bound[row] >= chunk.first, ends = bound[row + 1] <= chunk.stop;
        if (begins && ends) {
            fold.store(block.first_row + row, chunk.columns, part);
        } else if (ends) {
            head = part;
            head_row = row;
        } else {
            share(part);
        }
    }

    template <int COUNT> DEVICE void read_items(int first, int &row, typename Fold::sum &sum) {
        const item_array<int32_t> row_of = shared_rows();
        typename Fold::loaded loaded[COUNT];
        for (int k = 0; k < COUNT; k++) loaded[k] = fold.load(first + k, chunk.columns);
        for (int k = 0; k < COUNT; k++) {
            const int next = row_of[first + k];
            if (next != row) {
                leave(row, fold.close(sum));
                row = next;
                sum = fold.begin(block.first_row + row);
            }
            fold.add(sum, first + k, loaded[k]);
        }
    }

    DEVICE void read_chunk() {
        int row = shared_rows()[chunk.first], i = chunk.first;
        typename Fold::sum sum = fold.begin(block.first_row + row);
        for (; i + LOADS_AHEAD <= chunk.stop; i += LOADS_AHEAD) read_items<LOADS_AHEAD>(i, row, sum);
        for (; i < chunk.stop; i++) read_items<1>(i, row, sum);
        leave(row, fold.close(sum));
    }

    /* The parts that chunks first_chunk .. stop_chunk-1 left of one row. */
    DEVICE typename Fold::part merged(int first_chunk, int stop_chunk) {
        typename Fold::part part = Fold::none();
        for (int c = first_chunk; c < stop_chunk; c++) Fold::merge(part, shared_part(c));
        return part;
    }

    DEVICE void finish_head() {
        const int place = shared_bounds()[head_row];
        typename Fold::part part = merged(max(place, 0) / chunk.size, chunk.index);
        Fold::merge(part, head);
        if (place >= 0)
            fold.store(block.first_row + head_row, chunk.columns, part);
        else
            fold.stage(2 * static_cast<int64_t>(blockIdx.x) + 1, chunk.columns, part);
    }

    DEVICE void finish_tail() {
        const int row = shared_rows()[block.num_items - 1];
        auto &bound = shared_bounds();
        if (bound[row + 1] <= block.num_items) return;
        fold.stage(2 * static_cast<int64_t>(blockIdx.x), chunk.columns,
                   merged(max(static_cast<int>(bound[row]), 0) / chunk.size, chunk.index + 1));
    }
};

template <class Fold> DEVICE void fold_segments(const Fold &fold, const segments &a, int64_t dim, int64_t head_dim) {
    const item_block block = open_block(a);
    prepare_items(a, block, fold);
    const item_chunk chunk = open_chunk<Fold::COLUMNS>(a, block, dim, head_dim);
    const bool is_busy = chunk.first < block.num_items && chunk.columns.count > 0;
    lane_fold<Fold> lane = {fold, block, chunk, Fold::none(), -1};
    if (is_busy) lane.read_chunk();
    __syncthreads();
    if (is_busy && lane.head_row >= 0) lane.finish_head();
    if (is_busy && chunk.index == (block.num_items - 1) / chunk.size) lane.finish_tail();
}

/* The kernel that follows: one thread per pair of columns of a row that several blocks share. */
template <class Fold>
DEVICE void fold_spilled(const Fold &fold, int64_t dim, int num_spilled, const int32_t *row, const int32_t *first,
                         const int32_t *last) {
    const int64_t num_pairs = (dim + 1) / 2, i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= num_spilled * num_pairs) return;
    const int64_t k = i / num_pairs;
    const lane_columns columns = columns_from<2>(i % num_pairs * 2, dim, dim);
    typename Fold::part part = Fold::none();
    for (int64_t b = first[k]; b < last[k]; b++) Fold::merge(part, fold.staged(2 * b, columns));
    Fold::merge(part, fold.staged(2 * last[k] + 1, columns));
    fold.store(row[k], columns, part);
}
#endif
