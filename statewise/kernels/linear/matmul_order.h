/* What every product of float32 here has in common: the order of its sums, and tiles turned in registers. */
#ifndef STATEWISE_MATMUL_ORDER_H
#define STATEWISE_MATMUL_ORDER_H

#include "vector.h"

/* A number of C is summed over k one by one, in blocks of so many that each begin at zero; the bias and the blocks are
 * added in turn. In matmul.c a panel of B then stays in the first cache between visits to C. */
#define DEPTH 320

/* LANES x LANES numbers: rows become columns */
INLINE void turn(vf32 rows[LANES]) {
    /* stage by stage: swap the off-diagonal blocks of blocks of 2, 4, ... rows */
#define SWAP(distance, low, high)                                    \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) if (!(i & (distance))) { \
        vf32 first = rows[i], second = rows[i + (distance)];         \
        rows[i] = low;                                               \
        rows[i + (distance)] = high;                                 \
    }
#if LANES == 16
    SWAP(8, __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
         __builtin_shufflevector(first, second, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    SWAP(4, __builtin_shufflevector(first, second, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
         __builtin_shufflevector(first, second, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    SWAP(2, __builtin_shufflevector(first, second, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
         __builtin_shufflevector(first, second, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    SWAP(1, __builtin_shufflevector(first, second, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
         __builtin_shufflevector(first, second, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif LANES == 8
    SWAP(4, __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11),
         __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15))
    SWAP(2, __builtin_shufflevector(first, second, 0, 1, 8, 9, 4, 5, 12, 13),
         __builtin_shufflevector(first, second, 2, 3, 10, 11, 6, 7, 14, 15))
    SWAP(1, __builtin_shufflevector(first, second, 0, 8, 2, 10, 4, 12, 6, 14),
         __builtin_shufflevector(first, second, 1, 9, 3, 11, 5, 13, 7, 15))
#else
    SWAP(2, __builtin_shufflevector(first, second, 0, 1, 4, 5), __builtin_shufflevector(first, second, 2, 3, 6, 7))
    SWAP(1, __builtin_shufflevector(first, second, 0, 4, 2, 6), __builtin_shufflevector(first, second, 1, 5, 3, 7))
#endif
#undef SWAP
}

/* The same, from rows of `from` to rows of `to` */
INLINE void transpose_tile(const float *from, int64_t from_stride, float *to, int64_t to_stride) {
    vf32 rows[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) rows[i] = load_f32(from + i * from_stride);
    turn(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) store_f32(to + i * to_stride, rows[i]);
}

#endif
