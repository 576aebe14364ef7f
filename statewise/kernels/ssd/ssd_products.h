/* Matrix products of the SSD kernel, small enough to stay in the cache:
 *
 *     out[i, :] = scale[i] out[i, :] + sum over k of A[i, k] B[k, :]
 *
 * A is read number by number at i row_stride + k k_stride (so it may be transposed), B and out by vectors along their
 * rows. The innermost loop runs over k and keeps a tile of out in registers: 4 rows of up to TILE_VECTORS vectors.
 * Every element is summed over k in order, whatever the tile, so that results do not depend on how rows are grouped.
 * After each tile some of what is needed next is asked for.
 */
#ifndef STATEWISE_SSD_PRODUCTS_H
#define STATEWISE_SSD_PRODUCTS_H

#include "ahead.h"

#define TILE_ROWS 4
#if VECTOR_BYTES == 64
#define TILE_VECTORS 4 /* 16 of 32 registers hold sums, two multiply-adds in flight for each of four cycles */
#else
#define TILE_VECTORS 2 /* 8 of 16 registers */
#endif

/* As a scale: the row begins at zero and what was in out, possibly NaN, is not read. */
static const real FRESH = -1;
static const real ONE = 1;

typedef struct {
    const real *numbers;
    int64_t row_stride, k_stride;
} factor;

typedef struct {
    const real *numbers;
    int64_t stride; /* 0: one scale for all rows */
} scales;

INLINE void tile(const int rows, const int vectors, int64_t n_k, factor A, const real *B, int64_t B_stride,
                 scales scale, const real *before, real *out, int64_t out_stride) {
    vreal sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        real s = scale.numbers[i * scale.stride];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            sum[i][j] = s < 0 ? v_broadcast(0) : s * v_load(before + i * out_stride + j * REAL_LANES);
    }
    for (int64_t k = 0; k < n_k; k++) {
        vreal row[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) row[j] = v_load(B + k * B_stride + j * REAL_LANES);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            real a = A.numbers[i * A.row_stride + k * A.k_stride];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sum[i][j] += a * row[j];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) v_store(out + i * out_stride + j * REAL_LANES, sum[i][j]);
}

INLINE void panel(const int vectors, ahead *a, int64_t n_rows, int64_t n_k, factor A, const real *B, int64_t B_stride,
                  scales scale, const real *before, real *out, int64_t out_stride) {
    int64_t i = 0;
    for (; i + TILE_ROWS <= n_rows; i += TILE_ROWS) {
        const int64_t at = i * out_stride;
        tile(TILE_ROWS, vectors, n_k, A, B, B_stride, scale, before + at, out + at, out_stride);
        A.numbers += TILE_ROWS * A.row_stride;
        scale.numbers += TILE_ROWS * scale.stride;
        if (a) ask(a);
    }
    for (; i < n_rows; i++) {
        const int64_t at = i * out_stride;
        tile(1, vectors, n_k, A, B, B_stride, scale, before + at, out + at, out_stride);
        A.numbers += A.row_stride;
        scale.numbers += scale.stride;
    }
}

/* out[i, :] = scale[i] before[i, :] + ...; before is laid out as out, and may be out. a: NULL, or asked meanwhile. */
static void multiply_onto(const real *before, ahead *a, int64_t n_rows, int64_t n_vectors, int64_t n_k, factor A,
                          const real *B, int64_t B_stride, scales scale, real *out, int64_t out_stride) {
    for (; n_vectors >= TILE_VECTORS; n_vectors -= TILE_VECTORS) {
        panel(TILE_VECTORS, a, n_rows, n_k, A, B, B_stride, scale, before, out, out_stride);
        B += TILE_VECTORS * REAL_LANES;
        before += TILE_VECTORS * REAL_LANES;
        out += TILE_VECTORS * REAL_LANES;
    }
#if TILE_VECTORS == 4
    if (n_vectors == 3) panel(3, a, n_rows, n_k, A, B, B_stride, scale, before, out, out_stride);
    if (n_vectors == 2) panel(2, a, n_rows, n_k, A, B, B_stride, scale, before, out, out_stride);
#endif
    if (n_vectors == 1) panel(1, a, n_rows, n_k, A, B, B_stride, scale, before, out, out_stride);
}

INLINE void multiply_asking(ahead *a, int64_t n_rows, int64_t n_vectors, int64_t n_k, factor A, const real *B,
                            int64_t B_stride, scales scale, real *out, int64_t out_stride) {
    multiply_onto(out, a, n_rows, n_vectors, n_k, A, B, B_stride, scale, out, out_stride);
}

INLINE void multiply(int64_t n_rows, int64_t n_vectors, int64_t n_k, factor A, const real *B, int64_t B_stride,
                     scales scale, real *out, int64_t out_stride) {
    multiply_onto(out, NULL, n_rows, n_vectors, n_k, A, B, B_stride, scale, out, out_stride);
}

/* the rounds of asking in a product of so many rows and vectors */
INLINE int64_t tiles(int64_t n_rows, int64_t n_vectors) {
    return n_rows / TILE_ROWS * ((n_vectors + TILE_VECTORS - 1) / TILE_VECTORS);
}

#endif
