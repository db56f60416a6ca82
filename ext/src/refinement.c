#include "refinement.h"

#include <float.h>

/* Of excess: a smaller relief is only rounding. */
static const double SMALLEST_RELIEF = 1e-12;
/* With this many neighbours or more, counting how many each part has is cheaper than asking likely parts one by one. */
static const int64_t MANY_NEIGHBORS = 32;

static int64_t degree(const part_neighbors *s, int64_t v)
{
    return s->indptr[v + 1] - s->indptr[v];
}

static int is_indexed(const part_neighbors *s, int64_t v)
{
    return s->near_length[v] == s->num_parts;
}

/* Where a part's entry is in row v, or would be. */
static int32_t place_of(const part_neighbors *s, int64_t v, int32_t part)
{
    const part_count *row = s->near + s->near_start[v];
    int32_t low = 0, high = s->near_length[v];
    if (is_indexed(s, v))
        return part;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (row[middle].part < part)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int32_t count_of(const part_neighbors *s, int64_t v, int32_t part)
{
    const part_count *row = s->near + s->near_start[v];
    int32_t place = place_of(s, v, part);
    return place < s->near_length[v] && row[place].part == part ? row[place].count : 0;
}

static void gain_neighbor(part_neighbors *s, int64_t v, int32_t part)
{
    part_count *row = s->near + s->near_start[v];
    int32_t place = place_of(s, v, part);
    if (place == s->near_length[v] || row[place].part != part) {
        for (int32_t i = s->near_length[v]++; i > place; i--)
            row[i] = row[i - 1];
        row[place] = (part_count){part, 0};
    }
    row[place].count++;
}

static void lose_neighbor(part_neighbors *s, int64_t v, int32_t part)
{
    part_count *row = s->near + s->near_start[v];
    int32_t place = place_of(s, v, part);
    if (--row[place].count > 0 || is_indexed(s, v))
        return;
    s->near_length[v]--;
    for (int32_t i = place; i < s->near_length[v]; i++)
        row[i] = row[i + 1];
}

int64_t count_cut_edges(const part_neighbors *s)
{
    int64_t ends = 0;
    for (int64_t v = 0; v < s->num_nodes; v++)
        ends += degree(s, v) - count_of(s, v, s->owner[v]);
    return ends / 2;
}

void count_part_neighbors(part_neighbors *s)
{
    s->volume = 0;
    for (int64_t v = 0; v < s->num_nodes; v++) {
        part_count *row = s->near + s->near_start[v];
        s->near_length[v] = degree(s, v) >= s->num_parts ? s->num_parts : 0;
        for (int32_t i = 0; i < s->near_length[v]; i++)
            row[i] = (part_count){i, 0};
        for (int64_t e = s->indptr[v]; e < s->indptr[v + 1]; e++)
            gain_neighbor(s, v, s->owner[s->indices[e]]);
        for (int32_t i = 0; i < s->near_length[v]; i++)
            s->volume += row[i].count > 0 && row[i].part != s->owner[v];
        s->size[s->owner[v]]++;
        for (int32_t k = 0; k < s->num_weights; k++)
            s->load[(int64_t)s->owner[v] * s->num_weights + k] += s->weight[v * s->num_weights + k];
    }
}

/* Rows that part a no longer needs without v, minus v's own row, which a then needs if it has a neighbour of v. */
static int64_t relief(const part_neighbors *s, int64_t v)
{
    int32_t a = s->owner[v];
    int64_t rows = 0;
    for (int64_t e = s->indptr[v]; e < s->indptr[v + 1]; e++) {
        int64_t u = s->indices[e];
        rows += s->owner[u] != a && count_of(s, u, a) == 1;
    }
    return rows - (count_of(s, v, a) > 0);
}

/* Number of v's neighbours whose rows part p would newly need, or any number above `most` if there are more. With it
 *
 *     volume after v moves to p = volume − relief(v) + missing(v, p) − (1 if p has a neighbour of v). */
static int64_t missing(const part_neighbors *s, int64_t v, int32_t p, int64_t most)
{
    int64_t rows = 0;
    for (int64_t e = s->indptr[v]; e < s->indptr[v + 1] && rows <= most; e++) {
        int64_t u = s->indices[e];
        rows += s->owner[u] != p && count_of(s, u, p) == 0;
    }
    return rows;
}

static int32_t note_part(part_neighbors *s, int32_t part, int32_t num_noted)
{
    if (s->is_noted[part])
        return num_noted;
    s->is_noted[part] = 1;
    s->noted[num_noted] = part;
    return num_noted + 1;
}

static int32_t note_parts_of(part_neighbors *s, int64_t v, int32_t num_noted)
{
    const part_count *row = s->near + s->near_start[v];
    for (int32_t i = 0; i < s->near_length[v]; i++)
        if (row[i].count > 0)
            num_noted = note_part(s, row[i].part, num_noted);
    return num_noted;
}

/* List the parts that may miss at most `most` neighbours of v: such a part has or gets one of any most + 1 neighbours,
 * so the neighbours with the shortest rows are asked. Returns the number of parts. */
static int32_t note_likely_parts(part_neighbors *s, int64_t v, int64_t most)
{
    int64_t num_asked = 0;
    int32_t num_noted = 0;
    for (int indexed = 0; indexed < 2; indexed++) {
        for (int64_t e = s->indptr[v]; e < s->indptr[v + 1] && num_asked <= most; e++) {
            int64_t u = s->indices[e];
            if (is_indexed(s, u) != indexed)
                continue;
            num_noted = note_parts_of(s, u, note_part(s, s->owner[u], num_noted));
            num_asked++;
        }
    }
    return num_noted;
}

static int has_room(const part_neighbors *s, int64_t v, int32_t part)
{
    for (int32_t k = 0; k < s->num_weights; k++)
        if (s->load[(int64_t)part * s->num_weights + k] + s->weight[v * s->num_weights + k] > s->limit[k])
            return 0;
    return 1;
}

/* Largest load / limit of a part over all kinds of weights, with v's weights added `times` times. */
static double fullness(const part_neighbors *s, int64_t v, int32_t part, int64_t times)
{
    double most = 0.0;
    for (int32_t k = 0; k < s->num_weights; k++) {
        int64_t load = s->load[(int64_t)part * s->num_weights + k] + times * s->weight[v * s->num_weights + k];
        double share = (double)load / (double)s->limit[k];
        most = share > most ? share : most;
    }
    return most;
}

static double excess(const part_neighbors *s, int64_t v, int32_t part, int64_t times)
{
    double sum = 0.0;
    for (int32_t k = 0; k < s->num_weights; k++) {
        int64_t load = s->load[(int64_t)part * s->num_weights + k] + times * s->weight[v * s->num_weights + k];
        if (load > s->limit[k])
            sum += (double)load / (double)s->limit[k] - 1.0;
    }
    return sum;
}

static void move_node(part_neighbors *s, int64_t v, int32_t part, int64_t change)
{
    int32_t from = s->owner[v];
    for (int64_t e = s->indptr[v]; e < s->indptr[v + 1]; e++) {
        lose_neighbor(s, s->indices[e], from);
        gain_neighbor(s, s->indices[e], part);
    }
    s->owner[v] = part;
    s->size[from]--;
    s->size[part]++;
    for (int32_t k = 0; k < s->num_weights; k++) {
        s->load[(int64_t)from * s->num_weights + k] -= s->weight[v * s->num_weights + k];
        s->load[(int64_t)part * s->num_weights + k] += s->weight[v * s->num_weights + k];
    }
    s->volume += change;
}

/* List all parts that have or get a neighbour of v, and count in `served` how many. Returns the number of parts. */
static int32_t count_served(part_neighbors *s, int64_t v)
{
    int32_t num_noted = 0;
    for (int64_t e = s->indptr[v]; e < s->indptr[v + 1]; e++) {
        int64_t u = s->indices[e];
        const part_count *row = s->near + s->near_start[u];
        for (int32_t i = 0; i < s->near_length[u]; i++) {
            if (row[i].count > 0 && row[i].part != s->owner[u]) {
                num_noted = note_part(s, row[i].part, num_noted);
                s->served[row[i].part]++;
            }
        }
        num_noted = note_part(s, s->owner[u], num_noted);
        s->served[s->owner[u]]++;
    }
    return num_noted;
}

/* The part with room for v that lowers the volume most, then the emptiest, then the lowest; −1 if none will do. */
static int32_t better_part(part_neighbors *s, int64_t v, int64_t *change)
{
    int64_t freed = relief(s, v);
    if (s->size[s->owner[v]] == 1 || freed < 0)
        return -1;
    int counts_all = degree(s, v) >= MANY_NEIGHBORS;
    int32_t num_noted = counts_all ? count_served(s, v) : note_likely_parts(s, v, freed), best = -1;
    double best_fullness = fullness(s, v, s->owner[v], 0);
    *change = 0;
    for (int32_t i = 0; i < num_noted; i++) {
        int32_t p = s->noted[i];
        int64_t is_near = count_of(s, v, p) > 0, rows = degree(s, v) - s->served[p];
        s->is_noted[p] = 0;
        s->served[p] = 0;
        if (p == s->owner[v] || !has_room(s, v, p))
            continue;
        if (!counts_all)
            rows = missing(s, v, p, *change + freed + is_near);
        int64_t difference = rows - is_near - freed;
        double full = fullness(s, v, p, 1);
        if (difference < *change ||
            (difference == *change && (full < best_fullness || (full == best_fullness && p < best)))) {
            best = p;
            best_fullness = full;
            *change = difference;
        }
    }
    return best;
}

static int is_inside(const part_neighbors *s, int64_t v)
{
    return degree(s, v) == count_of(s, v, s->owner[v]);
}

int64_t lower_volume(part_neighbors *s, int64_t max_rounds)
{
    int32_t *now = s->queue, *next = s->queue + s->num_nodes;
    int64_t num_now = s->num_nodes, num_moves = 0;
    for (int64_t v = 0; v < s->num_nodes; v++) {
        now[v] = (int32_t)v;
        s->is_queued[v] = 1;
    }
    for (int64_t round = 0; round < max_rounds && num_now; round++) {
        int64_t num_next = 0, change;
        for (int64_t i = 0; i < num_now; i++) {
            int64_t v = now[i];
            s->is_queued[v] = 0;
            int32_t part = is_inside(s, v) ? -1 : better_part(s, v, &change);
            if (part < 0)
                continue;
            move_node(s, v, part, change);
            num_moves++;
            for (int64_t e = s->indptr[v]; e < s->indptr[v + 1]; e++) {
                int32_t u = s->indices[e];
                if (!s->is_queued[u]) {
                    s->is_queued[u] = 1;
                    next[num_next++] = u;
                }
            }
        }
        int32_t *swap = now;
        now = next;
        next = swap;
        num_now = num_next;
    }
    for (int64_t i = 0; i < num_now; i++)
        s->is_queued[now[i]] = 0;
    return num_moves;
}

static int32_t emptiest_part(const part_neighbors *s)
{
    int32_t best = 0;
    for (int32_t p = 1; p < s->num_parts; p++)
        if (fullness(s, 0, p, 0) < fullness(s, 0, best, 0))
            best = p;
    return best;
}

/* Find the part to which v should move to relieve its own part, among the emptiest part and those with neighbours of v.
 * Returns the key by which moves are ordered: rows that the move costs per unit of excess that it removes, at most 0 if
 * it costs none; DBL_MAX if no move relieves. */
static double relieving_part(part_neighbors *s, int64_t v, int32_t emptiest, int32_t *part, int64_t *change)
{
    int32_t a = s->owner[v];
    double lost = excess(s, v, a, 0) - excess(s, v, a, -1), best = DBL_MAX;
    if (lost <= 0.0 || s->size[a] == 1)
        return DBL_MAX;
    int64_t freed = relief(s, v);
    int32_t num_noted = note_part(s, emptiest, note_parts_of(s, v, 0));
    for (int32_t i = 0; i < num_noted; i++) {
        int32_t p = s->noted[i];
        s->is_noted[p] = 0;
        double relieved = p == a ? 0.0 : lost - (excess(s, v, p, 1) - excess(s, v, p, 0));
        if (relieved <= SMALLEST_RELIEF)
            continue;
        int64_t is_near = count_of(s, v, p) > 0, most = degree(s, v);
        if (best < DBL_MAX)     /* with more, the key would be larger */
            most = (best > 0.0 ? (int64_t)(best * relieved) + 1 : 0) + freed + is_near;
        int64_t difference = missing(s, v, p, most) - is_near - freed;
        double key = difference > 0 ? (double)difference / relieved : (double)difference * relieved;
        if (key < best || (key == best && p < *part)) {
            best = key;
            *part = p;
            *change = difference;
        }
    }
    return best;
}

static int is_before(const double *key, int32_t one, int32_t other)
{
    return key[one] < key[other] || (key[one] == key[other] && one < other);
}

/* Restore a binary heap of nodes by key from entry i downwards. */
static void sift_down(int32_t *heap, const double *key, int64_t length, int64_t i)
{
    int32_t node = heap[i];
    for (int64_t child = 2 * i + 1; child < length; child = 2 * i + 1) {
        if (child + 1 < length && is_before(key, heap[child + 1], heap[child]))
            child++;
        if (!is_before(key, heap[child], node))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = node;
}

static int is_larger(const part_neighbors *s, int64_t v, double share)
{
    for (int32_t k = 0; k < s->num_weights; k++)
        if ((double)s->weight[v * s->num_weights + k] > share * (double)s->limit[k])
            return 1;
    return 0;
}

/* Nodes of parts in excess that a move relieves, as a heap by key; returns their number. */
static int64_t gather_relieving(part_neighbors *s, int32_t *heap, double largest)
{
    int64_t length = 0, change;
    int32_t part = 0, emptiest = emptiest_part(s);
    for (int64_t v = 0; v < s->num_nodes; v++) {
        if (excess(s, v, s->owner[v], 0) <= 0.0 || is_larger(s, v, largest))
            continue;
        s->key[v] = relieving_part(s, v, emptiest, &part, &change);
        if (s->key[v] < DBL_MAX)
            heap[length++] = (int32_t)v;
    }
    for (int64_t i = length / 2 - 1; i >= 0; i--)
        sift_down(heap, s->key, length, i);
    return length;
}

int64_t relieve_parts(part_neighbors *s, int64_t max_rounds, double largest)
{
    int32_t *heap = s->queue;
    int64_t num_moves = 0, before = -1;
    for (int64_t round = 0; round < max_rounds && num_moves != before; round++) {
        before = num_moves;
        int64_t length = gather_relieving(s, heap, largest);
        int32_t emptiest = emptiest_part(s);
        while (length) {
            int32_t v = heap[0], part = 0;
            int64_t change = 0;
            double key = relieving_part(s, v, emptiest, &part, &change);
            /* Moves in between may have raised this node's key; then it waits for its later turn. */
            if (key < DBL_MAX && key > s->key[v]) {
                s->key[v] = key;
                sift_down(heap, s->key, length, 0);
                continue;
            }
            heap[0] = heap[--length];
            if (length)
                sift_down(heap, s->key, length, 0);
            if (key < DBL_MAX) {
                move_node(s, v, part, change);
                emptiest = emptiest_part(s);
                num_moves++;
            }
        }
    }
    return num_moves;
}
