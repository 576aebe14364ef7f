/* sum_n v_n / (z - L_n) + conj(v_n) / (z - conj(L_n)) for k numerators, in real arithmetic.
 *
 * A pair is one fraction, (alpha z + beta) / d with real alpha = 2 Re v and beta = -2 Re(v conj(L)), and
 * d = (z - L)(z - conj(L)). So all numerators share 1/d, and the sums over n are real products. With L = p + i q and
 * z = x + i y, Re d = (x - p)^2 - (y - q)(y + q) and Im d = 2 (x - p) y: differences first, then products, so that
 * nothing cancels near a pole.
 * A channel's nodes go by in tiles that stay in the cache: (n, tile) planes of 1/d, then the products. Items are
 * channels times spans of CAUCHY_SPAN nodes.
 * v: (width, k, n, 2), z: (1 or width, nodes, 2), Lambda: (width, n, 2), out: (width, k, nodes, 2)
 */
#define CAUCHY_SPAN 2048
#undef CAUCHY_TILE
#define CAUCHY_TILE (4 * REAL_LANES)

typedef struct {
    const real *v, *z, *Lambda;
    real *out;
    int64_t width, k, n, nodes, z_rows, n_spans;
    real *scratch;
    int64_t scratch_size; /* numbers for each thread */
    const real *grad;     /* the rest: of the backward pass only */
    real *dv, *dz, *dLambda;
} LOCAL(cauchy_call);

/* alpha of all k, then beta: numerators[r * stride_r + state * stride_n] */
static void LOCAL(cauchy_numerators)(const LOCAL(cauchy_call) *call, int64_t channel, real *numerators,
                                     int64_t stride_r, int64_t stride_n) {
    int64_t k = call->k, n = call->n;
    const real *v = call->v + channel * k * n * 2, *Lambda = call->Lambda + channel * n * 2;
    for (int64_t j = 0; j < k; j++)
        for (int64_t s = 0; s < n; s++) {
            double re = v[(j * n + s) * 2], im = v[(j * n + s) * 2 + 1];
            numerators[j * stride_r + s * stride_n] = (real)(2.0 * re);
            numerators[(k + j) * stride_r + s * stride_n] =
                (real)(-2.0 * (re * Lambda[2 * s] + im * Lambda[2 * s + 1]));
        }
}

/* Complex numbers to a plane of real and one of imaginary parts, and back */
INLINE void LOCAL(cauchy_planes)(real *restrict planes, const real *restrict from, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        planes[t] = from[2 * t];
        planes[CAUCHY_TILE + t] = from[2 * t + 1];
    }
}
INLINE void LOCAL(cauchy_numbers)(real *restrict to, const real *restrict planes, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        to[2 * t] = planes[t];
        to[2 * t + 1] = planes[CAUCHY_TILE + t];
    }
}

/* x and y of a tile's nodes, a plane each; behind the last node of all it stands again. Returns how many there are. */
static int64_t LOCAL(cauchy_nodes)(const LOCAL(cauchy_call) *call, int64_t channel, int64_t first, real *planes) {
    int64_t count = call->nodes - first < CAUCHY_TILE ? call->nodes - first : CAUCHY_TILE;
    const real *z = call->z + ((call->z_rows > 1 ? channel * call->nodes : 0) + first) * 2;
    LOCAL(cauchy_planes)(planes, z, count);
    for (int64_t t = count; t < CAUCHY_TILE; t++) {
        planes[t] = planes[count - 1];
        planes[CAUCHY_TILE + t] = planes[CAUCHY_TILE + count - 1];
    }
    return count;
}

/* For every state Re 1/d and (x - p) / |d|^2, which is Im 1/d over -2 y; a plane of a tile each. */
static void LOCAL(cauchy_inverse)(const real *Lambda, int64_t n, const real *planes, real *inverse) {
    for (int64_t s = 0; s < n; s++, inverse += 2 * CAUCHY_TILE) {
        real p = Lambda[2 * s], q = Lambda[2 * s + 1];
        for (int64_t t = 0; t < CAUCHY_TILE; t += REAL_LANES) {
            vreal y = v_load(planes + CAUCHY_TILE + t), difference = v_load(planes + t) - p;
            vreal squared = difference * difference;
            vreal re = squared - (y - q) * (y + q);
            vreal size = (real)1 / (squared * ((real)4 * y * y) + re * re);
            v_store(inverse + t, re * size);
            v_store(inverse + CAUCHY_TILE + t, difference * size);
        }
    }
}

/* out = alpha-sums z + beta-sums, both with their imaginary planes still to be multiplied by -2 y */
static void LOCAL(cauchy_join)(const LOCAL(cauchy_call) *call, const real *sums, const real *planes, int64_t first,
                               int64_t count, real *joined, int64_t channel) {
    for (int64_t j = 0; j < call->k; j++) {
        const real *alpha = sums + j * 2 * CAUCHY_TILE, *beta = sums + (call->k + j) * 2 * CAUCHY_TILE;
        real *to = call->out + ((channel * call->k + j) * call->nodes + first) * 2;
        for (int64_t t = 0; t < CAUCHY_TILE; t += REAL_LANES) {
            vreal x = v_load(planes + t), y = v_load(planes + CAUCHY_TILE + t), scale = (real)-2 * y;
            vreal a_re = v_load(alpha + t), a_im = scale * v_load(alpha + CAUCHY_TILE + t);
            v_store(joined + t, a_re * x - a_im * y + v_load(beta + t));
            v_store(joined + CAUCHY_TILE + t, a_re * y + a_im * x + scale * v_load(beta + CAUCHY_TILE + t));
        }
        LOCAL(cauchy_numbers)(to, joined, count);
    }
}

static void LOCAL(cauchy_span)(void *context, int64_t item, int64_t thread) {
    const LOCAL(cauchy_call) *call = context;
    int64_t channel = item / call->n_spans, begin = item % call->n_spans * CAUCHY_SPAN, n = call->n, k = call->k;
    int64_t end = call->nodes - begin < CAUCHY_SPAN ? call->nodes : begin + CAUCHY_SPAN;
    real *planes = call->scratch + thread * call->scratch_size, *joined = planes + 2 * CAUCHY_TILE;
    real *inverse = joined + 2 * CAUCHY_TILE, *sums = inverse + n * 2 * CAUCHY_TILE;
    real *numerators = sums + 2 * k * 2 * CAUCHY_TILE;
    LOCAL(cauchy_numerators)(call, channel, numerators, n, 1);
    LOCAL(product_of) product = {numerators, inverse, n, 2 * CAUCHY_TILE, n, sums, 2 * CAUCHY_TILE, 2 * CAUCHY_TILE};
    for (int64_t first = begin; first < end; first += CAUCHY_TILE) {
        int64_t count = LOCAL(cauchy_nodes)(call, channel, first, planes);
        LOCAL(cauchy_inverse)(call->Lambda + channel * n * 2, n, planes, inverse);
        LOCAL(product)(&product, 2 * k);
        LOCAL(cauchy_join)(call, sums, planes, first, count, joined, channel);
    }
}

void EXPORT(cauchy_forward)(const real *v, const real *z, const real *Lambda, real *out, int64_t width, int64_t k,
                            int64_t n, int64_t nodes, int64_t z_rows, real *scratch, int64_t scratch_size,
                            int64_t n_threads) {
    LOCAL(cauchy_call) call = {
        .v = v, .z = z, .Lambda = Lambda, .out = out, .width = width, .k = k, .n = n, .nodes = nodes,
        .z_rows = z_rows, .n_spans = (nodes + CAUCHY_SPAN - 1) / CAUCHY_SPAN, .scratch = scratch,
        .scratch_size = scratch_size};
    parallel_for(width * call.n_spans, n_threads, LOCAL(cauchy_span), &call);
}
