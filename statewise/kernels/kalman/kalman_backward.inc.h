/* The adjoint, backwards over the steps, of what the filter gave. It carries the gradients of the mean m and of the
 * covariance P = L L^T before each step; that of P is symmetric, and nothing is divided but by the innovation's factor.
 *
 * With Sigma = G P G^T + W, W = N N^T, S = Sigma_yy = F F^T, K = Sigma_xy S^-1, w = S^-1 e and a step's gradients m~ and
 * P~ of its mean and covariance, e~ of its innovation and d of its density, and g = K^T m~:
 *   of e:         e~ + g - d w
 *   of Sigma_yy:  K^T P~ K - (g w^T + w g^T) / 2 + d (w w^T - S^-1) / 2
 *   of Sigma_xy:  m~ w^T / 2 - P~ K, in each of its two places;   of Sigma_xx:  P~
 * Call all of the latter Z, and u = (-(of e), m~). Then offset gets u, G gets u m^T + 2 Z G P, W gets Z, m gets G^T u and
 * P gets G^T Z G. A number that is missing has zeros in K, Z and u. */
#undef KALMAN_ADJOINT_NUMBERS
#define KALMAN_ADJOINT_NUMBERS(n, p)                                                                         \
    (((n) + (p)) * (4 * ((n) + (p)) + 5 * (n) + 3) + 6 * (n) * (n) + 6 * (n) + (p) * (3 * (p) + 4 * (n) + 8))

/* of the state before step t: mean and factor */
INLINE void LANED(kalman_before)(const LOCAL(kalman) *call, int64_t t, num begins, const int64_t n, num *mean,
                                 num *L, num *fresh, const LANED(rows) *of) {
    const int64_t length = call->length;
    if (t == 0) {
        LANED(load_all)(mean, call->mean.at, call->mean.row, n, of);
        LANED(load_all)(L, call->factor.at, call->factor.row, n * n, of);
    } else {
        LANED(load_all)(mean, call->means + (t - 1) * n, length * n, n, of);
        LANED(load_all)(L, call->factors + (t - 1) * n * n, call->shared ? 0 : length * n * n, n * n, of);
    }
    if (call->starts) {
        LANED(load_all)(fresh, call->prior_mean.at, call->prior_mean.row, n, of);
        for (int64_t i = 0; i < n; i++) mean[i] = LANED(choose)(begins != 0, fresh[i], mean[i]);
        LANED(load_all)(fresh, call->prior_factor.at, call->prior_factor.row, n * n, of);
        for (int64_t i = 0; i < n * n; i++) L[i] = LANED(choose)(begins != 0, fresh[i], L[i]);
    }
}

/* added to what `sum` holds of all steps; or where each step has its own, written */
INLINE void LANED(kalman_give)(num *sum, real *to, int64_t step, int64_t t, int64_t length, const num *found,
                               const int64_t count, const LANED(rows) *of) {
    if (step) LANED(store_all)(to + t * count, length * count, found, count, of);
    else
        for (int64_t i = 0; i < count; i++) sum[i] += found[i];
}

INLINE void LANED(kalman_adjoint_steps)(const LOCAL(kalman_adjoint) *call, int64_t item, const int64_t n,
                                        const int64_t p, num *work) {
    const LOCAL(kalman) *is = &call->of;
    const int64_t k = n + p, length = is->length;
    const LANED(rows) of = LANED(rows_of)(item, is->rows);
    const num zero = LANED(same)(0);
    num *G = work, *W = G + k * n, *sum_G = W + k * k, *sum_W = sum_G + k * n, *sum_u = sum_W + k * k;
    num *m_bar = sum_u + k, *P_bar = m_bar + n, *first_m = P_bar + n * n, *first_P = first_m + n;
    num *mean = first_P + n * n, *L = mean + n, *P = L + n * n, *GP = P + n * n, *F = GP + k * n, *S = F + p * p;
    num *e = S + p * p, *w = e + p, *g = w + p, *K = g + p, *cross = K + n * p, *PK = cross + n * p, *Z = PK + n * p;
    num *u = Z + k * k, *d_G = u + k, *ZG = d_G + k * n, *new_m = ZG + k * n, *new_P = new_m + n, *seen = new_P + n * n;
    for (num *at = sum_G; at < mean; at++) *at = zero;
    for (int64_t t = length - 1; t >= 0; t--) {
        if (t == length - 1 || is->G.step)
            LANED(load_all)(G, is->G.at + t * is->G.step, is->G.row, k * n, &of);
        if (t == length - 1 || call->W.step)
            LANED(load_all)(W, call->W.at + t * call->W.step, call->W.row, k * k, &of);
        num begins = zero, here = zero, d = zero;
        if (is->starts) LANED(load_flags)(&begins, is->starts + t, length, 1, &of);
        if (is->lengths) LANED(load_real)(&here, is->lengths, t, &of);
        LANED(kalman_before)(is, t, begins, n, mean, L, P, &of);
        LANED(load_all)(F, is->innovation_factors + t * p * p, is->shared ? 0 : length * p * p, p * p, &of);
        LANED(load_all)(e, is->innovations + t * p, length * p, p, &of);
        if (is->observed) LANED(load_flags)(seen, is->observed + t * p, length * p, p, &of);
        else
            for (int64_t i = 0; i < p; i++) seen[i] = LANED(same)(1);
        if (call->grad_means) {
            LANED(load_all)(u, call->grad_means + t * n, length * n, n, &of);
            for (int64_t i = 0; i < n; i++) m_bar[i] += u[i];
        }
        if (call->grad_densities) LANED(load_all)(&d, call->grad_densities + t, length, 1, &of);
        if (call->grad_innovations) LANED(load_all)(u, call->grad_innovations + t * p, length * p, p, &of);
        else
            for (int64_t i = 0; i < p; i++) u[i] = zero;

        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++) {
                num sum = zero;
                for (int64_t c = 0; c <= j; c++) sum += L[i * n + c] * L[j * n + c];
                P[i * n + j] = P[j * n + i] = sum;
            }
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < n; j++) {
                num sum = zero;
                for (int64_t c = 0; c < n; c++) sum += G[i * n + c] * P[c * n + j];
                GP[i * n + j] = sum;
            }
        /* F^-1 in the place of F, S^-1, w and K */
        for (int64_t i = 0; i < p; i++) {
            num inverse = 1 / F[i * p + i];
            for (int64_t j = 0; j < i; j++) {
                num sum = zero;
                for (int64_t c = j; c < i; c++) sum += F[i * p + c] * F[c * p + j];
                w[j] = -sum * inverse;
            }
            for (int64_t j = 0; j < i; j++) F[i * p + j] = w[j];
            F[i * p + i] = inverse;
        }
        for (int64_t i = 0; i < p; i++)
            for (int64_t j = 0; j <= i; j++) {
                num sum = zero;
                for (int64_t c = i; c < p; c++) sum += F[c * p + i] * F[c * p + j];
                S[i * p + j] = S[j * p + i] = sum;
            }
        for (int64_t i = 0; i < p; i++) {
            w[i] = zero;
            for (int64_t j = 0; j < p; j++) w[i] += S[i * p + j] * e[j];
        }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < p; j++) {
                num sum = W[(p + i) * k + j];
                for (int64_t c = 0; c < n; c++) sum += GP[(p + i) * n + c] * G[j * n + c];
                cross[i * p + j] = LANED(choose)(seen[j] != 0, sum, zero);
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < p; j++) {
                num sum = zero;
                for (int64_t c = 0; c < p; c++) sum += cross[i * p + c] * S[c * p + j];
                K[i * p + j] = sum;
            }
        for (int64_t i = 0; i < p; i++) {
            g[i] = zero;
            for (int64_t j = 0; j < n; j++) g[i] += K[j * p + i] * m_bar[j];
            u[i] = -LANED(choose)(seen[i] != 0, u[i] + g[i] - d * w[i], zero);
        }
        for (int64_t i = 0; i < n; i++) u[p + i] = m_bar[i];
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < p; j++) {
                num sum = zero;
                for (int64_t c = 0; c < n; c++) sum += P_bar[i * n + c] * K[c * p + j];
                PK[i * p + j] = sum;
                num both = m_bar[i] * w[j] * (real)0.5 - sum;
                Z[(p + i) * k + j] = Z[j * k + p + i] = LANED(choose)(seen[j] != 0, both, zero);
            }
        for (int64_t i = 0; i < p; i++)
            for (int64_t j = 0; j <= i; j++) {
                num sum = (d * (w[i] * w[j] - S[i * p + j]) - g[i] * w[j] - w[i] * g[j]) * (real)0.5;
                for (int64_t c = 0; c < n; c++) sum += K[c * p + i] * PK[c * p + j];
                Z[i * k + j] = Z[j * k + i] = LANED(choose)((seen[i] != 0) & (seen[j] != 0), sum, zero);
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) Z[(p + i) * k + p + j] = P_bar[i * n + j];
        if (is->lengths) { /* padding gives nothing */
            for (int64_t i = 0; i < k; i++) u[i] = LANED(choose)(here != 0, u[i], zero);
            for (int64_t i = 0; i < k * k; i++) Z[i] = LANED(choose)(here != 0, Z[i], zero);
        }
        for (int64_t i = 0; i < p; i++) e[i] = -u[i];
        LANED(store_all)(call->to_y + t * p, length * p, e, p, &of);
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < n; j++) {
                num moved = zero, sum = zero;
                for (int64_t c = 0; c < k; c++) {
                    moved += Z[i * k + c] * GP[c * n + j];
                    sum += Z[i * k + c] * G[c * n + j];
                }
                d_G[i * n + j] = u[i] * mean[j] + 2 * moved;
                ZG[i * n + j] = sum;
            }
        LANED(kalman_give)(sum_G, call->to_G, is->G.step, t, length, d_G, k * n, &of);
        LANED(kalman_give)(sum_W, call->to_W, call->W.step, t, length, Z, k * k, &of);
        LANED(kalman_give)(sum_u, call->to_offset, is->offset.step, t, length, u, k, &of);
        for (int64_t i = 0; i < n; i++) {
            num sum = zero;
            for (int64_t c = 0; c < k; c++) sum += G[c * n + i] * u[c];
            new_m[i] = sum;
            for (int64_t j = 0; j <= i; j++) {
                sum = zero;
                for (int64_t c = 0; c < k; c++) sum += G[c * n + i] * ZG[c * n + j];
                new_P[i * n + j] = new_P[j * n + i] = sum;
            }
        }
        for (int64_t i = 0; i < n + n * n; i++) { /* the mean's and the covariance's lie behind one another */
            num found = is->lengths ? LANED(choose)(here != 0, new_m[i], m_bar[i]) : new_m[i];
            if (is->starts) {
                first_m[i] += LANED(choose)(begins != 0, found, zero);
                found = LANED(choose)(begins != 0, zero, found);
            }
            m_bar[i] = found;
        }
    }
    if (!is->G.step) LANED(store_all)(call->to_G, k * n, sum_G, k * n, &of);
    if (!call->W.step) LANED(store_all)(call->to_W, k * k, sum_W, k * k, &of);
    if (!is->offset.step) LANED(store_all)(call->to_offset, k, sum_u, k, &of);
    LANED(store_all)(call->to_mean, n, m_bar, n, &of);
    LANED(store_all)(call->to_P, n * n, P_bar, n * n, &of);
    if (is->starts) {
        LANED(store_all)(call->to_prior_mean, n, first_m, n, &of);
        LANED(store_all)(call->to_prior_P, n * n, first_P, n * n, &of);
    }
}

#undef KALMAN_SIZED
#define KALMAN_SIZED(n, p)                                                                                      \
    __attribute__((noinline)) static void LANED(kalman_adjoint_##n##_##p)(const LOCAL(kalman_adjoint) *call,     \
                                                                           int64_t item) {                      \
        num work[KALMAN_ADJOINT_NUMBERS(n, p)];                                                                 \
        LANED(kalman_adjoint_steps)(call, item, n, p, work);                                                    \
    }
KALMAN_SIZED(1, 1)
KALMAN_SIZED(2, 1)
KALMAN_SIZED(4, 1)
KALMAN_SIZED(4, 2)

static void LANED(kalman_adjoint_item)(void *context, int64_t item, int64_t thread) {
    const LOCAL(kalman_adjoint) *call = context;
    const int64_t n = call->of.n, p = call->of.p;
    switch (p < 16 ? n * 16 + p : 0) {
        case 1 * 16 + 1: LANED(kalman_adjoint_1_1)(call, item); return;
        case 2 * 16 + 1: LANED(kalman_adjoint_2_1)(call, item); return;
        case 4 * 16 + 1: LANED(kalman_adjoint_4_1)(call, item); return;
        case 4 * 16 + 2: LANED(kalman_adjoint_4_2)(call, item); return;
    }
    LANED(kalman_adjoint_steps)(call, item, n, p, (num *)(void *)(call->of.scratch + thread * call->of.numbers));
}
