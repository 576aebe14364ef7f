/* Memory that is asked for while something else is computed.
 *
 * Tensors are read block by block: some channels of each step, and the steps lie a page or more apart. A
 * processor's own prefetcher stops at the end of a page, so that every row would be waited for. So what the next block
 * needs, and what this one will write, is put in line as rows, and the loops that compute ask for a few lines of the
 * cache in each of their rounds. Asked for all at once they would wait for each other, and the loop for them.
 */
#ifndef STATEWISE_AHEAD_H
#define STATEWISE_AHEAD_H

#include <stdint.h>

#define LINE 64 /* bytes */
#define MAX_AHEAD 8

typedef struct {
    uintptr_t row; /* not a pointer: the last row has none after it */
    int64_t stride, bytes, rows;
} rows_ahead;

typedef struct {
    rows_ahead queue[MAX_AHEAD];
    int64_t count, now; /* how many there are, and which of them is asked for */
    int64_t at;         /* bytes into its row */
    int64_t each;       /* lines that a round asks for */
} ahead;

/* `rows` rows of `bytes` bytes, `stride` bytes apart, from `offset` bytes after `from` on. Nothing where there is
 * nothing to ask for, or no place left. */
static inline void ahead_add(ahead *a, const void *from, int64_t offset, int64_t stride, int64_t bytes, int64_t rows) {
    if (!from || bytes <= 0 || rows <= 0 || a->count == MAX_AHEAD) return;
    const uintptr_t first = (uintptr_t)from + (uintptr_t)offset, into = first % LINE;
    a->queue[a->count++] = (rows_ahead){first - into, stride, bytes + (int64_t)into, rows};
}

/* ready for about so many rounds: shares all lines among them */
static inline void ahead_share(ahead *a, int64_t rounds) {
    int64_t lines = 0;
    for (int64_t i = 0; i < a->count; i++) lines += a->queue[i].rows * ((a->queue[i].bytes + LINE - 1) / LINE);
    a->each = rounds > 0 ? (lines + rounds - 1) / rounds : 0;
}

/* one round */
static inline __attribute__((always_inline)) void ask(ahead *a) {
    if (a->now >= a->count) return;
    rows_ahead *one = &a->queue[a->now];
    uintptr_t line = one->row + (uintptr_t)a->at, end = one->row + (uintptr_t)one->bytes;
    for (int64_t i = 0; i < a->each; i++) {
        __builtin_prefetch((const void *)line, 0, 2);
        line += LINE;
        if (line < end) continue;
        one->row += (uintptr_t)one->stride;
        if (--one->rows == 0) {
            if (++a->now == a->count) return;
            one = &a->queue[a->now];
        }
        line = one->row;
        end = line + (uintptr_t)one->bytes;
    }
    a->at = (int64_t)(line - one->row);
}

#endif
