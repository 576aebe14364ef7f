/* y = x W^T (+ bias) in float32 for a few rows of x: each row of W is read once, and multiplied with all of them.
 *
 * x (m, k), W (n, k), y (m, n), rows contiguous; m <= FEW. The time is that of reading W from memory, which the packing of
 * matmul.c would double. A sum is over LANES partial sums in a fixed order, whatever the number of threads.
 */
#include "parallel.h"
#include "vector.h"

#define FEW 8
#define PIECE 64 /* rows of W in a piece of work */

typedef struct {
    const float *x, *w, *bias;
    float *y;
    int64_t m, n, k;
} product;

/* ROWS rows of W with M rows of x, both known when compiled */
#define DEFINE_DOTS(M, ROWS)                                                                                  \
    static void dots_##M##_##ROWS(const product *p, int64_t j, int64_t i) {                                    \
        vf32 sums[ROWS][M];                                                                                    \
        memset(sums, 0, sizeof sums);                                                                          \
        int64_t whole = p->k - p->k % LANES;                                                                   \
        for (int64_t k = 0; k < whole; k += LANES)                                                             \
            _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                           \
                vf32 w = load_f32(p->w + (j + r) * p->k + k);                                                  \
                _Pragma("GCC unroll 4") for (int q = 0; q < M; q++) sums[r][q] += w * load_f32(p->x + (i + q) * p->k + k); \
            }                                                                                                  \
        for (int r = 0; r < ROWS; r++)                                                                         \
            for (int q = 0; q < M; q++) {                                                                      \
                float total = sum_f32(sums[r][q]);                                                             \
                for (int64_t k = whole; k < p->k; k++) total += p->w[(j + r) * p->k + k] * p->x[(i + q) * p->k + k]; \
                p->y[(i + q) * p->n + j + r] = total + (p->bias ? p->bias[j + r] : 0.0f);                      \
            }                                                                                                  \
    }
DEFINE_DOTS(1, 4)
DEFINE_DOTS(1, 1)
DEFINE_DOTS(4, 4)
DEFINE_DOTS(4, 1)

static void piece(void *context, int64_t item, int64_t thread) {
    const product *p = context;
    (void)thread;
    int64_t end = (item + 1) * PIECE < p->n ? (item + 1) * PIECE : p->n;
    for (int64_t i = 0; i < p->m;) {
        int four = p->m - i >= 4;
        int64_t j = item * PIECE;
        for (; j + 4 <= end; j += 4) four ? dots_4_4(p, j, i) : dots_1_4(p, j, i);
        for (; j < end; j++) four ? dots_4_1(p, j, i) : dots_1_1(p, j, i);
        i += four ? 4 : 1;
    }
}

__attribute__((visibility("default"))) void JOIN2(matmul_few_f32, ISA)(const float *x, const float *w, const float *bias, float *y,
                                                                       int64_t m, int64_t n, int64_t k, int64_t n_threads) {
    product p = {x, w, bias, y, m, n, k};
    parallel_for((n + PIECE - 1) / PIECE, n_threads, piece, &p);
}
