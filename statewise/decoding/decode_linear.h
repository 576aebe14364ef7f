/* y_b = W x_b + bias for the sequences b of a step, W being read from memory once for all of them.
 *
 * Layout: 16 rows of W lie together, column by column: (blocks, n_columns, 16), so that a vector holds a column of the
 * block, x is broadcast, and nothing is summed across lanes. Rows missing in the last block are zero.
 *   FLOAT32, BFLOAT16, INT8: the number at (block, column, row).
 *   INT4: (blocks, words, 16) of 32 bits, a word being 8 columns of a row, the first in the lowest 4 bits.
 * INT8 and INT4 are numbers q of two's complement, and W = scale q with a bfloat16 scale for every `group` columns of a
 * row; group is a multiple of 8.
 *
 * One sequence: weights are converted in registers, a group is summed in PHASES accumulators and then scaled.
 * Several: a tile of up to TILE columns is converted to float32, which stays in the first-level cache, and multiplied
 * with a few sequences at a time.
 */
#ifndef STATEWISE_DECODE_LINEAR_H
#define STATEWISE_DECODE_LINEAR_H

#include "decode_program.h"

#define TILE 256
#define PHASES (PARTS > 2 ? 2 : 4) /* accumulators in flight: enough to hide latency, few enough for the registers */
#define AHEAD 4096 /* bytes of weights that are asked for before they are needed */
#define AT_ONCE (PARTS > 2 ? 2 : PARTS > 1 ? 4 : 8) /* sequences multiplied with a tile in one pass */

typedef int8_t vi8 __attribute__((vector_size(LANES)));
typedef int8_t vi8_unaligned __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vf32 load_i8(const int8_t *from) {
#if defined(__AVX512F__)
    return (vf32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
#else
    vi8 bytes = (vi8) * (const vi8_unaligned *)from;
    return __builtin_convertvector(__builtin_convertvector(bytes, vi32), vf32);
#endif
}

/* Number j of each lane's word, as a float32. */
INLINE vf32 unpack_i4(vi32 words, int j) {
#if defined(__AVX512F__)
    /* vpermps looks at the lowest 4 bits of each lane and nothing else: the table converts as well */
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return (vf32)_mm512_permutexvar_ps((__m512i)((vu32)words >> (4 * j)), table);
#else
    return __builtin_convertvector((words << (28 - 4 * j)) >> 28, vf32);
#endif
}

INLINE vi32 load_words(const int32_t *from) {
    vf32 bits = load_f32((const float *)(const void *)from);
    return (vi32)bits;
}

/* One vector of a column: `part` of the block whose first number is at `block`. Not for INT4. */
INLINE vf32 load_column(int precision, const void *block, int64_t column, int part) {
    int64_t place = column * BLOCK + part * LANES;
    if (precision == FLOAT32) return load_f32((const float *)block + place);
    if (precision == BFLOAT16) return load_bf16((const uint16_t *)block + place);
    return load_i8((const int8_t *)block + place);
}

INLINE int64_t words_of(int64_t n_columns) { return (n_columns + 7) / 8; }

INLINE const void *block_of(const matrix *w, int64_t block) {
    if (w->precision == INT4) return (const int32_t *)w->data + block * words_of(w->n_columns) * BLOCK;
    int64_t bytes = w->precision == FLOAT32 ? 4 : w->precision == BFLOAT16 ? 2 : 1;
    return (const char *)w->data + block * w->n_columns * BLOCK * bytes;
}

INLINE int64_t groups_of(const matrix *w) { return (w->n_columns + w->group - 1) / w->group; }

/* sums += the columns first .. end of one group, times x */
INLINE void add_columns(int precision, const void *block, const float *x, int64_t first, int64_t end, vf32 *sums) {
    vf32 partial[PHASES][PARTS];
    memset(partial, 0, sizeof partial);
    int64_t k = first;
    if (precision == INT4) {
        for (; k < end; k += 8) {
            const int32_t *words = (const int32_t *)block + k / 8 * BLOCK;
            __builtin_prefetch((const char *)words + AHEAD / 2, 0, 0);
            int64_t n = end - k < 8 ? end - k : 8;
            for (int part = 0; part < PARTS; part++) {
                vi32 word = load_words(words + part * LANES);
                if (n == 8) {
#pragma GCC unroll 8
                    for (int j = 0; j < 8; j++) partial[j % PHASES][part] += unpack_i4(word, j) * x[k + j];
                } else {
                    for (int j = 0; j < n; j++)
                        partial[0][part] += unpack_i4((vi32)((vu32)word >> (4 * j)), 0) * x[k + j];
                }
            }
        }
    } else {
        const int64_t bytes = precision == FLOAT32 ? 4 : precision == BFLOAT16 ? 2 : 1;
        for (; k + PHASES <= end; k += PHASES) {
            /* the next rows follow in memory, so that a prefetch beyond the end is of use to them */
            const char *ahead = (const char *)block + k * BLOCK * bytes + AHEAD;
#pragma GCC unroll 4
            for (int64_t line = 0; line < PHASES * BLOCK * bytes; line += 64) __builtin_prefetch(ahead + line, 0, 0);
#pragma GCC unroll 4
            for (int j = 0; j < PHASES; j++)
#pragma GCC unroll 4
                for (int part = 0; part < PARTS; part++)
                    partial[j][part] += load_column(precision, block, k + j, part) * x[k + j];
        }
        for (; k < end; k++)
            for (int part = 0; part < PARTS; part++) partial[0][part] += load_column(precision, block, k, part) * x[k];
    }
    for (int part = 0; part < PARTS; part++)
        for (int j = 0; j < PHASES; j++) sums[part] += partial[j][part];
}

/* sums = one block of rows times the x of one sequence */
INLINE void multiply_block(int precision, const matrix *w, int64_t block, const float *x, float *sums) {
    const void *data = block_of(w, block);
    vf32 total[PARTS];
    memset(total, 0, sizeof total);
    if (precision == FLOAT32 || precision == BFLOAT16) {
        add_columns(precision, data, x, 0, w->n_columns, total);
    } else {
        const uint16_t *scales = w->scales + block * groups_of(w) * BLOCK;
        for (int64_t first = 0; first < w->n_columns; first += w->group, scales += BLOCK) {
            int64_t end = first + w->group < w->n_columns ? first + w->group : w->n_columns;
            vf32 partial[PARTS];
            memset(partial, 0, sizeof partial);
            add_columns(precision, data, x, first, end, partial);
            for (int part = 0; part < PARTS; part++) total[part] += load_bf16(scales + part * LANES) * partial[part];
        }
    }
    for (int part = 0; part < PARTS; part++) store_f32(sums + part * LANES, total[part]);
}

/* The columns first .. end of a block in float32: (end - first, 16) */
INLINE void convert_tile(const matrix *w, int64_t block, int64_t first, int64_t end, float *tile) {
    const void *data = block_of(w, block);
    for (int64_t k = first; k < end; k++) {
        for (int part = 0; part < PARTS; part++) {
            vf32 value;
            if (w->precision == BFLOAT16) {
                value = load_column(BFLOAT16, data, k, part);
            } else {
                const uint16_t *scales = w->scales + (block * groups_of(w) + k / w->group) * BLOCK;
                if (w->precision == INT8) {
                    value = load_column(INT8, data, k, part);
                } else {
                    vi32 word = load_words((const int32_t *)data + k / 8 * BLOCK + part * LANES);
                    value = unpack_i4((vi32)((vu32)word >> (4 * (k % 8))), 0);
                }
                value *= load_bf16(scales + part * LANES);
            }
            store_f32(tile + (k - first) * BLOCK + part * LANES, value);
        }
    }
}

/* sums (n, 16) += tile (n_columns, 16) times x of n sequences, which lie x_stride apart */
INLINE void multiply_tile(int n, const float *tile, int64_t n_columns, const float *x, int64_t x_stride, float *sums) {
    vf32 total[AT_ONCE][PARTS];
    for (int b = 0; b < n; b++)
        for (int part = 0; part < PARTS; part++) total[b][part] = load_f32(sums + b * BLOCK + part * LANES);
    for (int64_t k = 0; k < n_columns; k++)
        for (int part = 0; part < PARTS; part++) {
            vf32 column = load_f32(tile + k * BLOCK + part * LANES);
            for (int b = 0; b < n; b++) total[b][part] += column * x[b * x_stride + k];
        }
    for (int b = 0; b < n; b++)
        for (int part = 0; part < PARTS; part++) store_f32(sums + b * BLOCK + part * LANES, total[b][part]);
}

/* sums (n_rows, 16) = one block of rows times the x of all sequences */
static void multiply_block_by_many(const matrix *w, int64_t block, const float *x, int64_t x_stride, int64_t n_rows,
                                   float *sums) {
    _Alignas(64) float converted[TILE * BLOCK];
    memset(sums, 0, sizeof(float) * (size_t)(n_rows * BLOCK));
    for (int64_t first = 0; first < w->n_columns; first += TILE) {
        int64_t end = first + TILE < w->n_columns ? first + TILE : w->n_columns;
        const float *tile = converted;
        if (w->precision == FLOAT32)
            tile = (const float *)block_of(w, block) + first * BLOCK;
        else
            convert_tile(w, block, first, end, converted);
        int64_t b = 0;
        for (; b + AT_ONCE <= n_rows; b += AT_ONCE)
            multiply_tile(AT_ONCE, tile, end - first, x + b * x_stride + first, x_stride, sums + b * BLOCK);
        for (; b < n_rows; b++)
            multiply_tile(1, tile, end - first, x + b * x_stride + first, x_stride, sums + b * BLOCK);
    }
}

static void run_linear(const worker *me, const linear *a) {
    const matrix *w = &a->weight;
    int64_t n_rows = me->step->n_rows;
    range mine = share_of(me, w->n_rows);
    int64_t x_stride = me->step->buffers[a->input.buffer].width;
    const float *x = at(me, a->input, 0);
    float *sums = at(me, a->sums, 0);
    for (int64_t row = mine.first; row < mine.end; row += BLOCK) {
        int64_t block = row / BLOCK, n = mine.end - row < BLOCK ? mine.end - row : BLOCK;
        if (n_rows > 1)
            multiply_block_by_many(w, block, x, x_stride, n_rows, sums);
        else if (w->precision == FLOAT32)
            multiply_block(FLOAT32, w, block, x, sums);
        else if (w->precision == BFLOAT16)
            multiply_block(BFLOAT16, w, block, x, sums);
        else if (w->precision == INT8)
            multiply_block(INT8, w, block, x, sums);
        else
            multiply_block(INT4, w, block, x, sums);
        for (int64_t b = 0; b < n_rows; b++) {
            float *out = at(me, a->output, b) + row;
            for (int64_t i = 0; i < n; i++) {
                float value = sums[b * BLOCK + i];
                if (a->bias) value += a->bias[row + i];
                out[i] = a->add ? out[i] + value : value;
            }
        }
    }
}

static void run_embed(const worker *me, const embed *a) {
    const matrix *w = &a->weight;
    range mine = share_of(me, w->n_columns);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        int64_t token = me->step->tokens[me->step->rows[b]];
        int64_t block = token / BLOCK, lane = token % BLOCK;
        const void *data = block_of(w, block);
        float *out = at(me, a->output, b);
        for (int64_t k = mine.first; k < mine.end; k++) {
            if (w->precision == FLOAT32) {
                out[k] = ((const float *)data)[k * BLOCK + lane];
            } else if (w->precision == BFLOAT16) {
                out[k] = float_of_bf16(((const uint16_t *)data)[k * BLOCK + lane]);
            } else {
                float scale = float_of_bf16(w->scales[(block * groups_of(w) + k / w->group) * BLOCK + lane]);
                int32_t q = w->precision == INT8 ? ((const int8_t *)data)[k * BLOCK + lane]
                                                 : (int32_t)((uint32_t)((const int32_t *)data)[k / 8 * BLOCK + lane]
                                                             << (28 - 4 * (k % 8))) >> 28;
                out[k] = scale * (float)q;
            }
        }
    }
}

#endif
