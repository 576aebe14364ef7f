/* The transform of the convolution: n = 2 m real numbers at the m roots of X^m = i, in vectors of channels.
 *
 * x(X) = sum_{t < n} x_t X^t has there the m complex coefficients x_t + i x_{t+m}; multiplying two such values
 * multiplies modulo X^n + 1, which on outputs that do not wrap is the convolution. So there is nothing to unpack, and
 * each row and channel is alone: what is not finite in one reaches no other.
 * A pass splits blocks of coefficients modulo X^q - c by radix: modulo X^(q/2) - s are a + s b, modulo X^(q/2) + s are
 * a - s b, where s^2 = c. The factor s is one number for the whole block, and blocks become independent: the passes go
 * depth first. The values come in the order of the splitting, which the products do not mind, and the inverse undoes
 * the passes from the last to the first.
 * A point is a vector of real parts and behind it one of imaginary parts.
 */

/* The radices from the whole to single values, and where the factors of each pass's blocks begin. In the factors of a
 * block, as (re, im): radix 2: s; radix 4: s, r = sqrt(s), radix 8: s, r, q = sqrt(r), q e^(i pi / 4);
 * radix 3 and 5: f, f^2 ..., f^(radix - 1) with f^radix = c. */
typedef struct {
    int64_t n_passes;
    const int64_t *radices, *offsets;
    const real *factors;
} LOCAL(fft_plan);

#undef POINT
#define POINT (2 * REAL_LANES)
#define FFT_IN_L1 128 /* points of a block whose passes go one after the other over all of it */

INLINE int64_t LOCAL(fft_n_factors)(int64_t radix) { return radix % 2 ? 2 * (radix - 1) : radix; }

typedef struct {
    vreal re, im;
} LOCAL(number);

INLINE LOCAL(number) LOCAL(times)(LOCAL(number) b, real re, real im) {
    return (LOCAL(number)){b.re * re - b.im * im, b.re * im + b.im * re};
}
INLINE LOCAL(number) LOCAL(plus)(LOCAL(number) a, LOCAL(number) b) {
    return (LOCAL(number)){a.re + b.re, a.im + b.im};
}
INLINE LOCAL(number) LOCAL(minus)(LOCAL(number) a, LOCAL(number) b) {
    return (LOCAL(number)){a.re - b.re, a.im - b.im};
}
INLINE LOCAL(number) LOCAL(turned)(LOCAL(number) b) { return (LOCAL(number)){-b.im, b.re}; }

/* a, b -> a + f b, a - f b with f = w, or i w if turned; and back, but for a factor of 2 */
#define SPLIT(a, b, w) { \
    LOCAL(number) t_ = LOCAL(times)(b, (w)[0], (w)[1]); b = LOCAL(minus)(a, t_); a = LOCAL(plus)(a, t_); }
#define SPLIT_TURNED(a, b, w) { \
    LOCAL(number) t_ = LOCAL(turned)(LOCAL(times)(b, (w)[0], (w)[1])); \
    b = LOCAL(minus)(a, t_); a = LOCAL(plus)(a, t_); }
#define UNITE(a, b, w) { \
    LOCAL(number) d_ = LOCAL(minus)(a, b); a = LOCAL(plus)(a, b); b = LOCAL(times)(d_, (w)[0], -(w)[1]); }
#define UNITE_TURNED(a, b, w) { \
    LOCAL(number) d_ = LOCAL(minus)(b, a); a = LOCAL(plus)(a, b); \
    b = LOCAL(times)(LOCAL(turned)(d_), (w)[0], -(w)[1]); }

INLINE void LOCAL(split_4)(LOCAL(number) x[4], const real *w) {
    SPLIT(x[0], x[2], w) SPLIT(x[1], x[3], w)
    SPLIT(x[0], x[1], w + 2) SPLIT_TURNED(x[2], x[3], w + 2)
}
INLINE void LOCAL(unite_4)(LOCAL(number) x[4], const real *w) {
    UNITE(x[0], x[1], w + 2) UNITE_TURNED(x[2], x[3], w + 2)
    UNITE(x[0], x[2], w) UNITE(x[1], x[3], w)
}
INLINE void LOCAL(split_8)(LOCAL(number) x[8], const real *w) {
    SPLIT(x[0], x[4], w) SPLIT(x[1], x[5], w) SPLIT(x[2], x[6], w) SPLIT(x[3], x[7], w)
    SPLIT(x[0], x[2], w + 2) SPLIT(x[1], x[3], w + 2) SPLIT_TURNED(x[4], x[6], w + 2) SPLIT_TURNED(x[5], x[7], w + 2)
    SPLIT(x[0], x[1], w + 4) SPLIT_TURNED(x[2], x[3], w + 4) SPLIT(x[4], x[5], w + 6) SPLIT_TURNED(x[6], x[7], w + 6)
}
INLINE void LOCAL(unite_8)(LOCAL(number) x[8], const real *w) {
    UNITE(x[0], x[1], w + 4) UNITE_TURNED(x[2], x[3], w + 4) UNITE(x[4], x[5], w + 6) UNITE_TURNED(x[6], x[7], w + 6)
    UNITE(x[0], x[2], w + 2) UNITE(x[1], x[3], w + 2) UNITE_TURNED(x[4], x[6], w + 2) UNITE_TURNED(x[5], x[7], w + 2)
    UNITE(x[0], x[4], w) UNITE(x[1], x[5], w) UNITE(x[2], x[6], w) UNITE(x[3], x[7], w)
}

/* The plain transform of 3 or 5 numbers, sum_j x_j e^(2 pi i j k / radix), for either sign of i */
INLINE void LOCAL(transform_3)(LOCAL(number) x[3], real sign) {
    const real sine = (real)0.86602540378443864676 * sign;
    LOCAL(number) sum = LOCAL(plus)(x[1], x[2]), difference = LOCAL(minus)(x[1], x[2]);
    LOCAL(number) middle = {x[0].re - (real)0.5 * sum.re, x[0].im - (real)0.5 * sum.im};
    LOCAL(number) side = {-difference.im * sine, difference.re * sine};
    x[0] = LOCAL(plus)(x[0], sum);
    x[1] = LOCAL(plus)(middle, side);
    x[2] = LOCAL(minus)(middle, side);
}
INLINE void LOCAL(transform_5)(LOCAL(number) x[5], real sign) {
    const real c1 = (real)0.30901699437494742410, c2 = (real)-0.80901699437494742410;
    const real s1 = (real)0.95105651629515357212 * sign, s2 = (real)0.58778525229247312917 * sign;
    LOCAL(number) a = LOCAL(plus)(x[1], x[4]), b = LOCAL(plus)(x[2], x[3]);
    LOCAL(number) d = LOCAL(minus)(x[1], x[4]), e = LOCAL(minus)(x[2], x[3]);
    LOCAL(number) first = {x[0].re + c1 * a.re + c2 * b.re, x[0].im + c1 * a.im + c2 * b.im};
    LOCAL(number) second = {x[0].re + c2 * a.re + c1 * b.re, x[0].im + c2 * a.im + c1 * b.im};
    LOCAL(number) side_1 = {-(s1 * d.im + s2 * e.im), s1 * d.re + s2 * e.re};
    LOCAL(number) side_2 = {-(s2 * d.im - s1 * e.im), s2 * d.re - s1 * e.re};
    x[0] = LOCAL(plus)(x[0], LOCAL(plus)(a, b));
    x[1] = LOCAL(plus)(first, side_1);
    x[4] = LOCAL(minus)(first, side_1);
    x[2] = LOCAL(plus)(second, side_2);
    x[3] = LOCAL(minus)(second, side_2);
}
INLINE void LOCAL(split)(const int64_t radix, LOCAL(number) *x, const real *w) {
    if (radix == 2) SPLIT(x[0], x[1], w)
    else if (radix == 4) LOCAL(split_4)(x, w);
    else if (radix == 8) LOCAL(split_8)(x, w);
    else {
        for (int64_t j = 1; j < radix; j++) x[j] = LOCAL(times)(x[j], w[2 * j - 2], w[2 * j - 1]);
        if (radix == 3) LOCAL(transform_3)(x, 1);
        else LOCAL(transform_5)(x, 1);
    }
}
INLINE void LOCAL(unite)(const int64_t radix, LOCAL(number) *x, const real *w) {
    if (radix == 2) UNITE(x[0], x[1], w)
    else if (radix == 4) LOCAL(unite_4)(x, w);
    else if (radix == 8) LOCAL(unite_8)(x, w);
    else {
        if (radix == 3) LOCAL(transform_3)(x, -1);
        else LOCAL(transform_5)(x, -1);
        for (int64_t j = 1; j < radix; j++) x[j] = LOCAL(times)(x[j], w[2 * j - 2], -w[2 * j - 1]);
    }
}

INLINE LOCAL(number) LOCAL(point_at)(const real *from) {
    return (LOCAL(number)){v_load(from), v_load(from + REAL_LANES)};
}
INLINE void LOCAL(point_to)(real *to, LOCAL(number) value) {
    v_store(to, value.re);
    v_store(to + REAL_LANES, value.im);
}

/* One pass in place over n_blocks blocks that lie one behind the other, each of radix times `part` points */
INLINE void LOCAL(fft_pass)(const int64_t radix, const int inverse, real *data, int64_t n_blocks, int64_t part,
                            const real *factors) {
    for (int64_t block = 0; block < n_blocks; block++, factors += LOCAL(fft_n_factors)(radix)) {
        real w[8];
        for (int64_t i = 0; i < LOCAL(fft_n_factors)(radix); i++) w[i] = factors[i];
        for (int64_t t = 0; t < part; t++, data += POINT) {
            LOCAL(number) x[8];
#pragma GCC unroll 8
            for (int64_t j = 0; j < radix; j++) x[j] = LOCAL(point_at)(data + j * part * POINT);
            if (inverse) LOCAL(unite)(radix, x, w);
            else LOCAL(split)(radix, x, w);
#pragma GCC unroll 8
            for (int64_t j = 0; j < radix; j++) LOCAL(point_to)(data + j * part * POINT, x[j]);
        }
        data += (radix - 1) * part * POINT;
    }
}
static void LOCAL(fft_split_pass)(int64_t radix, real *data, int64_t n_blocks, int64_t part, const real *factors) {
    if (radix == 8) LOCAL(fft_pass)(8, 0, data, n_blocks, part, factors);
    else if (radix == 4) LOCAL(fft_pass)(4, 0, data, n_blocks, part, factors);
    else LOCAL(fft_pass)(2, 0, data, n_blocks, part, factors);
}
static void LOCAL(fft_unite_pass)(int64_t radix, real *data, int64_t n_blocks, int64_t part, const real *factors) {
    if (radix == 8) LOCAL(fft_pass)(8, 1, data, n_blocks, part, factors);
    else if (radix == 4) LOCAL(fft_pass)(4, 1, data, n_blocks, part, factors);
    else LOCAL(fft_pass)(2, 1, data, n_blocks, part, factors);
}

/* The passes from number `pass` on, of that pass's block number `index`, which has `points` points */
static void LOCAL(fft_split)(const LOCAL(fft_plan) *plan, int64_t pass, int64_t index, int64_t points, real *data) {
    int64_t n_blocks = 1, whole = points;
    while (pass < plan->n_passes) {
        int64_t radix = plan->radices[pass], part = points / radix;
        const real *factors = plan->factors + plan->offsets[pass] + index * LOCAL(fft_n_factors)(radix);
        LOCAL(fft_split_pass)(radix, data, n_blocks, part, factors);
        pass++;
        index *= radix;
        if (whole > FFT_IN_L1) {
            for (int64_t j = 0; j < radix; j++) LOCAL(fft_split)(plan, pass, index + j, part, data + j * part * POINT);
            return;
        }
        n_blocks *= radix;
        points = part;
    }
}
static void LOCAL(fft_unite)(const LOCAL(fft_plan) *plan, int64_t pass, int64_t index, int64_t points, real *data) {
    if (pass == plan->n_passes) return;
    if (points > FFT_IN_L1) {
        int64_t radix = plan->radices[pass], part = points / radix;
        for (int64_t j = 0; j < radix; j++)
            LOCAL(fft_unite)(plan, pass + 1, index * radix + j, part, data + j * part * POINT);
        LOCAL(fft_unite_pass)(radix, data, 1, part,
                              plan->factors + plan->offsets[pass] + index * LOCAL(fft_n_factors)(radix));
        return;
    }
    int64_t part = 1;
    for (int64_t last = plan->n_passes - 1; last >= pass; last--) {
        int64_t radix = plan->radices[last], n_blocks = points / (part * radix);
        int64_t first = index * n_blocks; /* of the blocks of that pass, those of this block */
        LOCAL(fft_unite_pass)(radix, data, n_blocks, part,
                              plan->factors + plan->offsets[last] + first * LOCAL(fft_n_factors)(radix));
        part *= radix;
    }
}
