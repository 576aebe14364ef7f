/* The adjoint of vandermonde.inc.h: dc_n = sum_l g_l A_n^l and dA_n = c_n sum_l g_l l A_n^(l-1), conjugated and doubled
 * if complex.
 *
 * The derivative of A^(q i + j) is (q i) A^(q i - 1) A^j + A^(q i) j A^(j - 1): nothing is divided by A. So rows of q
 * gradients are multiplied with the tables (A^j) and (j A^(j-1)), in the lanes all states after each other, and what
 * comes out is added up over the rows in float64, with the weights A^(q i) and (q i) A^(q i - 1).
 */
/* (q, columns): value re, value im, slope re, slope im of every state; without the im where all is real */
static void LOCAL(vandermonde_slopes)(const LOCAL(vandermonde_call) *call, const double *powers, int64_t stride,
                                      real *table, int64_t columns) {
    int64_t n = call->n, parts = call->parts;
    for (int64_t j = 0; j < call->q; j++) {
        const double *value = powers + 2 * j * stride, *before = value - 2 * stride;
        real *to = table + j * columns;
        for (int64_t part = 0; part < parts; part++) {
            for (int64_t k = 0; k < n; k++) to[part * n + k] = (real)value[part * stride + k];
            real *slope = to + (parts + part) * n;
            if (j == 0 && n > 0) memset(slope, 0, sizeof(real) * (size_t)n);
            else
                for (int64_t k = 0; k < n; k++) slope[k] = (real)((double)j * before[part * stride + k]);
        }
        for (int64_t k = 2 * parts * n; k < columns; k++) to[k] = 0;
    }
}

/* What a row of gradients gives to the sums: dc re, dc im, and the same for dA without its factor c, a plane each */
INLINE void LOCAL(vandermonde_collect)(const real *inner, int64_t n, int64_t parts, const double *row, double factor,
                                       const double *before, const double *last, int64_t stride, double *restrict sums) {
    const double *re = row, *im = row + stride;
    for (int64_t k = 0; k < n; k++) {
        double value_re = inner[k], value_im = parts == 2 ? (double)inner[n + k] : 0.0;
        double slope_re = inner[parts * n + k], slope_im = parts == 2 ? (double)inner[3 * n + k] : 0.0;
        double d_re = 0.0, d_im = 0.0; /* (q i) A^(q i - 1) */
        if (factor > 0) {
            d_re = factor * (before[k] * last[k] - before[stride + k] * last[stride + k]);
            d_im = factor * (before[k] * last[stride + k] + before[stride + k] * last[k]);
        }
        sums[k] += value_re * re[k] - value_im * im[k];
        sums[stride + k] += value_re * im[k] + value_im * re[k];
        sums[2 * stride + k] += value_re * d_re - value_im * d_im + (slope_re * re[k] - slope_im * im[k]);
        sums[3 * stride + k] += value_re * d_im + value_im * d_re + (slope_re * im[k] + slope_im * re[k]);
    }
}

/* dc of one output, and what it adds to dA (two planes) */
static void LOCAL(vandermonde_finish)(const LOCAL(vandermonde_call) *call, int64_t output, const double *sums,
                                      int64_t stride, double *slopes) {
    int64_t n = call->n, parts = call->parts;
    const real *c = call->c + output * n * parts;
    real *dc = call->dc + output * n * parts;
    for (int64_t k = 0; k < n; k++) {
        double re = sums[2 * stride + k], im = sums[3 * stride + k];
        if (parts == 1) {
            dc[k] = (real)sums[k];
            slopes[k] += c[k] * re;
        } else {
            double x = c[2 * k], y = c[2 * k + 1];
            dc[2 * k] = (real)(2.0 * sums[k]);
            dc[2 * k + 1] = (real)(-2.0 * sums[stride + k]);
            slopes[k] += 2.0 * (x * re - y * im);
            slopes[stride + k] -= 2.0 * (x * im + y * re);
        }
    }
}

static void LOCAL(vandermonde_adjoint)(void *context, int64_t channel, int64_t thread) {
    const LOCAL(vandermonde_call) *call = context;
    int64_t n = call->n, q = call->q, length = call->length, parts = call->parts, stride = LOCAL(vandermonde_stride)(n);
    int64_t n_levels, log_q = LOCAL(vandermonde_levels)(length, q, &n_levels);
    int64_t n_rows = (length + q - 1) / q, n_whole = length / q;
    int64_t columns = (2 * parts * n + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS * PRODUCT_COLUMNS;
    double *squares = call->scratch + thread * call->scratch_size;
    double *powers = LOCAL(vandermonde_squares)(call, channel, squares, n_levels, stride);
    double *rows = powers + 2 * q * stride, *sums = rows + 2 * n_rows * stride, *slopes = sums + 4 * stride;
    real *inner = (real *)(slopes + 2 * stride), *table = inner + PRODUCT_ROWS * columns;
    powers_by_state(powers, q, squares, stride);
    powers_by_state(rows, n_rows, squares + 2 * log_q * stride, stride);
    LOCAL(vandermonde_slopes)(call, powers, stride, table, columns);
    const double *last = powers + 2 * (q - 1) * stride;
    memset(slopes, 0, sizeof(double) * (size_t)(2 * stride));
    for (int64_t output = channel * call->p; output < (channel + 1) * call->p; output++) {
        memset(sums, 0, sizeof(double) * (size_t)(4 * stride));
        for (int64_t row = 0; row < n_rows; row += PRODUCT_ROWS) {
            int64_t whole = n_whole - row < PRODUCT_ROWS ? n_whole - row : PRODUCT_ROWS;
            int64_t here = n_rows - row < PRODUCT_ROWS ? n_rows - row : PRODUCT_ROWS;
            LOCAL(product_of) product = {call->grad + output * length + row * q, table, q, columns, q,
                                         inner, columns, columns};
            LOCAL(product)(&product, whole);
            if (whole < here) { /* the last row, where the sequence ends in it */
                product.left += whole * q;
                product.out += whole * columns;
                product.depth = length - n_whole * q;
                LOCAL(product)(&product, 1);
            }
            for (int64_t i = row; i < row + here; i++) {
                const double *at = rows + 2 * i * stride;
                LOCAL(vandermonde_collect)(inner + (i - row) * columns, n, parts, at, (double)(i * q), at - 2 * stride,
                                           last, stride, sums);
            }
        }
        LOCAL(vandermonde_finish)(call, output, sums, stride, slopes);
    }
    real *dA = call->dA + channel * n * parts;
    for (int64_t k = 0; k < n; k++)
        for (int64_t part = 0; part < parts; part++) dA[k * parts + part] = (real)slopes[part * stride + k];
}

void EXPORT(vandermonde_backward)(const real *grad, const real *c, const real *A, real *dc, real *dA, int64_t width,
                                  int64_t p, int64_t n, int64_t length, int64_t parts, int64_t q, double *scratch,
                                  int64_t scratch_size, int64_t n_threads) {
    LOCAL(vandermonde_call) call = {
        .c = c, .A = A, .width = width, .p = p, .n = n, .length = length, .parts = parts, .q = q, .scratch = scratch,
        .scratch_size = scratch_size, .grad = grad, .dc = dc, .dA = dA};
    parallel_for(width, n_threads, LOCAL(vandermonde_adjoint), &call);
}
