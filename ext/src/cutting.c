#include "cutting.h"

static void put(part_arcs part, const int64_t *rows, int64_t num_rows, int64_t first)
{
    for (int64_t i = 0; i < num_rows; i++)
        part.place[rows[i]] = (int32_t)(first + i);
}

static void take_away(part_arcs part, const int64_t *rows, int64_t num_rows)
{
    for (int64_t i = 0; i < num_rows; i++)
        part.place[rows[i]] = -1;
}

int64_t arcs_inside(part_arcs part, const int64_t *rows, int64_t num_rows, int32_t *source, int32_t *target)
{
    int64_t num_arcs = 0;
    put(part, rows, num_rows, 0);
    for (int64_t i = 0; i < num_rows; i++)
        for (int64_t e = part.indptr[rows[i]]; e < part.indptr[rows[i] + 1]; e++) {
            int32_t place = part.place[part.indices[e]];
            if (place < 0)
                continue;
            source[num_arcs] = place;
            target[num_arcs++] = (int32_t)i;
        }
    take_away(part, rows, num_rows);
    return num_arcs;
}

int64_t cut_rows(part_arcs part, const int64_t *rows, int64_t num_rows, int64_t num_fresh, int64_t *far,
                 int64_t *indptr, int32_t *indices, int64_t *arc)
{
    int64_t num_far = num_fresh, num_arcs = 0;
    put(part, rows, num_rows, 0);
    put(part, far, num_fresh, num_rows);
    indptr[0] = 0;
    for (int64_t i = 0; i < num_rows; i++) {
        for (int64_t e = part.indptr[rows[i]]; e < part.indptr[rows[i] + 1]; e++) {
            int32_t column = part.indices[e];
            if (part.place[column] < 0) {
                part.place[column] = (int32_t)(num_rows + num_far);
                far[num_far++] = column;
            }
            indices[num_arcs] = part.place[column];
            arc[num_arcs++] = e;
        }
        indptr[i + 1] = num_arcs;
    }
    take_away(part, rows, num_rows);
    take_away(part, far, num_far);
    return num_far;
}
