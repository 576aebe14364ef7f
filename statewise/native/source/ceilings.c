/* What a processor can do at most: words read from memory, and exponentials of numbers that lie in its first cache. */
#include "parallel.h"
#include "vector.h"

#define LINE 64 /* bytes that come from memory together */
#define WORDS (VECTOR_BYTES / 4)

typedef uint32_t vu32_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

typedef struct {
    const uint32_t *words;
    uint32_t *sums;
    int64_t length, n_rows, n_parts;
} reading;

/* The sum of n_rows x length words, a line of each row in turn: so many streams does the processor see. */
INLINE uint32_t sum_rows(const uint32_t *words, int64_t n_rows, int64_t length) {
    vu32 sums[LINE / VECTOR_BYTES] = {0};
    int64_t i = 0;
    for (; i + LINE / 4 <= length; i += LINE / 4)
#pragma GCC unroll 8
        for (int64_t row = 0; row < n_rows; row++)
#pragma GCC unroll 4
            for (int v = 0; v < LINE / VECTOR_BYTES; v++)
                sums[v] += *(const vu32_unaligned *)(words + row * length + i + v * WORDS);
    uint32_t sum = 0;
    for (int v = 0; v < LINE / VECTOR_BYTES; v++)
        for (int lane = 0; lane < WORDS; lane++) sum += sums[v][lane];
    for (; i < length; i++)
        for (int64_t row = 0; row < n_rows; row++) sum += words[row * length + i];
    return sum;
}

static void read_part(void *context, int64_t item, int64_t thread) {
    const reading *r = context;
    (void)thread;
    int64_t begin = r->length * item / r->n_parts, length = r->length * (item + 1) / r->n_parts - begin;
    const uint32_t *words = r->words + begin;
    int64_t row = length / r->n_rows, rest = r->n_rows * row;
    uint32_t sum = r->n_rows == 8   ? sum_rows(words, 8, row)
                   : r->n_rows == 2 ? sum_rows(words, 2, row)
                                    : sum_rows(words, r->n_rows, row);
    for (int64_t i = rest; i < length; i++) sum += words[i];
    r->sums[item] = sum;
}

/* sums_p: the sum modulo 2^32 of part p of the words, of as many equal parts as threads. Each thread reads its part as
 * n_rows rows side by side. */
void EXPORT_PLAIN(read_memory)(const uint32_t *words, uint32_t *sums, int64_t length, int64_t n_rows,
                               int64_t n_threads) {
    reading r = {words, sums, length, n_rows, n_threads};
    parallel_for(n_threads, n_threads, read_part, &r);
}

typedef struct {
    const float *x;
    float *y;
    int64_t length, n_times;
} exponentials;

static void repeat_exponentials(void *context, int64_t item, int64_t thread) {
    const exponentials *e = context;
    (void)thread;
    float *y = e->y + item * e->length;
    for (int64_t time = 0; time < e->n_times; time++) {
        int64_t i = 0;
        for (; i + LANES <= e->length; i += LANES) store_f32(y + i, exp2_f32(load_f32(e->x + i)));
        if (i < e->length) {
            int64_t rest = e->length - i;
            store_some_f32(y + i, exp2_f32(load_some_f32(e->x + i, rest)), rest);
        }
        __asm__ volatile("" : : "r"(y) : "memory"); /* or only the last time would be computed */
    }
}

/* y, a row for each thread: 2^x, computed n_times by each of them. */
void EXPORT_PLAIN(repeat_exp2)(const float *x, float *y, int64_t length, int64_t n_times, int64_t n_threads) {
    exponentials e = {x, y, length, n_times};
    parallel_for(n_threads, n_threads, repeat_exponentials, &e);
}
