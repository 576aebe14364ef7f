/* C = A B (+ a row vector), float32: what a linear layer needs, forward and backward, at the speed of the processor.
 *
 * A (m, k), B (k, n) with any strides, C (m, n) row-major. B is packed once, in panels of PANEL columns; a tile of
 * ROWS x PANEL numbers of C stays in registers while the kernel runs down a block of k. A is read where it lies if its
 * rows are contiguous, and packed tile by tile if its columns are (a transposed matrix).
 *
 * Packing B pays where C has many rows. Where it has few, the caller hands over C' = B' A' instead, which is the same
 * products in the same order: then B, the weights, are read where they lie, and tiles of C' are transposed on their way out.
 *
 * Every number of C is summed over k in one order, in blocks of DEPTH, whatever the number of threads.
 */
#include "parallel.h"
#include "vector.h"

#include "matmul_order.h"

#define VECTORS 2
#define PANEL (VECTORS * LANES)
#if VECTOR_BYTES == 64
#define ROWS 14 /* 28 sums, 2 columns of B: 30 of 32 registers */
#else
#define ROWS 6 /* 12 sums, 2 columns of B, 1 of A: 15 of 16 registers */
#endif
#define ROWS_PADDED ((ROWS + LANES - 1) / LANES * LANES)
#define BLOCK_ROWS (ROWS * 8)
#define BLOCK_PANELS 24 /* at most */

typedef struct {
    const float *a, *b, *bias;
    float *c, *packed; /* packed: (panels of n, k, PANEL) */
    int64_t m, n, k, a_row, a_column, b_row, b_column;
    int64_t n_panels, n_row_blocks, n_panel_blocks, block_panels;
    float *scratch; /* for each thread ROWS * DEPTH numbers */
    int64_t scratch_size;
    int64_t n_pack_pieces;
    int64_t turned; /* whether C is written transposed */
} product;

/* Some steps of k of one panel of B: columns beyond n are zero. */
static void pack_panel(const product *p, int64_t panel, int64_t k_first, int64_t k_end) {
    int64_t column = panel * PANEL, width = p->n - column < PANEL ? p->n - column : PANEL;
    float *to = p->packed + panel * p->k * PANEL;
    const float *from = p->b + column * p->b_column;
    int64_t k = k_first;
    if (p->b_column == 1 && width == PANEL) {
        for (; k < k_end; k++)
            for (int v = 0; v < VECTORS; v++) store_f32(to + k * PANEL + v * LANES, load_f32(from + k * p->b_row + v * LANES));
    } else if (p->b_row == 1 && width == PANEL) {
        for (; k + LANES <= k_end; k += LANES)
            for (int v = 0; v < VECTORS; v++)
                transpose_tile(from + v * LANES * p->b_column + k, p->b_column, to + k * PANEL + v * LANES, PANEL);
    }
    for (; k < k_end; k++)
        for (int64_t j = 0; j < PANEL; j++) to[k * PANEL + j] = j < width ? from[k * p->b_row + j * p->b_column] : 0.0f;
}

static void pack(void *context, int64_t item, int64_t thread) {
    const product *p = context;
    (void)thread;
    int64_t panel = item / p->n_pack_pieces, piece = item % p->n_pack_pieces;
    int64_t size = (p->k / p->n_pack_pieces + LANES - 1) / LANES * LANES;
    int64_t first = piece * size, end = piece == p->n_pack_pieces - 1 ? p->k : first + size;
    if (first < p->k) pack_panel(p, panel, first, end < p->k ? end : p->k);
}

/* Writes a tile of sums, (ROWS, PANEL), to C, after what earlier blocks of k left there, or the bias. */
INLINE void add_rows(const vf32 sums[ROWS][VECTORS], const product *p, int64_t row, int64_t rows, int64_t column, int first) {
    int64_t width = p->n - column < PANEL ? p->n - column : PANEL;
    for (int64_t r = 0; r < rows; r++) {
        float *to = p->c + (row + r) * p->n + column;
        const float *base = first ? (p->bias ? p->bias + column : NULL) : to;
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) {
            int64_t left = width - v * LANES;
            if (left >= LANES)
                store_f32(to + v * LANES, base ? sums[r][v] + load_f32(base + v * LANES) : sums[r][v]);
            else if (left > 0)
                store_some_f32(to + v * LANES, base ? sums[r][v] + load_some_f32(base + v * LANES, left) : sums[r][v], left);
        }
    }
}

/* The same for C', whose rows are columns of C, and the bias is one number for each row. */
INLINE void add_columns(const vf32 sums[ROWS][VECTORS], const product *p, int64_t row, int64_t rows, int64_t column, int first) {
    float tile[ROWS_PADDED * PANEL], turned[PANEL * ROWS_PADDED];
    int64_t width = p->n - column < PANEL ? p->n - column : PANEL;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS_PADDED; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) store_f32(tile + r * PANEL + v * LANES, r < ROWS ? sums[r][v] : broadcast_f32(0.0f));
    for (int r = 0; r < ROWS_PADDED; r += LANES)
        for (int v = 0; v < VECTORS; v++)
            transpose_tile(tile + r * PANEL + v * LANES, PANEL, turned + v * LANES * ROWS_PADDED + r, ROWS_PADDED);
    for (int64_t j = 0; j < width; j++) {
        float *to = p->c + (column + j) * p->m + row;
        const float *base = first ? (p->bias ? p->bias + row : NULL) : to;
        for (int64_t r = 0; r < rows; r++) to[r] = turned[j * ROWS_PADDED + r] + (base ? base[r] : 0.0f);
    }
}

/* A tile of C over `depth` steps of k; its sums stay in registers. */
INLINE void tile(const product *p, int64_t row, int64_t rows, int64_t column, int64_t depth, const float *a, int64_t a_row,
                 int64_t a_column, const float *b, int first) {
    vf32 sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[r][v] = broadcast_f32(0.0f);
    const float *from[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) from[r] = a + (r < rows ? r : rows - 1) * a_row; /* repeated rows are not stored */
    for (int64_t k = 0; k < depth; k++) {
        vf32 b0 = load_f32(b + k * PANEL), b1 = load_f32(b + k * PANEL + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            vf32 a_k = broadcast_f32(from[r][k * a_column]);
            sums[r][0] += a_k * b0;
            sums[r][1] += a_k * b1;
        }
    }
    if (p->turned)
        add_columns(sums, p, row, rows, column, first);
    else
        add_rows(sums, p, row, rows, column, first);
}

/* A block of C: BLOCK_ROWS rows and block_panels panels. */
static void multiply(void *context, int64_t item, int64_t thread) {
    const product *p = context;
    int64_t row_block = item % p->n_row_blocks, panel_block = item / p->n_row_blocks;
    int64_t row_first = row_block * BLOCK_ROWS, row_end = row_first + BLOCK_ROWS < p->m ? row_first + BLOCK_ROWS : p->m;
    int64_t panel_first = panel_block * p->block_panels;
    int64_t panel_end = panel_first + p->block_panels < p->n_panels ? panel_first + p->block_panels : p->n_panels;
    float *packed_a = p->scratch + thread * p->scratch_size;
    for (int64_t k = 0; k < p->k; k += DEPTH) {
        int64_t depth = p->k - k < DEPTH ? p->k - k : DEPTH;
        int contiguous = p->a_column == 1;
        if (!contiguous) { /* (tiles of ROWS, depth, ROWS) */
            for (int64_t i = row_first; i < row_end; i += ROWS) {
                int64_t rows = row_end - i < ROWS ? row_end - i : ROWS;
                float *to = packed_a + (i - row_first) * DEPTH;
                const float *from = p->a + i * p->a_row + k * p->a_column;
                if (p->a_row == 1 && rows == ROWS) {
                    for (int64_t j = 0; j < depth; j++) memcpy(to + j * ROWS, from + j * p->a_column, sizeof(float) * ROWS);
                } else {
                    for (int64_t j = 0; j < depth; j++)
                        for (int64_t r = 0; r < rows; r++) to[j * ROWS + r] = from[r * p->a_row + j * p->a_column];
                }
            }
        }
        for (int64_t panel = panel_first; panel < panel_end; panel++) {
            const float *b = p->packed + (panel * p->k + k) * PANEL;
            for (int64_t i = row_first; i < row_end; i += ROWS) {
                int64_t rows = row_end - i < ROWS ? row_end - i : ROWS;
                if (contiguous)
                    tile(p, i, rows, panel * PANEL, depth, p->a + i * p->a_row + k, p->a_row, 1, b, k == 0);
                else
                    tile(p, i, rows, panel * PANEL, depth, packed_a + (i - row_first) * DEPTH, 1, ROWS, b, k == 0);
            }
        }
    }
}

/* c (m, n) = a (m, k) b (k, n) + bias (n or NULL); with `turned` c is written as (n, m) and the bias has m numbers.
 * packed: room for ceil(n / PANEL) * PANEL * k numbers; k >= 1. */
__attribute__((visibility("default"))) void JOIN2(matmul_f32, ISA)(
    const float *a, const float *b, const float *bias, float *c, float *packed, float *scratch, int64_t m, int64_t n, int64_t k,
    int64_t a_row, int64_t a_column, int64_t b_row, int64_t b_column, int64_t turned, int64_t n_threads) {
    product p = {.a = a, .b = b, .bias = bias, .c = c, .packed = packed, .m = m, .n = n, .k = k, .a_row = a_row,
                 .a_column = a_column, .b_row = b_row, .b_column = b_column, .turned = turned, .scratch = scratch};
    p.n_panels = (n + PANEL - 1) / PANEL;
    p.n_row_blocks = (m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    p.n_panel_blocks = (p.n_panels + BLOCK_PANELS - 1) / BLOCK_PANELS;
    /* of one size, so that threads with as many blocks have as much to do */
    p.block_panels = (p.n_panels + p.n_panel_blocks - 1) / p.n_panel_blocks;
    p.scratch_size = BLOCK_ROWS * DEPTH;
    p.n_pack_pieces = 4;
    parallel_for(p.n_panels * p.n_pack_pieces, n_threads, pack, &p);
    parallel_for(p.n_row_blocks * p.n_panel_blocks, n_threads, multiply, &p);
}

/* What the caller has to allocate: (columns of a panel, numbers of scratch for a thread). */
__attribute__((visibility("default"))) void JOIN2(matmul_sizes, ISA)(int64_t *sizes) {
    sizes[0] = PANEL;
    sizes[1] = BLOCK_ROWS * DEPTH;
}
