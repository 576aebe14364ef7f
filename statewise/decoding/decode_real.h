/* A block of a FLOAT32 or BFLOAT16 matrix times the x of all sequences, in float32.
 *
 * One sequence: the columns are summed in PHASES accumulators. Several: a column is read once for up to AT_ONCE of them,
 * each with an accumulator.
 */
#ifndef STATEWISE_DECODE_REAL_H
#define STATEWISE_DECODE_REAL_H

#include "decode_matrix.h"

#define PHASES (PARTS > 2 ? 2 : 4) /* accumulators in flight: enough to hide latency, few enough for the registers */
#define AT_ONCE (PARTS == 2 ? 4 : 8)                /* sequences that a column is read once for */
#define PASS (PARTS > 2 ? 1 : PARTS)                /* parts of a column that are multiplied in one pass over the block */
#define ALIKE_AT_ONCE (PARTS == 1 ? 6 : PARTS == 2 ? 3 : 4) /* the same where each has PHASES accumulators */
#define COLUMNS 4                                   /* that are asked for together: whole lines */

/* One vector of a column: `part` of the block */
INLINE vf32 load_column(const int precision, const char *block, int64_t column, int part) {
    int64_t place = column * BLOCK + part * LANES;
    if (precision == FLOAT32) return load_f32((const float *)(const void *)block + place);
    return load_bf16((const uint16_t *)(const void *)block + place);
}

INLINE void multiply_one(const int precision, const int prefetch, const multiplication *p, const char *block, const float *x,
                         float *sums) {
    const int64_t bytes = BLOCK * (precision == FLOAT32 ? 4 : 2), n = p->w->n_columns;
    vf32 partial[PHASES][PARTS];
    memset(partial, 0, sizeof partial);
    int64_t k = 0;
    for (; k + COLUMNS <= n; k += COLUMNS) {
        ask_for(prefetch, block + k * bytes + p->ahead, COLUMNS * bytes);
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                partial[j % PHASES][part] += load_column(precision, block, k + j, part) * x[k + j];
    }
    for (; k < n; k++)
        for (int part = 0; part < PARTS; part++) partial[0][part] += load_column(precision, block, k, part) * x[k];
    for (int part = 0; part < PARTS; part++) {
        vf32 total = partial[0][part];
        for (int j = 1; j < PHASES; j++) total += partial[j][part];
        store_f32(sums + part * LANES, total);
    }
}

INLINE void multiply_several(const int n, const int precision, const int prefetch, const multiplication *p, const char *block,
                             int first, const float *x, float *sums) {
    const int64_t bytes = BLOCK * (precision == FLOAT32 ? 4 : 2), n_columns = p->w->n_columns, stride = p->x_stride;
    vf32 total[AT_ONCE][PASS];
    memset(total, 0, sizeof total);
    int64_t k = 0;
    for (; k + COLUMNS <= n_columns; k += COLUMNS) {
        if (first == 0) ask_for(prefetch, block + k * bytes + p->ahead, COLUMNS * bytes);
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++)
#pragma GCC unroll 4
            for (int part = 0; part < PASS; part++) {
                vf32 column = load_column(precision, block, k + j, first + part);
#pragma GCC unroll 8
                for (int b = 0; b < n; b++) total[b][part] += column * x[b * stride + k + j];
            }
    }
    for (; k < n_columns; k++)
        for (int part = 0; part < PASS; part++) {
            vf32 column = load_column(precision, block, k, first + part);
            for (int b = 0; b < n; b++) total[b][part] += column * x[b * stride + k];
        }
    for (int b = 0; b < n; b++)
        for (int part = 0; part < PASS; part++) store_f32(sums + b * BLOCK + (first + part) * LANES, total[b][part]);
}

/* Each of n sequences with the accumulators, and so the bits, of multiply_one. */
INLINE void multiply_alike(const int n, const int precision, const int prefetch, const multiplication *p, const char *block,
                           int part, const float *x, float *sums) {
    const int64_t bytes = BLOCK * (precision == FLOAT32 ? 4 : 2), n_columns = p->w->n_columns, stride = p->x_stride;
    vf32 partial[ALIKE_AT_ONCE][PHASES];
    memset(partial, 0, sizeof partial);
    int64_t k = 0;
    for (; k + COLUMNS <= n_columns; k += COLUMNS) {
        if (part == 0) ask_for(prefetch, block + k * bytes + p->ahead, COLUMNS * bytes);
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) {
            vf32 column = load_column(precision, block, k + j, part);
#pragma GCC unroll 8
            for (int b = 0; b < n; b++) partial[b][j % PHASES] += column * x[b * stride + k + j];
        }
    }
    for (; k < n_columns; k++) {
        vf32 column = load_column(precision, block, k, part);
        for (int b = 0; b < n; b++) partial[b][0] += column * x[b * stride + k];
    }
    for (int b = 0; b < n; b++) {
        vf32 total = partial[b][0];
        for (int j = 1; j < PHASES; j++) total += partial[b][j];
        store_f32(sums + b * BLOCK + part * LANES, total);
    }
}

INLINE void multiply_real(const int precision, const int prefetch, const multiplication *p, int64_t number, float *sums) {
    const char *block = block_of(p->w, number);
    const float *x = p->x;
    if (p->n_rows == 1) {
        multiply_one(precision, prefetch, p, block, x, sums);
        return;
    }
    int64_t b = 0;
#define ALIKE(n)                                                                                                  \
    for (; p->alike && ALIKE_AT_ONCE >= n && b + n <= p->n_rows; b += n)                                            \
        for (int part = 0; part < PARTS; part++)                                                                    \
            multiply_alike(n, precision, prefetch, p, block, part, x + b * p->x_stride, sums + b * BLOCK);
    ALIKE(6)
    ALIKE(5)
    ALIKE(4)
    ALIKE(3)
    ALIKE(2)
    ALIKE(1)
#undef ALIKE
#define SEVERAL(n)                                                                                                  \
    for (; AT_ONCE >= n && b + n <= p->n_rows; b += n)                                                              \
        for (int part = 0; part < PARTS; part += PASS)                                                              \
            multiply_several(n, precision, prefetch, p, block, part, x + b * p->x_stride, sums + b * BLOCK);
    SEVERAL(8)
    SEVERAL(4)
    SEVERAL(2)
    SEVERAL(1)
#undef SEVERAL
}

#define REAL_PRODUCT(PRECISION_, PREFETCH)                                                          \
    static void multiply_##PRECISION_##_##PREFETCH(const multiplication *p, int64_t block, float *sums) { \
        multiply_real(PRECISION_, PREFETCH, p, block, sums);                                        \
    }
REAL_PRODUCT(FLOAT32, NONE)
REAL_PRODUCT(FLOAT32, NEAR)
REAL_PRODUCT(FLOAT32, PASSING)
REAL_PRODUCT(BFLOAT16, NONE)
REAL_PRODUCT(BFLOAT16, NEAR)
REAL_PRODUCT(BFLOAT16, PASSING)
#undef REAL_PRODUCT

#endif
