/* A packed matrix, as packing.py writes it, and how it is read from memory.
 *
 * 16 rows lie together, column by column, so that a vector holds a column of the block, x is broadcast, and nothing is
 * summed across lanes. Rows missing in the last block are zero.
 *   FLOAT32, BFLOAT16: (blocks, n_columns, 16).
 *   INT8: (blocks, pairs, 16, 2), two columns of a row side by side, of which a product of pairs is one instruction.
 *   INT4: (blocks, words, 16) of 32 bits, a word being 8 columns of a row. The number q is there as q + 8; columns 0, 2,
 *   4, 6 lie in the lower half of the word, the first in the lowest 4 bits, and 1, 3, 5, 7 in the upper half.
 * In INT8 and INT4 the columns are filled up with zeros to a multiple of 8, and W = scale q with a scale for every `group`
 * columns of a row, in bfloat16 or, if `wide`, in float32; group is a multiple of 8. With `offsets` W = scale q + offset,
 * and INT4 has q, from 0 to 15, as it is.
 */
#ifndef STATEWISE_DECODE_MATRIX_H
#define STATEWISE_DECODE_MATRIX_H

#include "decode_program.h"

#define WORD 8 /* columns that INT8 and INT4 are read in */

/* One block of a matrix times the x of all sequences: sums (n_rows, 16). */
typedef struct {
    const matrix *w;
    const void *x;    /* of the first sequence: floats, or what decode_integer.inc.h makes of them */
    int64_t x_stride; /* floats from one sequence to the next */
    int64_t n_rows, ahead;
    int alike; /* whether each is summed as if it were alone */
} multiplication;
typedef void (*block_product)(const multiplication *p, int64_t block, float *sums);

/* Asks for the bytes, which are a multiple of a line, `ahead` of where they are needed. The next rows follow in memory,
 * so that what lies beyond the end of a block is of use to them. */
INLINE void ask_for(const int prefetch, const char *ahead, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
        if (prefetch == NEAR) __builtin_prefetch(ahead + line, 0, 3);
        if (prefetch == PASSING) __builtin_prefetch(ahead + line, 0, 0);
    }
}

INLINE int64_t words_of(int64_t n_columns) { return (n_columns + WORD - 1) / WORD; }

INLINE int64_t bytes_of_block(const matrix *w) {
    if (w->precision == FLOAT32) return w->n_columns * BLOCK * 4;
    if (w->precision == BFLOAT16) return w->n_columns * BLOCK * 2;
    return words_of(w->n_columns) * BLOCK * (w->precision == INT8 ? 8 : 4);
}

INLINE const char *block_of(const matrix *w, int64_t block) {
    return (const char *)w->data + block * bytes_of_block(w);
}

INLINE int64_t groups_of(const matrix *w) { return (w->n_columns + w->group - 1) / w->group; }

/* The scales from one on: bfloat16, or float32 */
INLINE const char *scales_from(const matrix *w, int64_t number) {
    return (const char *)w->scales + number * (w->wide ? 4 : 2);
}

INLINE float scale_at(const matrix *w, int64_t number) {
    const void *scale = scales_from(w, number);
    return w->wide ? *(const float *)scale : float_of_bf16(*(const uint16_t *)scale);
}

/* A number of INT8 or INT4, without its scale. */
INLINE int32_t integer_at(const matrix *w, const char *block, int64_t column, int64_t lane) {
    if (w->precision == INT8) return ((const int8_t *)block)[(column / 2 * BLOCK + lane) * 2 + column % 2];
    uint32_t word = ((const uint32_t *)(const void *)block)[column / WORD * BLOCK + lane];
    int32_t zero = w->offsets ? 0 : 8;
    return (int32_t)(word >> (4 * (column % WORD / 2) + 16 * (column % 2)) & 15) - zero;
}

static void run_embed(const worker *me, const embed *a) {
    const matrix *w = &a->weight;
    range mine = share_of(me, w->n_columns);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        int64_t token = me->step->tokens[b];
        int64_t block = token / BLOCK, lane = token % BLOCK;
        const char *data = block_of(w, block);
        float *out = at(me, a->output, b);
        for (int64_t k = mine.first; k < mine.end; k++) {
            if (w->precision == FLOAT32) {
                out[k] = ((const float *)(const void *)data)[k * BLOCK + lane];
            } else if (w->precision == BFLOAT16) {
                out[k] = float_of_bf16(((const uint16_t *)(const void *)data)[k * BLOCK + lane]);
            } else {
                int64_t group = (block * groups_of(w) + k / w->group) * BLOCK + lane;
                float value = scale_at(w, group) * (float)integer_at(w, data, k, lane);
                out[k] = w->offsets ? value + w->offsets[group] : value;
            }
        }
    }
}

#endif
