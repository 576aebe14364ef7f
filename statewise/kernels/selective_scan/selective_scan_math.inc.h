/* Numbers that may be complex, and exp(Delta A), (exp(Delta A) - 1) / A and its slope, for one `real`.
 *
 * `is_complex` is a constant wherever these are called: for real numbers the imaginary parts vanish from the code.
 */
#undef pair
#undef TERMS
#define pair LOCAL(scan_pair)
typedef struct {
    vreal re, im;
} pair;

INLINE pair LOCAL(pair_zero)(void) { return (pair){v_broadcast(0), v_broadcast(0)}; }

INLINE pair LOCAL(pair_load)(const real *from, int is_complex) {
    return (pair){v_load(from), is_complex ? v_load(from + REAL_LANES) : v_broadcast(0)};
}

INLINE void LOCAL(pair_store)(real *to, pair x, int is_complex) {
    v_store(to, x.re);
    if (is_complex) v_store(to + REAL_LANES, x.im);
}

/* One of B or C: a number for all lanes, or a vector with one for each. */
INLINE pair LOCAL(coefficient)(const real *from, int j, int is_complex, int per_lane) {
    const int parts = 1 + is_complex;
    if (per_lane) return LOCAL(pair_load)(from + j * parts * REAL_LANES, is_complex);
    return (pair){v_broadcast(from[j * parts]), is_complex ? v_broadcast(from[j * parts + 1]) : v_broadcast(0)};
}

/* sum + x y */
INLINE pair LOCAL(add_product)(pair sum, pair x, pair y, int is_complex) {
    sum.re += x.re * y.re;
    if (is_complex) {
        sum.re -= x.im * y.im;
        sum.im += x.re * y.im;
        sum.im += x.im * y.re;
    }
    return sum;
}

/* sum + x conj(y) */
INLINE pair LOCAL(add_conjugate)(pair sum, pair x, pair y, int is_complex) {
    y.im = -y.im;
    return LOCAL(add_product)(sum, x, y, is_complex);
}

INLINE pair LOCAL(product)(pair x, pair y, int is_complex) {
    if (!is_complex) return (pair){x.re * y.re, x.im};
    return (pair){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

/* x conj(y) */
INLINE pair LOCAL(conjugate)(pair x, pair y, int is_complex) {
    y.im = -y.im;
    return LOCAL(product)(x, y, is_complex);
}

INLINE pair LOCAL(scaled)(pair x, vreal y, int is_complex) { return (pair){x.re * y, is_complex ? x.im * y : x.im}; }

/* a h, and the state that it and what a step adds give: with roundings in the same places in the forward kernel and in
 * the adjoint, so that both have the same states, bit for bit. */
INLINE pair LOCAL(moved)(pair a, pair h, int is_complex) {
    if (!is_complex) return (pair){v_alone(a.re * h.re), a.im};
    vreal re = v_alone(a.im * h.im), im = v_alone(a.im * h.re);
    return (pair){v_alone(a.re * h.re - re), v_alone(a.re * h.im + im)};
}
INLINE pair LOCAL(with_input)(pair ah, pair b, vreal input, int is_complex) {
    return (pair){b.re * input + ah.re, is_complex ? b.im * input + ah.im : ah.im};
}
INLINE pair LOCAL(with_held)(pair ah, pair step, pair b, vreal input, int is_complex) {
    pair by = LOCAL(scaled)(step, input, is_complex), added = LOCAL(moved)(by, b, is_complex);
    return (pair){ah.re + added.re, is_complex ? ah.im + added.im : ah.im};
}

/* sum + Re(x conj(y)) */
INLINE vreal LOCAL(add_real)(vreal sum, pair x, pair y, int is_complex) {
    sum += x.re * y.re;
    if (is_complex) sum += x.im * y.im;
    return sum;
}

/* 1 / A */
INLINE pair LOCAL(inverse)(pair A, int is_complex) {
    vreal size = is_complex ? A.re * A.re + A.im * A.im : A.re;
    return (pair){is_complex ? A.re / size : 1 / size, is_complex ? -A.im / size : A.im};
}

/* The factors of Delta in exp(Delta A): A log2(e), and of the imaginary part 2 / pi, each as what `real` holds of it and
 * what that lost. */
#undef rate
#define rate LOCAL(scan_rate)
typedef struct {
    vreal high, low, turns, turns_low;
} rate;

INLINE rate LOCAL(rate_load)(const real *from, int is_complex) {
    const vreal none = v_broadcast(0);
    return (rate){v_load(from), v_load(from + REAL_LANES), is_complex ? v_load(from + 2 * REAL_LANES) : none,
                  is_complex ? v_load(from + 3 * REAL_LANES) : none};
}

/* of one number A, or of its imaginary part, to rates[0] and rates[REAL_LANES] */
INLINE void LOCAL(split_rate)(real A, int is_imaginary, real *rates) {
    const double unit = is_imaginary ? QUARTERS : LOG2_E, unit_low = is_imaginary ? QUARTERS_LOW : LOG2_E_LOW;
    const double product = (double)A * unit;
    const real high = (real)product;
    rates[0] = high;
    rates[REAL_LANES] = (real)(product - (double)high + fma((double)A, unit, -product) + (double)A * unit_low);
}

/* exp(Delta A) */
INLINE pair LOCAL(transition)(vreal delta, rate r, int is_complex) {
    vreal size = v_exp2_product(delta, r.high, r.low);
    if (!is_complex) return (pair){size, v_broadcast(0)};
    vreal sine, cosine;
    LOCAL(sine_cosine)(delta, r.turns, r.turns_low, &sine, &cosine);
    return (pair){size * cosine, size * sine};
}

/* The exact hold with z = Delta A: phi = (e^z - 1) / z and slope = (e^z - phi) / z, by their series near 0.
 * a = e^z; inverse = 1 / A, anything where A = 0. */
#if REAL_BITS == 32
#define TERMS 11
#else
#define TERMS 18
#endif
INLINE pair LOCAL(near_or_far)(pair z, pair near, pair far) {
    vmask is_near = z.re * z.re + z.im * z.im < 1;
    return (pair){v_select(is_near, near.re, far.re), v_select(is_near, near.im, far.im)};
}

/* Delta phi(Delta A): what B u is multiplied by */
INLINE pair LOCAL(exact_step)(vreal delta, pair A, pair a, pair inverse, int is_complex) {
    pair z = LOCAL(scaled)(A, delta, is_complex), near = {v_broadcast(1), v_broadcast(0)};
#pragma GCC unroll 18
    for (int k = TERMS; k > 1; k--) {
        near = LOCAL(product)(near, LOCAL(scaled)(z, v_broadcast((real)(1.0 / k)), is_complex), is_complex);
        near.re += 1;
    }
    a.re -= 1;
    return LOCAL(near_or_far)(z, LOCAL(scaled)(near, delta, is_complex), LOCAL(product)(a, inverse, is_complex));
}

/* its derivative by A, Delta^2 slope(Delta A) */
INLINE pair LOCAL(exact_slope)(vreal delta, pair A, pair a, pair step, pair inverse, int is_complex) {
    pair z = LOCAL(scaled)(A, delta, is_complex), near = {v_broadcast(1), v_broadcast(0)};
#pragma GCC unroll 18
    for (int k = TERMS; k > 0; k--) {
        pair part = LOCAL(scaled)(z, v_broadcast((real)((k + 1.0) / (k * (k + 2.0)))), is_complex);
        near = LOCAL(product)(near, part, is_complex);
        near.re += 1;
    }
    pair far = {delta * a.re - step.re, delta * a.im - step.im};
    return LOCAL(near_or_far)(
        z, LOCAL(scaled)(near, delta * delta * (real)0.5, is_complex), LOCAL(product)(far, inverse, is_complex));
}
