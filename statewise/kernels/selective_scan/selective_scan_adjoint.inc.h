/* The adjoint of one vector of channels over one chunk, some states at a time; for one `real`.
 *
 * Forwards in time the states are computed again: exp(Delta A), and its product with the state before, are kept. Then
 * backwards: g_t = dy_t conj(C_t) + conj(a_{t+1}) g_{t+1} is the gradient of the state, and every other one is a
 * product with it. Gradients of a complex number are those of its real and imaginary part, as PyTorch has them.
 */
#define WIDTH 4

typedef struct {
    int64_t steps;
    const unsigned char *resets;        /* or NULL */
    const real *delta, *input, *dy;     /* vectors by step; input: Delta u, or u for the exact hold */
    real *y, *d_input, *d_delta;        /* vectors by step: C h, and the gradients; all are added to */
    const real *A, *rates, *h;          /* vectors by state, of rates two; h: at the start of the chunk */
    real *d_A, *d_h;                    /* d_h: of the state after the chunk, then of the one before it */
    const real *B, *C;                  /* numbers, or with per_lane vectors; a step further is b_step reals further */
    int64_t b_step;
    real *d_B, *d_C;                    /* vectors [t * n + j]; added to */
    real *a, *ah, *step, *slope;        /* room for vectors [t * n + j] */
    ahead *ahead;                       /* asked at each step forwards */
} LOCAL(adjoint_part);

/* The states again: what the way back needs of them. */
INLINE void LOCAL(adjoint_forwards)(const LOCAL(adjoint_part) * p, const int n, const int is_complex, const int exact,
                                    const int per_lane) {
    const int parts = 1 + is_complex;
    pair h[WIDTH];
    rate rates[WIDTH];
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) {
        h[j] = LOCAL(pair_load)(p->h + j * parts * REAL_LANES, is_complex);
        rates[j] = LOCAL(rate_load)(p->rates + j * 2 * parts * REAL_LANES, is_complex);
    }
    for (int64_t t = 0; t < p->steps; t++) {
        if (p->resets && p->resets[t]) {
#pragma GCC unroll 4
            for (int j = 0; j < n; j++) h[j] = LOCAL(pair_zero)();
        }
        ask(p->ahead);
        const vreal delta = v_load(p->delta + t * REAL_LANES), input = v_load(p->input + t * REAL_LANES);
        vreal y = v_load(p->y + t * REAL_LANES);
        const real *B = p->B + t * p->b_step, *C = p->C + t * p->b_step;
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) {
            const int64_t at = (t * n + j) * parts * REAL_LANES;
            pair a = LOCAL(transition)(delta, rates[j], is_complex);
            pair ah = LOCAL(moved)(a, h[j], is_complex);
            pair b = LOCAL(coefficient)(B, j, is_complex, per_lane), c = LOCAL(coefficient)(C, j, is_complex, per_lane);
            LOCAL(pair_store)(p->a + at, a, is_complex);
            LOCAL(pair_store)(p->ah + at, ah, is_complex);
            if (exact) {
                pair A = LOCAL(pair_load)(p->A + j * parts * REAL_LANES, is_complex);
                pair inverse = LOCAL(inverse)(A, is_complex);
                pair step = LOCAL(exact_step)(delta, A, a, inverse, is_complex);
                LOCAL(pair_store)(p->step + at, step, is_complex);
                LOCAL(pair_store)(p->slope + at, LOCAL(exact_slope)(delta, A, a, step, inverse, is_complex), is_complex);
                h[j] = LOCAL(with_held)(ah, step, b, input, is_complex);
            } else {
                h[j] = LOCAL(with_input)(ah, b, input, is_complex);
            }
            c.im = -c.im; /* Re(C h) */
            y = LOCAL(add_real)(y, c, h[j], is_complex);
        }
        v_store(p->y + t * REAL_LANES, y);
    }
}

INLINE void LOCAL(adjoint_backwards)(const LOCAL(adjoint_part) * p, const int n, const int is_complex, const int exact,
                                     const int per_lane) {
    const int parts = 1 + is_complex;
    pair d_h[WIDTH], d_A[WIDTH], A[WIDTH];
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) {
        d_h[j] = LOCAL(pair_load)(p->d_h + j * parts * REAL_LANES, is_complex);
        d_A[j] = LOCAL(pair_zero)();
        A[j] = LOCAL(pair_load)(p->A + j * parts * REAL_LANES, is_complex);
    }
    for (int64_t t = p->steps - 1; t >= 0; t--) {
        const vreal delta = v_load(p->delta + t * REAL_LANES), input = v_load(p->input + t * REAL_LANES);
        const pair dy = {v_load(p->dy + t * REAL_LANES), v_broadcast(0)};
        vreal d_input = v_load(p->d_input + t * REAL_LANES), d_delta = v_load(p->d_delta + t * REAL_LANES);
        const real *B = p->B + t * p->b_step, *C = p->C + t * p->b_step;
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) {
            const int64_t at = (t * n + j) * parts * REAL_LANES;
            pair a = LOCAL(pair_load)(p->a + at, is_complex), ah = LOCAL(pair_load)(p->ah + at, is_complex);
            pair b = LOCAL(coefficient)(B, j, is_complex, per_lane), c = LOCAL(coefficient)(C, j, is_complex, per_lane);
            pair d_B = LOCAL(pair_load)(p->d_B + at, is_complex), d_C = LOCAL(pair_load)(p->d_C + at, is_complex);
            pair step = {v_broadcast(1), v_broadcast(0)};
            if (exact) step = LOCAL(pair_load)(p->step + at, is_complex);
            pair by = exact ? LOCAL(scaled)(step, input, is_complex) : (pair){input, v_broadcast(0)}; /* of B */
            pair h = exact ? LOCAL(product)(by, b, is_complex) : LOCAL(scaled)(b, input, is_complex);
            h.re += ah.re;
            if (is_complex) h.im += ah.im;
            pair g = d_h[j];
            g.re += dy.re * c.re;
            if (is_complex) g.im -= dy.re * c.im;
            d_C.re += dy.re * h.re;
            if (is_complex) d_C.im -= dy.re * h.im;
            d_B = exact ? LOCAL(add_conjugate)(d_B, g, by, is_complex)
                        : (pair){d_B.re + g.re * input, is_complex ? d_B.im + g.im * input : d_B.im};
            LOCAL(pair_store)(p->d_B + at, d_B, is_complex);
            LOCAL(pair_store)(p->d_C + at, d_C, is_complex);
            pair flow = LOCAL(conjugate)(g, ah, is_complex); /* to Delta A, through exp(Delta A) */
            d_delta = LOCAL(add_real)(d_delta, flow, A[j], is_complex);
            d_A[j].re += flow.re * delta;
            if (is_complex) d_A[j].im += flow.im * delta;
            if (exact) {
                pair from_step = LOCAL(conjugate)(g, b, is_complex);
                d_input = LOCAL(add_real)(d_input, from_step, step, is_complex);
                from_step = LOCAL(scaled)(from_step, input, is_complex);
                d_delta = LOCAL(add_real)(d_delta, from_step, a, is_complex);
                pair slope = LOCAL(pair_load)(p->slope + at, is_complex);
                d_A[j] = LOCAL(add_conjugate)(d_A[j], from_step, slope, is_complex);
            } else {
                d_input = LOCAL(add_real)(d_input, g, b, is_complex);
            }
            d_h[j] = LOCAL(conjugate)(g, a, is_complex);
        }
        v_store(p->d_input + t * REAL_LANES, d_input);
        v_store(p->d_delta + t * REAL_LANES, d_delta);
        if (p->resets && p->resets[t]) {
#pragma GCC unroll 4
            for (int j = 0; j < n; j++) d_h[j] = LOCAL(pair_zero)();
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) {
        pair sum = LOCAL(pair_load)(p->d_A + j * parts * REAL_LANES, is_complex);
        sum.re += d_A[j].re;
        if (is_complex) sum.im += d_A[j].im;
        LOCAL(pair_store)(p->d_A + j * parts * REAL_LANES, sum, is_complex);
        LOCAL(pair_store)(p->d_h + j * parts * REAL_LANES, d_h[j], is_complex);
    }
}

#define BOTH_WAYS(n, is_complex, exact, per_lane)                \
    do {                                                         \
        LOCAL(adjoint_forwards)(p, n, is_complex, exact, per_lane); \
        LOCAL(adjoint_backwards)(p, n, is_complex, exact, per_lane); \
    } while (0)
#define ADJOINT(name, is_complex, exact, per_lane)                                                     \
    static __attribute__((noinline)) void LOCAL(name)(const LOCAL(adjoint_part) * p, int64_t n) {       \
        if (n == 4) BOTH_WAYS(4, is_complex, exact, per_lane);                                          \
        else BOTH_WAYS(1, is_complex, exact, per_lane);                                                 \
    }
ADJOINT(adjoint_real, 0, 0, 0)
ADJOINT(adjoint_real_lanes, 0, 0, 1)
ADJOINT(adjoint_real_exact, 0, 1, 0)
ADJOINT(adjoint_real_exact_lanes, 0, 1, 1)
ADJOINT(adjoint_complex, 1, 0, 0)
ADJOINT(adjoint_complex_lanes, 1, 0, 1)
ADJOINT(adjoint_complex_exact, 1, 1, 0)
ADJOINT(adjoint_complex_exact_lanes, 1, 1, 1)
#undef BOTH_WAYS
#undef ADJOINT

static void LOCAL(adjoint_states)(const LOCAL(adjoint_part) * p, int64_t n, int64_t is_complex, int64_t exact,
                                  int64_t per_lane) {
    if (!is_complex && !exact) (per_lane ? LOCAL(adjoint_real_lanes) : LOCAL(adjoint_real))(p, n);
    else if (!is_complex) (per_lane ? LOCAL(adjoint_real_exact_lanes) : LOCAL(adjoint_real_exact))(p, n);
    else if (!exact) (per_lane ? LOCAL(adjoint_complex_lanes) : LOCAL(adjoint_complex))(p, n);
    else (per_lane ? LOCAL(adjoint_complex_exact_lanes) : LOCAL(adjoint_complex_exact))(p, n);
}
