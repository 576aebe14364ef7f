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

/* sum + Re(x conj(y)) */
INLINE vreal LOCAL(add_real)(vreal sum, pair x, pair y, int is_complex) {
    sum += x.re * y.re;
    if (is_complex) sum += x.im * y.im;
    return sum;
}

/* sin and cos of x quarter turns: a rest of at most half a quarter by Taylor's series, then the quadrant */
INLINE void LOCAL(sin_cos)(vreal x, vreal *sine, vreal *cosine) {
#if REAL_BITS == 32
    const real shift = 12582912.0f; /* 1.5 * 2^23: the sum holds the whole number in its low bits */
    enum { terms = 5 };
#else
    const real shift = 6755399441055744.0; /* 1.5 * 2^52 */
    enum { terms = 9 };
#endif
    /* (pi/2)^(2k+1) / (2k+1)! and (pi/2)^(2k) / (2k)!, with their signs */
    static const double sines[9] = {
        1.5707963267948966, -0.6459640975062462, 0.07969262624616703, -0.004681754135318687,
        0.00016044118478735975, -3.598843235212084e-06, 5.692172921967924e-08, -6.688035109811464e-10,
        6.066935731106192e-12};
    static const double cosines[10] = {
        1.0, -1.2337005501361697, 0.253669507901048, -0.020863480763352957,
        0.0009192602748394263, -2.5202042373060596e-05, 4.710874778818169e-07, -6.386603083791849e-09,
        6.565963114979468e-11, -5.294400200734619e-13};
    vreal shifted = x + shift;
    vreal rest = x - (shifted - shift), square = rest * rest;
    vreal s = v_broadcast((real)sines[terms - 1]), c = v_broadcast((real)cosines[terms]);
#pragma GCC unroll 9
    for (int k = terms - 2; k >= 0; k--) s = s * square + (real)sines[k];
#pragma GCC unroll 9
    for (int k = terms - 1; k >= 0; k--) c = c * square + (real)cosines[k];
    s *= rest;
    vmask quarter = (vmask)shifted;
    vmask odd = (quarter & 1) != 0;
    vreal sign_sine = v_select((quarter & 2) != 0, v_broadcast(-1), v_broadcast(1));
    vreal sign_cosine = v_select(((quarter + 1) & 2) != 0, v_broadcast(-1), v_broadcast(1));
    *sine = v_select(odd, c, s) * sign_sine;
    *cosine = v_select(odd, s, c) * sign_cosine;
}

/* 1 / A */
INLINE pair LOCAL(inverse)(pair A, int is_complex) {
    vreal size = is_complex ? A.re * A.re + A.im * A.im : A.re;
    return (pair){is_complex ? A.re / size : 1 / size, is_complex ? -A.im / size : A.im};
}

/* What A is multiplied by so that exp(Delta A) needs no more products: log2(e), and the imaginary part 2 / pi. */
#define SCAN_REAL_UNIT LOG2_E
#define SCAN_IMAGINARY_UNIT 0.63661977236758134308

/* exp(Delta A), A in those units */
INLINE pair LOCAL(transition)(vreal delta, pair units, int is_complex) {
    vreal size = v_exp2(delta * units.re);
    if (!is_complex) return (pair){size, v_broadcast(0)};
    vreal sine, cosine;
    LOCAL(sin_cos)(delta * units.im, &sine, &cosine);
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
