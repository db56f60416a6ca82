#include "condense_traffic.h"

#include <stddef.h>

#include "use_ring.h"

/* Whether the line had to be fetched. */
static int use_line(line_buffer *buffer, int32_t line) {
    const int is_held = buffer->newer[line] >= 0;
    if (is_held && !buffer->is_lru) return 0;
    if (is_held)
        take_out(buffer->newer, buffer->older, line);
    else if (buffer->num_held == buffer->capacity)
        take_out(buffer->newer, buffer->older, buffer->newer[buffer->num_lines]);
    else
        buffer->num_held++;
    put_newest(buffer->newer, buffer->older, buffer->num_lines, line);
    return !is_held;
}

/* Count the lines that the sources of cluster c fetch, and append them to `list` unless it is NULL. */
static void use_sources(clustered_rows rows, int64_t c, int64_t row_bytes, line_buffer *buffer, int64_t *fetched,
                        line_list *list) {
    for (int64_t e = rows.indptr[rows.start[c]]; e < rows.indptr[rows.start[c + 1]]; e++) {
        const int64_t u = rows.indices[e], last = ((u + 1) * row_bytes - 1) / buffer->line_bytes;
        const int is_sparse = u < rows.start[c] || u >= rows.start[c + 1];
        for (int64_t line = u * row_bytes / buffer->line_bytes; line <= last; line++) {
            if (!use_line(buffer, (int32_t)line)) continue;
            fetched[is_sparse]++;
            if (!list) continue;
            list->is_sparse[list->num_lines] = (uint8_t)is_sparse;
            list->line[list->num_lines++] = (int32_t)line;
        }
    }
}

void fetch_lines(clustered_rows rows, int64_t row_bytes, line_buffer buffer, int64_t *fetched) {
    for (int64_t c = 0; c < rows.num_clusters; c++) use_sources(rows, c, row_bytes, &buffer, fetched, NULL);
}

void list_fetched_lines(clustered_rows rows, int64_t first, int64_t last, int64_t row_bytes, line_buffer *buffer,
                        line_list *list, int64_t *end) {
    int64_t fetched[2] = {0, 0};
    for (int64_t c = first; c < last; c++) {
        use_sources(rows, c, row_bytes, buffer, fetched, list);
        end[c - first] = list->num_lines;
    }
}
