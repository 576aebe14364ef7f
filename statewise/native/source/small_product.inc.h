/* out[row][column] = sum_k left[row][k] table[k][column]: a matrix product for matrices that are in the cache already.
 *
 * Tiles of PRODUCT_ROWS rows and two vectors of columns stay in registers while k runs; `left` is broadcast. The
 * table's rows are read in whole pairs of vectors (PRODUCT_COLUMNS), so they are padded to that; of the outputs only
 * n_columns are written. Every sum runs over k in order, whatever tile it lies in.
 */
#ifndef PRODUCT_ROWS
#if VECTOR_BYTES == 64
#define PRODUCT_ROWS 8
#else
#define PRODUCT_ROWS 4 /* eight sums, in sixteen registers */
#endif
#endif
#undef PRODUCT_COLUMNS
#define PRODUCT_COLUMNS (2 * REAL_LANES)

typedef struct {
    const real *left, *table;
    int64_t left_stride, table_stride, depth;
    real *out;
    int64_t out_stride, n_columns;
} LOCAL(product_of);

INLINE void LOCAL(store_columns)(real *to, vreal value, int64_t count) {
    if (count >= REAL_LANES) v_store(to, value);
    else if (count > 0) v_store_some(to, value, count);
}

INLINE void LOCAL(product_tile)(const LOCAL(product_of) *m, int64_t row, int64_t column, const int n_rows) {
    vreal sums[PRODUCT_ROWS][2];
    const real *left = m->left + row * m->left_stride, *table = m->table + column;
    const int64_t left_stride = m->left_stride;
    for (int r = 0; r < n_rows; r++) sums[r][0] = sums[r][1] = (vreal){0};
    for (int64_t k = 0; k < m->depth; k++) {
        vreal first = v_load(table), second = v_load(table + REAL_LANES);
        table += m->table_stride;
        for (int r = 0; r < n_rows; r++) {
            real weight = left[r * left_stride + k];
            sums[r][0] += weight * first;
            sums[r][1] += weight * second;
        }
    }
    for (int r = 0; r < n_rows; r++) {
        real *to = m->out + (row + r) * m->out_stride + column;
        LOCAL(store_columns)(to, sums[r][0], m->n_columns - column);
        LOCAL(store_columns)(to + REAL_LANES, sums[r][1], m->n_columns - column - REAL_LANES);
    }
}

static void LOCAL(product)(const LOCAL(product_of) *m, int64_t n_rows) {
    int64_t row = 0;
    for (; row + PRODUCT_ROWS <= n_rows; row += PRODUCT_ROWS)
        for (int64_t column = 0; column < m->n_columns; column += PRODUCT_COLUMNS)
            LOCAL(product_tile)(m, row, column, PRODUCT_ROWS);
    for (; row + 2 <= n_rows; row += 2)
        for (int64_t column = 0; column < m->n_columns; column += PRODUCT_COLUMNS) LOCAL(product_tile)(m, row, column, 2);
    if (row < n_rows)
        for (int64_t column = 0; column < m->n_columns; column += PRODUCT_COLUMNS) LOCAL(product_tile)(m, row, column, 1);
}
