/* The adjoint of cauchy.inc.h, with 1/d computed again.
 *
 * With H = conj(grad) the loss moves by Re(H d(out)), so by Re(H z / d) for alpha, Re(H / d) for beta, and by
 * E = -sum H (alpha z + beta) / d^2 for d = (z - p)^2 + q^2; for z by 2 sum_n (z - p_n) E_n + sum H alpha / d.
 * An item is a channel; its nodes go by in tiles, and what is summed over nodes is kept as vectors of partial sums
 * until the end. `weights` are H z of all numerators, then H; the second plane of 1/d is its conjugate's.
 */
#define CAUCHY_STATES 4 /* states in a tile of dot products; arrays over states are padded to that */

typedef struct {
    real *planes, *weights, *inverse, *numerators, *by_state, *products, *moments, *d_numerators, *along;
} LOCAL(cauchy_memory);

/* d_numerators[r][state] += weights[r] . inverse[state], over the lanes of partial sums */
static void LOCAL(cauchy_dots)(const LOCAL(cauchy_memory) *m, int64_t n_rows, int64_t n_padded) {
    const int64_t length = 2 * CAUCHY_TILE;
    for (int64_t r = 0; r < n_rows; r += 2)
        for (int64_t s = 0; s < n_padded; s += CAUCHY_STATES) {
            const real *rows = m->weights + r * length, *states = m->inverse + s * length;
            real *to = m->d_numerators + (r * n_padded + s) * REAL_LANES, *next = to + n_padded * REAL_LANES;
            vreal sums[2][CAUCHY_STATES];
            for (int i = 0; i < CAUCHY_STATES; i++) {
                sums[0][i] = v_load(to + i * REAL_LANES);
                sums[1][i] = v_load(next + i * REAL_LANES);
            }
            for (int64_t t = 0; t < length; t += REAL_LANES) {
                vreal first = v_load(rows + t), second = v_load(rows + length + t);
                for (int i = 0; i < CAUCHY_STATES; i++) {
                    vreal value = v_load(states + i * length + t);
                    sums[0][i] += first * value;
                    sums[1][i] += second * value;
                }
            }
            for (int i = 0; i < CAUCHY_STATES; i++) {
                v_store(to + i * REAL_LANES, sums[0][i]);
                v_store(next + i * REAL_LANES, sums[1][i]);
            }
        }
}

/* H z and H of every numerator, zero behind the last node */
static void LOCAL(cauchy_weights)(const LOCAL(cauchy_call) *call, const LOCAL(cauchy_memory) *m, int64_t channel,
                                  int64_t first, int64_t count) {
    const real *x = m->planes, *y = x + CAUCHY_TILE;
    for (int64_t j = 0; j < call->k; j++) {
        const real *grad = call->grad + ((channel * call->k + j) * call->nodes + first) * 2;
        real *with_z = m->weights + j * 2 * CAUCHY_TILE, *alone = m->weights + (call->k + j) * 2 * CAUCHY_TILE;
        if (count < CAUCHY_TILE) memset(alone, 0, sizeof(real) * (size_t)(2 * CAUCHY_TILE));
        LOCAL(cauchy_planes)(alone, grad, count);
        for (int64_t t = 0; t < CAUCHY_TILE; t += REAL_LANES) {
            vreal re = v_load(alone + t), im = -v_load(alone + CAUCHY_TILE + t), x_t = v_load(x + t), y_t = v_load(y + t);
            v_store(alone + CAUCHY_TILE + t, im);
            v_store(with_z + t, re * x_t - im * y_t);
            v_store(with_z + CAUCHY_TILE + t, re * y_t + im * x_t);
        }
    }
}

/* The second planes become -Im 1/d = 2 y (x - p) / |d|^2. */
static void LOCAL(cauchy_conjugate)(const LOCAL(cauchy_memory) *m, int64_t n) {
    for (int64_t t = 0; t < CAUCHY_TILE; t += REAL_LANES) {
        vreal twice = (real)2 * v_load(m->planes + CAUCHY_TILE + t);
        for (int64_t s = 0; s < n; s++) {
            real *plane = m->inverse + (2 * s + 1) * CAUCHY_TILE + t;
            v_store(plane, twice * v_load(plane));
        }
    }
}

/* moments: sums over the nodes of Re E and Re(E z); and, if asked for, `along`: sums over states of E and p E */
static void LOCAL(cauchy_moments)(const LOCAL(cauchy_memory) *m, const real *Lambda, int64_t n, int with_z) {
    for (int64_t s = 0; s < n; s++) {
        const real *inverse = m->inverse + s * 2 * CAUCHY_TILE, *numerator = m->products + s * 2 * CAUCHY_TILE;
        real *sums = m->moments + s * 2 * REAL_LANES;
        vreal total = v_load(sums), with_node = v_load(sums + REAL_LANES);
        for (int64_t t = 0; t < CAUCHY_TILE; t += REAL_LANES) {
            vreal re = v_load(inverse + t), im = v_load(inverse + CAUCHY_TILE + t); /* of conj(1/d) */
            vreal n_re = v_load(numerator + t), n_im = v_load(numerator + CAUCHY_TILE + t);
            vreal square_re = re * re - im * im, square_im = (real)2 * re * im;
            vreal E_re = -(n_re * square_re + n_im * square_im), E_im = n_re * square_im - n_im * square_re;
            total += E_re;
            with_node += E_re * v_load(m->planes + t) - E_im * v_load(m->planes + CAUCHY_TILE + t);
            if (with_z)
                for (int part = 0; part < 2; part++) {
                    real *to = m->along + part * CAUCHY_TILE + t;
                    vreal E = part ? E_im : E_re;
                    v_store(to, v_load(to) + E);
                    v_store(to + 2 * CAUCHY_TILE, v_load(to + 2 * CAUCHY_TILE) + Lambda[2 * s] * E);
                }
        }
        v_store(sums, total);
        v_store(sums + REAL_LANES, with_node);
    }
}

/* The gradient of a tile's nodes: conj(2 (z sum E - sum p E) + sum H alpha / d); this channel's part of it. */
static void LOCAL(cauchy_node_gradient)(const LOCAL(cauchy_call) *call, const LOCAL(cauchy_memory) *m, int64_t count,
                                        real *dz) {
    const int64_t row = 2 * CAUCHY_TILE;
    LOCAL(product_of) product = {m->numerators, m->inverse, call->n, row, call->n, m->products, row, row};
    LOCAL(product)(&product, call->k); /* sums of alpha conj(1/d) */
    for (int64_t t = 0; t < count; t++) {
        const real *along = m->along + t, *x = m->planes + t, *y = x + CAUCHY_TILE;
        real re = 2 * (along[0] * *x - along[CAUCHY_TILE] * *y - along[row]);
        real im = 2 * (along[0] * *y + along[CAUCHY_TILE] * *x - along[row + CAUCHY_TILE]);
        for (int64_t j = 0; j < call->k; j++) {
            const real *H = m->weights + (call->k + j) * row + t, *alpha = m->products + j * row + t;
            re += H[0] * alpha[0] + H[CAUCHY_TILE] * alpha[CAUCHY_TILE];
            im += H[CAUCHY_TILE] * alpha[0] - H[0] * alpha[CAUCHY_TILE];
        }
        dz[2 * t] = re;
        dz[2 * t + 1] = -im;
    }
}

/* From alpha = 2 Re v, beta = -2 (Re v p + Im v q) and d = (z - p)^2 + q^2. */
static void LOCAL(cauchy_finish)(const LOCAL(cauchy_call) *call, const LOCAL(cauchy_memory) *m, int64_t channel,
                                 int64_t n_padded) {
    int64_t n = call->n, k = call->k;
    for (int64_t s = 0; s < n; s++) {
        const real *Lambda = call->Lambda + (channel * n + s) * 2, *moments = m->moments + s * 2 * REAL_LANES;
        double p = Lambda[0], q = Lambda[1];
        double total = v_sum(v_load(moments)), with_node = v_sum(v_load(moments + REAL_LANES));
        double re = 2.0 * (p * total - with_node), im = 2.0 * q * total;
        for (int64_t j = 0; j < k; j++) {
            int64_t place = ((channel * k + j) * n + s) * 2;
            double d_alpha = v_sum(v_load(m->d_numerators + (j * n_padded + s) * REAL_LANES));
            double d_beta = v_sum(v_load(m->d_numerators + ((k + j) * n_padded + s) * REAL_LANES));
            call->dv[place] = (real)(2.0 * (d_alpha - p * d_beta));
            call->dv[place + 1] = (real)(-2.0 * q * d_beta);
            re -= 2.0 * call->v[place] * d_beta;
            im -= 2.0 * call->v[place + 1] * d_beta;
        }
        call->dLambda[(channel * n + s) * 2] = (real)re;
        call->dLambda[(channel * n + s) * 2 + 1] = (real)im;
    }
}

static void LOCAL(cauchy_adjoint)(void *context, int64_t channel, int64_t thread) {
    const LOCAL(cauchy_call) *call = context;
    int64_t n = call->n, k = call->k, row = 2 * CAUCHY_TILE;
    int64_t n_padded = (n + CAUCHY_STATES - 1) / CAUCHY_STATES * CAUCHY_STATES, larger = n > k ? n : k;
    LOCAL(cauchy_memory) m;
    m.planes = call->scratch + thread * call->scratch_size;
    m.along = m.planes + row;
    m.weights = m.along + 2 * row;
    m.inverse = m.weights + 2 * k * row;
    m.products = m.inverse + n_padded * row;
    m.moments = m.products + larger * row;
    m.d_numerators = m.moments + n * 2 * REAL_LANES;
    m.numerators = m.d_numerators + 2 * k * n_padded * REAL_LANES;
    m.by_state = m.numerators + 2 * k * n;
    LOCAL(cauchy_numerators)(call, channel, m.numerators, n, 1);
    LOCAL(cauchy_numerators)(call, channel, m.by_state, 1, 2 * k);
    memset(m.moments, 0, sizeof(real) * (size_t)((2 * n + 2 * k * n_padded) * REAL_LANES));
    memset(m.inverse + n * row, 0, sizeof(real) * (size_t)((n_padded - n) * row));
    const real *Lambda = call->Lambda + channel * n * 2;
    LOCAL(product_of) product = {m.by_state, m.weights, 2 * k, row, 2 * k, m.products, row, row};
    for (int64_t first = 0; first < call->nodes; first += CAUCHY_TILE) {
        int64_t count = LOCAL(cauchy_nodes)(call, channel, first, m.planes);
        LOCAL(cauchy_inverse)(Lambda, n, m.planes, m.inverse);
        LOCAL(cauchy_conjugate)(&m, n);
        LOCAL(cauchy_weights)(call, &m, channel, first, count);
        LOCAL(cauchy_dots)(&m, 2 * k, n_padded);
        LOCAL(product)(&product, n);
        if (call->dz != NULL) memset(m.along, 0, sizeof(real) * (size_t)(2 * row));
        LOCAL(cauchy_moments)(&m, Lambda, n, call->dz != NULL);
        if (call->dz != NULL) LOCAL(cauchy_node_gradient)(call, &m, count, call->dz + (channel * call->nodes + first) * 2);
    }
    LOCAL(cauchy_finish)(call, &m, channel, n_padded);
}

/* dz: (width, nodes, 2), every channel's own part, or NULL */
void EXPORT(cauchy_backward)(const real *grad, const real *v, const real *z, const real *Lambda, real *dv, real *dz,
                             real *dLambda, int64_t width, int64_t k, int64_t n, int64_t nodes, int64_t z_rows,
                             real *scratch, int64_t scratch_size, int64_t n_threads) {
    LOCAL(cauchy_call) call = {
        .v = v, .z = z, .Lambda = Lambda, .width = width, .k = k, .n = n, .nodes = nodes, .z_rows = z_rows,
        .scratch = scratch, .scratch_size = scratch_size, .grad = grad, .dv = dv, .dz = dz, .dLambda = dLambda};
    parallel_for(width, n_threads, LOCAL(cauchy_adjoint), &call);
}
