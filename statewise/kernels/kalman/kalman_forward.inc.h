/* Steps of the filter, of one row or in the lanes of a vector (kalman_lanes.inc.h). n, p and `missing` are constants
 * in the sizes that KALMAN_SIZES lists, and the compiler unrolls them. */

/* M = [G L, N], k x (n + k), made lower triangular in its first k columns, with a diagonal that is not negative.
 *
 * N is a triangle, so row i ends at column n + i: one reflection of the columns i ... i + n clears it. The large numbers
 * of a vague state stand in the first columns, and so are pivots: with the small ones of the noise in their place, what
 * is small in the rows below would be the difference of large numbers. With (a, x) a row, b its norm, a and x divided
 * by b and the pivot's column turned so that a is not negative, (c, z) of a row below becomes (c', z - x f) with
 * c' = a c + x z and f = (c + c') / (1 + a): Householder's reflection onto -b, and the sign of the column turned.
 *
 * A number that is missing has a row of zeros, and a noise of variance 1 for itself; what the rows below have in its
 * column goes to a column of E, which the later reflections clear as well. */
INLINE void LANED(kalman_triangle)(num *M, num *E, const num *seen, const int64_t n, const int64_t p,
                                   const int missing) {
    const int64_t k = n + p, wide = n + k;
    for (int64_t i = 0; i < k; i++) {
        num *x = M + i * wide + i, *y = E + i * p;
        const int64_t extra = missing ? (i < p ? i : p) : 0;
        const num zero = LANED(same)(0), one = LANED(same)(1);
        if (missing && i < p) {
            x[0] = LANED(choose)(seen[i] != 0, x[0], one);
            for (int64_t j = i + 1; j < k; j++) {
                num *below = M + j * wide + i;
                E[j * p + i] = LANED(choose)(seen[i] != 0, zero, *below);
                *below = LANED(choose)(seen[i] != 0, *below, zero);
            }
        }
        num a = x[0], square = a * a;
        for (int64_t c = 1; c <= n; c++) square += x[c] * x[c];
        for (int64_t c = 0; c < extra; c++) square += y[c] * y[c];
        num b = LANED(root)(square), sign = LANED(choose)(a < 0, -one, one);
        num inverse = 1 / LANED(choose)(square == 0, one, b);
        a = LANED(choose)(square == 0, one, a * sign * inverse);
        num turn = 1 / (1 + a);
        x[0] = b;
        for (int64_t c = 1; c <= n; c++) x[c] *= inverse;
        for (int64_t c = 0; c < extra; c++) y[c] *= inverse;
        for (int64_t j = i + 1; j < k; j++) {
            num *z = M + j * wide + i, *v = E + j * p, old = z[0] * sign, new = a * old;
            for (int64_t c = 1; c <= n; c++) new += x[c] * z[c];
            for (int64_t c = 0; c < extra; c++) new += y[c] * v[c];
            num f = (old + new) * turn;
            z[0] = new;
            for (int64_t c = 1; c <= n; c++) z[c] -= x[c] * f;
            for (int64_t c = 0; c < extra; c++) v[c] -= y[c] * f;
        }
    }
}

INLINE void LANED(kalman_update)(num *M, num *E, const num *N, const num *G, const num *L, const num *seen,
                                 const int64_t n, const int64_t p, const int missing) {
    const int64_t k = n + p, wide = n + k;
    for (int64_t j = 0; j < k; j++) {
        for (int64_t c = 0; c < n; c++) {
            num sum = G[j * n + c] * L[c * n + c];
            for (int64_t m = c + 1; m < n; m++) sum += G[j * n + m] * L[m * n + c];
            M[j * wide + c] = sum;
        }
        for (int64_t i = 0; i <= j; i++) M[j * wide + n + i] = N[j * k + i];
        if (missing && j < p)
            for (int64_t c = 0; c <= n + j; c++)
                M[j * wide + c] = LANED(choose)(seen[j] != 0, M[j * wide + c], LANED(same)(0));
    }
    LANED(kalman_triangle)(M, E, seen, n, p, missing);
}

#undef KALMAN_NUMBERS
#define KALMAN_NUMBERS(n, p) \
    (((n) + (p)) * (3 * ((n) + (p)) + (n) + 2) + (n) * (n) + (n) + (p) * ((p) + 3))

/* All steps of one item. `work` has room for KALMAN_NUMBERS(n, p). */
INLINE void LANED(kalman_steps)(const LOCAL(kalman) *call, int64_t item, const int64_t n, const int64_t p,
                                const int missing, const int what, num *work) {
    const int64_t k = n + p, wide = n + k, length = call->length;
    num *G = work, *N = G + k * n, *offset = N + k * k, *L = offset + k, *mean = L + n * n, *M = mean + n,
        *E = M + k * wide, *z = E + k * p, *e = z + p, *expected = e + p,
        *seen = expected + k, *F = seen + p;
    const LANED(rows) of = LANED(rows_of)(item, what == KALMAN_COVARIANCES ? 1 : call->rows);
    if (what != KALMAN_MEANS) LANED(load_all)(L, call->factor.at, call->factor.row, n * n, &of);
    if (what != KALMAN_COVARIANCES) LANED(load_all)(mean, call->mean.at, call->mean.row, n, &of);
    for (int64_t t = 0; t < length; t++) {
        if (t == 0 || call->G.step) LANED(load_all)(G, call->G.at + t * call->G.step, call->G.row, k * n, &of);
        if (what != KALMAN_MEANS && (t == 0 || call->N.step))
            LANED(load_all)(N, call->N.at + t * call->N.step, call->N.row, k * k, &of);
        if (what != KALMAN_COVARIANCES && (t == 0 || call->offset.step))
            LANED(load_all)(offset, call->offset.at + t * call->offset.step, call->offset.row, k, &of);
        if (missing) LANED(load_flags)(seen, call->observed + t * p, length * p, p, &of);
        if (what != KALMAN_COVARIANCES && call->starts) {
            num begins, *fresh = M; /* which has nothing in it yet */
            LANED(load_flags)(&begins, call->starts + t, length, 1, &of);
            LANED(load_all)(fresh, call->prior_mean.at, call->prior_mean.row, n, &of);
            for (int64_t i = 0; i < n; i++) mean[i] = LANED(choose)(begins != 0, fresh[i], mean[i]);
            if (what == KALMAN_ALL) {
                LANED(load_all)(fresh, call->prior_factor.at, call->prior_factor.row, n * n, &of);
                for (int64_t i = 0; i < n * n; i++) L[i] = LANED(choose)(begins != 0, fresh[i], L[i]);
            }
        }
        num constant = LANED(same)(0); /* of log p(y_t | ...): all but the distance */
        if (what != KALMAN_MEANS) {
            LANED(kalman_update)(M, E, N, G, L, seen, n, p, missing);
            for (int64_t i = 0; i < p; i++) {
                num each = LANED(same)((real)-0.91893853320467274178);
                if (missing) each = LANED(choose)(seen[i] != 0, each, LANED(same)(0));
                constant += each - LANED(logarithm)(M[i * wide + i]);
            }
        } else {
            for (int64_t i = 0; i < p; i++)
                for (int64_t j = 0; j <= i; j++)
                    M[i * wide + j] = LANED(same)(call->innovation_factors[(t * p + i) * p + j]);
            for (int64_t i = 0; i < n * p; i++) M[(p + i / p) * wide + i % p] = LANED(same)(call->gains[t * n * p + i]);
            constant = LANED(same)(call->constants[t]);
        }
        num here = LANED(same)(1);
        const int padded = what == KALMAN_ALL && call->lengths != NULL;
        if (padded) LANED(load_real)(&here, call->lengths, t, &of);
        if (what != KALMAN_COVARIANCES) {
            for (int64_t j = 0; j < k; j++) {
                expected[j] = offset[j];
                for (int64_t m = 0; m < n; m++) expected[j] += G[j * n + m] * mean[m];
            }
            num distance = LANED(same)(0);
            LANED(load_all)(e, call->y.at + t * p, call->y.row, p, &of);
            for (int64_t i = 0; i < p; i++) {
                e[i] -= expected[i];
                if (missing) e[i] = LANED(choose)(seen[i] != 0, e[i], LANED(same)(0));
                z[i] = e[i];
                for (int64_t j = 0; j < i; j++) z[i] -= M[i * wide + j] * z[j];
                z[i] /= M[i * wide + i];
                distance += z[i] * z[i];
            }
            for (int64_t j = 0; j < n; j++) {
                num moved = expected[p + j];
                for (int64_t i = 0; i < p; i++) moved += M[(p + j) * wide + i] * z[i];
                mean[j] = padded ? LANED(choose)(here != 0, moved, mean[j]) : moved;
            }
            LANED(store_all)(call->means + t * n, length * n, mean, n, &of);
            LANED(store_all)(call->innovations + t * p, length * p, e, p, &of);
            distance = constant - distance * (real)0.5;
            LANED(store_all)(call->densities + t, length, &distance, 1, &of);
        }
        if (what != KALMAN_MEANS) {
            for (int64_t j = 0; j < n; j++)
                for (int64_t i = 0; i < n; i++) {
                    num moved = i > j ? LANED(same)(0) : M[(p + j) * wide + p + i];
                    L[j * n + i] = padded ? LANED(choose)(here != 0, moved, L[j * n + i]) : moved;
                }
            for (int64_t j = 0; j < p; j++)
                for (int64_t i = 0; i < p; i++) F[j * p + i] = i > j ? LANED(same)(0) : M[j * wide + i];
            LANED(store_all)(call->factors + t * n * n, length * n * n, L, n * n, &of);
            LANED(store_all)(call->innovation_factors + t * p * p, length * p * p, F, p * p, &of);
        }
        if (what == KALMAN_COVARIANCES) {
            for (int64_t i = 0; i < n * p; i++) E[i] = M[(p + i / p) * wide + i % p];
            LANED(store_all)(call->gains + t * n * p, 0, E, n * p, &of);
            LANED(store_all)(call->constants + t, 0, &constant, 1, &of);
        }
    }
}

#undef KALMAN_SIZED
#define KALMAN_SIZED(n, p)                                                                                      \
    __attribute__((noinline)) static void LANED(kalman_##n##_##p)(const LOCAL(kalman) *call, int64_t item) {     \
        num work[KALMAN_NUMBERS(n, p)];                                                                         \
        if (call->shared && call->rows > 1) LANED(kalman_steps)(call, item, n, p, 0, KALMAN_MEANS, work);       \
        else if (call->observed) LANED(kalman_steps)(call, item, n, p, 1, KALMAN_ALL, work);                         \
        else LANED(kalman_steps)(call, item, n, p, 0, KALMAN_ALL, work);                                        \
    }
KALMAN_SIZED(1, 1)
KALMAN_SIZED(2, 1)
KALMAN_SIZED(4, 1)
KALMAN_SIZED(4, 2)

static void LANED(kalman_item)(void *context, int64_t item, int64_t thread) {
    const LOCAL(kalman) *call = context;
    num *work = (num *)(void *)(call->scratch + thread * call->numbers);
    switch (call->p < 16 ? call->n * 16 + call->p : 0) {
        case 1 * 16 + 1: LANED(kalman_1_1)(call, item); return;
        case 2 * 16 + 1: LANED(kalman_2_1)(call, item); return;
        case 4 * 16 + 1: LANED(kalman_4_1)(call, item); return;
        case 4 * 16 + 2: LANED(kalman_4_2)(call, item); return;
    }
    if (call->shared && call->rows > 1) LANED(kalman_steps)(call, item, call->n, call->p, 0, KALMAN_MEANS, work);
    else LANED(kalman_steps)(call, item, call->n, call->p, call->observed != NULL, KALMAN_ALL, work);
}

#if KALMAN_ONE
static void LANED(kalman_covariances_item)(void *context, int64_t item, int64_t thread) {
    const LOCAL(kalman) *call = context;
    num *work = (num *)(void *)(call->scratch + thread * call->numbers);
    LANED(kalman_steps)(call, item, call->n, call->p, 0, KALMAN_COVARIANCES, work);
}
#endif
