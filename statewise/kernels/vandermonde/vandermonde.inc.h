/* K_l = sum_n c_n A_n^l, twice its real part if complex.
 *
 * Two tables and a product, one channel at a time: with l = i q + j, A^l = (A^q)^i A^j, so that a channel's K as rows of
 * q steps is the matrix (c_n A_n^(q i)) times the matrix (A_n^j). Real and imaginary parts are terms of one real sum:
 * n_terms = n for real inputs and 2 n for complex ones. Both tables are computed in float64 and then rounded, so no error
 * grows with l. Items are channels; the scratch memory of a thread holds the tables of one channel.
 * c: (width, p, n, parts), A: (width, n, parts), K: (width, p, length); parts: 2 if complex, else 1.
 */
typedef struct {
    const real *c, *A;
    real *K;
    int64_t width, p, n, length, parts, q;
    double *scratch;
    int64_t scratch_size; /* float64 numbers for each thread; what a channel needs is carved from it in order */
    const real *grad;     /* the rest: of the backward pass only */
    real *dc, *dA;
} LOCAL(vandermonde_call);

/* The squares of a channel's A, from A itself; `stride` numbers a plane. Returns what is behind them. */
static double *LOCAL(vandermonde_squares)(const LOCAL(vandermonde_call) *call, int64_t channel, double *squares,
                                          int64_t n_levels, int64_t stride) {
    const real *A = call->A + channel * call->n * call->parts;
    for (int64_t k = 0; k < stride; k++) {
        int inside = k < call->n;
        squares[k] = inside ? (double)A[k * call->parts] : 0.0;
        squares[stride + k] = inside && call->parts == 2 ? (double)A[k * 2 + 1] : 0.0;
    }
    all_squares(squares, n_levels, stride, REAL_BITS == 64);
    return squares + 2 * n_levels * stride;
}

/* log2 of q, and how many levels of squares the powers below `length` need */
INLINE int64_t LOCAL(vandermonde_levels)(int64_t length, int64_t q, int64_t *n_levels) {
    int64_t log_q = 0;
    while ((int64_t)1 << log_q < q) log_q++;
    *n_levels = log_q + 1;
    while (*n_levels < 62 && (int64_t)1 << *n_levels < length) ++*n_levels;
    return log_q;
}

INLINE int64_t LOCAL(vandermonde_stride)(int64_t n) { return (n + LANES_F64 - 1) / LANES_F64 * LANES_F64; }

/* The table (n_terms, q) of A^j: real parts of every state, then the imaginary ones. */
static void LOCAL(vandermonde_table)(const LOCAL(vandermonde_call) *call, const double *squares, int64_t stride,
                                     double *powers, real *table) {
    int64_t n = call->n, q = call->q;
    double *re = powers, *im = powers + q;
    for (int64_t k = 0; k < n; k++) {
        powers_by_time(re, im, q, squares + k, stride);
        real *to_re = table + k * q, *to_im = table + (n + k) * q;
        for (int64_t j = 0; j < q; j++) to_re[j] = (real)re[j];
        if (call->parts == 2)
            for (int64_t j = 0; j < q; j++) to_im[j] = (real)im[j];
    }
}

/* The table (n_rows, n_terms) of c A^(q i), with the sign and the factor that give twice the real part. */
static void LOCAL(vandermonde_weights)(const LOCAL(vandermonde_call) *call, const real *c, const double *rows,
                                       int64_t n_rows, int64_t stride, real *weights) {
    int64_t n = call->n, parts = call->parts, n_terms = n * parts;
    for (int64_t i = 0; i < n_rows; i++) {
        const double *re = rows + 2 * i * stride, *im = re + stride;
        real *to = weights + i * n_terms;
        if (parts == 1)
            for (int64_t k = 0; k < n; k++) to[k] = (real)(c[k] * re[k]);
        else
            for (int64_t k = 0; k < n; k++) {
                double x = c[2 * k], y = c[2 * k + 1];
                to[k] = (real)(2.0 * (x * re[k] - y * im[k]));
                to[n + k] = (real)(-2.0 * (x * im[k] + y * re[k]));
            }
    }
}

static void LOCAL(vandermonde_channel)(void *context, int64_t channel, int64_t thread) {
    const LOCAL(vandermonde_call) *call = context;
    int64_t n = call->n, q = call->q, length = call->length, stride = LOCAL(vandermonde_stride)(n), n_levels;
    int64_t log_q = LOCAL(vandermonde_levels)(length, q, &n_levels), n_terms = n * call->parts;
    int64_t n_rows = (length + q - 1) / q, n_whole = length / q;
    double *squares = call->scratch + thread * call->scratch_size;
    double *rows = LOCAL(vandermonde_squares)(call, channel, squares, n_levels, stride);
    double *powers = rows + 2 * n_rows * stride;
    real *table = (real *)(powers + 2 * q), *weights = table + n_terms * q;
    powers_by_state(rows, n_rows, squares + 2 * log_q * stride, stride);
    LOCAL(vandermonde_table)(call, squares, stride, powers, table);
    for (int64_t output = channel * call->p; output < (channel + 1) * call->p; output++) {
        LOCAL(vandermonde_weights)(call, call->c + output * n * call->parts, rows, n_rows, stride, weights);
        LOCAL(product_of) product = {weights, table, n_terms, q, n_terms, call->K + output * length, q, q};
        LOCAL(product)(&product, n_whole);
        if (n_whole < n_rows) {
            product.left += n_whole * n_terms;
            product.out += n_whole * q;
            product.n_columns = length - n_whole * q;
            LOCAL(product)(&product, 1);
        }
    }
}

void EXPORT(vandermonde_forward)(const real *c, const real *A, real *K, int64_t width, int64_t p, int64_t n,
                                 int64_t length, int64_t parts, int64_t q, double *scratch, int64_t scratch_size,
                                 int64_t n_threads) {
    LOCAL(vandermonde_call) call = {
        .c = c, .A = A, .K = K, .width = width, .p = p, .n = n, .length = length, .parts = parts, .q = q,
        .scratch = scratch, .scratch_size = scratch_size};
    parallel_for(width, n_threads, LOCAL(vandermonde_channel), &call);
}
