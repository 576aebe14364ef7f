/* y = x W^T (+ bias) in float32 for a few rows of x, every number summed in the order of matmul.c, bit for bit.
 *
 * x (m, k) and y (m, n) have contiguous rows, m <= FEW; W (n, k) has contiguous rows, or contiguous columns. Lanes are
 * outputs, so that a sum goes down k in one lane: tiles of W are turned in registers on their way. Each row of W is
 * read once, which is what the time goes to.
 */
#include "parallel.h"
#include "vector.h"

#include "matmul_order.h"

#define FEW 8
#define PIECE 64 /* outputs in a piece of work */

typedef struct {
    const float *x, *w, *bias;
    float *y;
    int64_t m, n, k, w_row, w_column;
} product;

/* Columns k ... k + LANES - 1 of W for the outputs j ...; what is not there is zero */
INLINE void load_columns(const product *p, int64_t j, int64_t outputs, int64_t k, int64_t depth, vf32 columns[LANES]) {
    const float *from = p->w + j * p->w_row + k * p->w_column;
    if (p->w_column != 1) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            columns[i] = i >= depth ? (vf32){0}
                         : outputs >= LANES ? load_f32(from + i * p->w_column)
                                            : load_some_f32(from + i * p->w_column, outputs);
        return;
    }
    if (outputs >= LANES && depth >= LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) columns[i] = load_f32(from + i * p->w_row);
    } else {
        for (int i = 0; i < LANES; i++)
            columns[i] = i < outputs ? load_some_f32(from + i * p->w_row, depth < LANES ? depth : LANES) : (vf32){0};
    }
    turn(columns);
}

INLINE void some_outputs(const product *p, const int m, int64_t i, int64_t j, int64_t outputs) {
    for (int64_t begin = 0; begin < p->k; begin += DEPTH) {
        int64_t end = p->k - begin < DEPTH ? p->k : begin + DEPTH;
        vf32 sums[FEW];
#pragma GCC unroll 8
        for (int q = 0; q < m; q++) sums[q] = broadcast_f32(0.0f);
        int64_t k = begin;
        for (; k + LANES <= end; k += LANES) {
            vf32 columns[LANES];
            load_columns(p, j, outputs, k, LANES, columns);
#pragma GCC unroll 16
            for (int d = 0; d < LANES; d++)
#pragma GCC unroll 8
                for (int q = 0; q < m; q++) sums[q] += broadcast_f32(p->x[(i + q) * p->k + k + d]) * columns[d];
        }
        if (k < end) {
            vf32 columns[LANES];
            load_columns(p, j, outputs, k, end - k, columns);
            for (int d = 0; d < end - k; d++)
#pragma GCC unroll 8
                for (int q = 0; q < m; q++) sums[q] += broadcast_f32(p->x[(i + q) * p->k + k + d]) * columns[d];
        }
        for (int q = 0; q < m; q++) {
            float *to = p->y + (i + q) * p->n + j;
            const float *base = begin ? to : p->bias ? p->bias + j : NULL;
            int64_t width = outputs < LANES ? outputs : LANES;
            store_some_f32(to, base ? sums[q] + load_some_f32(base, width) : sums[q], width);
        }
    }
}

static void piece(void *context, int64_t item, int64_t thread) {
    const product *p = context;
    (void)thread;
    int64_t last = (item + 1) * PIECE < p->n ? (item + 1) * PIECE : p->n;
    for (int64_t j = item * PIECE; j < last; j += LANES)
        for (int64_t i = 0; i < p->m;) {
#define ROWS(count)                                     \
    if (p->m - i >= count) {                            \
        some_outputs(p, count, i, j, last - j);         \
        i += count;                                     \
        continue;                                       \
    }
            ROWS(8)
            ROWS(4)
            ROWS(2)
            ROWS(1)
#undef ROWS
        }
}

__attribute__((visibility("default"))) void JOIN2(matmul_ordered_f32, ISA)(const float *x, const float *w, const float *bias,
                                                                           float *y, int64_t m, int64_t n, int64_t k,
                                                                           int64_t w_row, int64_t w_column,
                                                                           int64_t n_threads) {
    product p = {x, w, bias, y, m, n, k, w_row, w_column};
    parallel_for((n + PIECE - 1) / PIECE, n_threads, piece, &p);
}

typedef struct {
    const float *x, *y;
    float *out;
    int64_t m, n, k;
} products;

static void one_product(void *context, int64_t item, int64_t thread) {
    const products *p = context;
    (void)thread;
    const float *x = p->x + item * p->m * p->k, *y = p->y + item * p->k * p->n;
    float *out = p->out + item * p->m * p->n;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j += LANES) {
            int64_t left = p->n - j < LANES ? p->n - j : LANES;
            vf32 total = {0};
            for (int64_t begin = 0; begin < p->k; begin += DEPTH) {
                int64_t end = p->k - begin < DEPTH ? p->k : begin + DEPTH;
                vf32 sums = {0};
                for (int64_t k = begin; k < end; k++) {
                    const float *row = y + k * p->n + j;
                    sums += broadcast_f32(x[i * p->k + k]) * (left == LANES ? load_f32(row) : load_some_f32(row, left));
                }
                total = begin ? sums + total : sums;
            }
            store_some_f32(out + i * p->n + j, total, left);
        }
}

/* Many small products: x (batch, m, k), y (batch, k, n), out (batch, m, n), contiguous */
__attribute__((visibility("default"))) void JOIN2(products_ordered_f32, ISA)(const float *x, const float *y, float *out,
                                                                             int64_t batch, int64_t m, int64_t n, int64_t k,
                                                                             int64_t n_threads) {
    products p = {x, y, out, m, n, k};
    parallel_for(batch, n_threads, one_product, &p);
}
