/* to[j, i] = from[i, j], in blocks of REAL_LANES x REAL_LANES that are turned in registers.
 *
 * A block is turned by interleaving vector i with vector i + REAL_LANES / 2 for each i, log2(REAL_LANES) times: each
 * round moves the highest bit of the row's number to the lowest bit of the column's.
 */
#ifndef STATEWISE_SSD_TRANSPOSE_H
#define STATEWISE_SSD_TRANSPOSE_H

#if REAL_LANES == 16
#define FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif REAL_LANES == 8
#define FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#elif REAL_LANES == 4
#define FIRST_HALVES 0, 4, 1, 5
#define SECOND_HALVES 2, 6, 3, 7
#else
#define FIRST_HALVES 0, 2
#define SECOND_HALVES 1, 3
#endif

#if defined(__clang__) || __GNUC__ >= 12
#define interleave_first(a, b) __builtin_shufflevector(a, b, FIRST_HALVES)
#define interleave_second(a, b) __builtin_shufflevector(a, b, SECOND_HALVES)
#else
#define interleave_first(a, b) __builtin_shuffle(a, b, (vmask){FIRST_HALVES})
#define interleave_second(a, b) __builtin_shuffle(a, b, (vmask){SECOND_HALVES})
#endif

INLINE void interleave_all(const vreal *from, vreal *to) {
#pragma GCC unroll 8
    for (int i = 0; i < REAL_LANES / 2; i++) {
        to[2 * i] = interleave_first(from[i], from[i + REAL_LANES / 2]);
        to[2 * i + 1] = interleave_second(from[i], from[i + REAL_LANES / 2]);
    }
}

static void transpose_block(const real *from, int64_t from_stride, real *to, int64_t to_stride) {
    vreal even[REAL_LANES], odd[REAL_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < REAL_LANES; i++) even[i] = v_load(from + i * from_stride);
    interleave_all(even, odd);
#if REAL_LANES >= 8
    interleave_all(odd, even);
    interleave_all(even, odd);
#endif
#if REAL_LANES == 4 || REAL_LANES == 16
    interleave_all(odd, even);
#define TURNED even
#else
#define TURNED odd
#endif
#pragma GCC unroll 16
    for (int i = 0; i < REAL_LANES; i++) v_store(to + i * to_stride, TURNED[i]);
#undef TURNED
}

static void transpose(int64_t n_rows, int64_t n_columns, const real *from, int64_t from_stride, real *to,
                      int64_t to_stride) {
    for (int64_t i = 0; i < n_rows; i += REAL_LANES)
        for (int64_t j = 0; j < n_columns; j += REAL_LANES) {
            const real *block = from + i * from_stride + j;
            real *turned = to + j * to_stride + i;
            int64_t rows = n_rows - i, columns = n_columns - j;
            if (rows >= REAL_LANES && columns >= REAL_LANES) {
                transpose_block(block, from_stride, turned, to_stride);
                continue;
            }
            for (int64_t r = 0; r < rows && r < REAL_LANES; r++)
                for (int64_t c = 0; c < columns && c < REAL_LANES; c++)
                    turned[c * to_stride + r] = block[r * from_stride + c];
        }
}

#endif
