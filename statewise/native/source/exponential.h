/* Exponentials, sine and cosine, and what is made of them, on the vectors of vector.h, which includes this.
 *
 * The exponent of a decay is a product, Delta A log2(e). Rounded to float32 it would be off by |x| 2^-25, so that e^-87
 * would be off by thirty units in the last place, and a phase of 100 by as much. So no exponent and no phase is rounded:
 * the whole number w nearest to it needs no digits, and of the rest, x (high + low) - w, a fused product and sum keeps
 * all. `high` is the factor of x, A log2(e) or log2(e) alone, and `low` what its rounding lost.
 *
 * No function here loses a NaN or an infinity; an exponential below 2^-126 (2^-1022) may become zero. How far each is
 * from its definition is measured by `statewise benchmark errors`.
 */
#ifndef STATEWISE_EXPONENTIAL_H
#define STATEWISE_EXPONENTIAL_H

#define LN_2 0.69314718055994530942
#define LOG2_E 1.4426950408889634074
#define LOG2_E_LOW 2.0355273740931033e-17 /* what LOG2_E lacks */
#define LOG2_E_F32 1.4426950216293335f
#define LOG2_E_F32_LOW 1.925963033500011e-08f
#define QUARTERS 0.63661977236758134308 /* 2 / pi: quarter turns in a radian */
#define QUARTERS_LOW -3.935735335036497e-17
#define QUARTERS_F32 0.6366197466850281f
#define QUARTERS_F32_LOW 2.5682552973194106e-08f

/* x (high + low) - whole, of which the product is not rounded before the difference */
INLINE vf32 rest_f32(vf32 x, vf32 high, vf32 low, vf32 whole) {
#if defined(__AVX512F__)
    __m512 rest = _mm512_fmsub_ps((__m512)x, (__m512)high, (__m512)whole);
    return (vf32)_mm512_fmadd_ps((__m512)x, (__m512)low, rest);
#elif defined(__AVX2__) && defined(__FMA__)
    __m256 rest = _mm256_fmsub_ps((__m256)x, (__m256)high, (__m256)whole);
    return (vf32)_mm256_fmadd_ps((__m256)x, (__m256)low, rest);
#else
    typedef double wide __attribute__((vector_size(2 * VECTOR_BYTES)));
    wide factor = __builtin_convertvector(high, wide) + __builtin_convertvector(low, wide);
    wide rest = __builtin_convertvector(x, wide) * factor - __builtin_convertvector(whole, wide);
    return __builtin_convertvector(rest, vf32);
#endif
}
INLINE vf64 rest_f64(vf64 x, vf64 high, vf64 low, vf64 whole) {
#if defined(__AVX512F__)
    __m512d rest = _mm512_fmsub_pd((__m512d)x, (__m512d)high, (__m512d)whole);
    return (vf64)_mm512_fmadd_pd((__m512d)x, (__m512d)low, rest);
#elif defined(__AVX2__) && defined(__FMA__)
    __m256d rest = _mm256_fmsub_pd((__m256d)x, (__m256d)high, (__m256d)whole);
    return (vf64)_mm256_fmadd_pd((__m256d)x, (__m256d)low, rest);
#else
    vf64 rest = whole;
    for (int i = 0; i < LANES_F64; i++) rest[i] = fma(x[i], low[i], fma(x[i], high[i], -whole[i]));
    return rest;
#endif
}

/* 1.5 2^23 and 1.5 2^52: adding it rounds to a whole number, which is then in the low bits of the sum. For exponents, to
 * whole sixteenths, or to a whole number beside which more is added. */
#define SHIFT_F32 12582912.0f
#define SHIFT_F64 6755399441055744.0
#if defined(__AVX512F__)
#define EXPONENT_SHIFT_F32 (SHIFT_F32 / 16)
#define EXPONENT_SHIFT_F64 SHIFT_F64
#else
#define EXPONENT_SHIFT_F32 (SHIFT_F32 + 254)
#define EXPONENT_SHIFT_F64 (SHIFT_F64 + 2046)
#endif

/* 2^(whole + f), where shifted = whole + EXPONENT_SHIFT, and f is what rounding to it left; x = whole + f, rounded. f counts
 * for nothing where whole is beyond all exponents. It is exactly 1 at 0. */
#if defined(__AVX512F__)
/* A root 2^(i / 16), of the sixteenths in whole, times 2^f on |f| <= 1/32. The roots are kept over c, and the polynomial
 * is c 2^f, where c is the number just below 1 for which all sixteen are nearly float32 numbers. */
INLINE vf32 polynomial_f32(const float c, const float last, vf32 f) {
    f = (vf32)_mm512_range_ps((__m512)f, _mm512_set1_ps(1.0f), 2); /* the smaller in size; of a NaN the 1 */
    vf32 q = f * (c * 0.05550508573651314f) + c * 0.24023355543613434f;
    q = q * f + c * 0.6931471824645996f;
    return q * f + last;
}
INLINE vf32 power_f32(vf32 x, vf32 shifted, vf32 f) {
    (void)x;
    const float c = 0.961529016f;
    static const float roots[16] __attribute__((aligned(64))) = {
        1.04001021f, 1.0860554f, 1.13413918f, 1.1843518f, 1.23678756f, 1.2915448f, 1.34872639f, 1.40843964f,
        1.47079659f, 1.5359143f, 1.60391498f, 1.6749264f, 1.74908173f, 1.8265202f, 1.90738714f, 1.9918344f};
    vf32 root = (vf32)_mm512_permutexvar_ps((__m512i)shifted, _mm512_load_ps(roots));
    vf32 p = root * polynomial_f32(c, c - 1, f) + root;
    return (vf32)_mm512_scalef_ps((__m512)p, (__m512)(shifted - EXPONENT_SHIFT_F32)); /* takes the whole below */
}
#else
INLINE vf32 power_f32(vf32 x, vf32 shifted, vf32 f) {
    vf32 p = broadcast_f32(0.00015353697503460653f);
    p = p * f + 0.0013398896817005908f;
    p = p * f + 0.0096184362067396978f;
    p = p * f + 0.055503323955339304f;
    p = p * f + 0.24022647922257037f;
    p = p * f + 0.69314720291014293f;
    p = p * f + 1.0f;
    /* 2^whole as two factors, since it may be beyond the exponents where the product is not; whole + 254 is halved */
    vu32 half = (vu32)shifted >> 1;
    p = p * (vf32)(half << 23) * (vf32)(((vu32)shifted - half) << 23);
    p = (vf32)((vi32)p & ~(x < -200.0f));
    return select_f32(x < 200.0f, p, x + INFINITY); /* NaN stays */
}
#endif
INLINE vf64 power_f64(vf64 x, vf64 shifted, vf64 f) {
#if defined(__AVX512F__)
    (void)x;
    vf64 whole = shifted - EXPONENT_SHIFT_F64;
    f = (vf64)_mm512_range_pd((__m512d)f, _mm512_set1_pd(1.0), 2);
#endif
    static const double coefficients[11] = {
        4.4549605981865186e-10, 7.072585949269223e-09,  1.0178062445845774e-07, 1.321544258792169e-06,
        1.525273382983612e-05,  1.540353044173605e-04,  1.3333558146416936e-03, 9.618129107606888e-03,
        5.55041086648216e-02,   2.4022650695910097e-01, 6.931471805599453e-01};
    vf64 p = broadcast_f64(coefficients[0]);
    for (int i = 1; i < 11; i++) p = p * f + coefficients[i];
    p = p * f + 1.0;
#if defined(__AVX512F__)
    return (vf64)_mm512_scalef_pd((__m512d)p, (__m512d)whole);
#else
    vu64 half = (vu64)shifted >> 1;
    p = p * (vf64)(half << 52) * (vf64)(((vu64)shifted - half) << 52);
    p = (vf64)((vi64)p & ~(x < -1500.0));
    return select_f64(x < 1500.0, p, x + INFINITY);
#endif
}

/* 2^(x (high + low)) */
INLINE vf32 exp2_product_f32(vf32 x, vf32 high, vf32 low) {
    vf32 shifted = x * high + EXPONENT_SHIFT_F32;
    return power_f32(x * high, shifted, rest_f32(x, high, low, shifted - EXPONENT_SHIFT_F32));
}
INLINE vf64 exp2_product_f64(vf64 x, vf64 high, vf64 low) {
    vf64 shifted = x * high + EXPONENT_SHIFT_F64;
    return power_f64(x * high, shifted, rest_f64(x, high, low, shifted - EXPONENT_SHIFT_F64));
}

/* 2^(x - y + low): the large parts of x and y cancel before anything is rounded */
INLINE vf32 exp2_difference_f32(vf32 x, vf32 y, vf32 low) {
    vf32 shifted = (x - y) + EXPONENT_SHIFT_F32;
    return power_f32(x - y, shifted, ((x - (shifted - EXPONENT_SHIFT_F32)) - y) + low);
}
INLINE vf64 exp2_difference_f64(vf64 x, vf64 y, vf64 low) {
    vf64 shifted = (x - y) + EXPONENT_SHIFT_F64;
    return power_f64(x - y, shifted, ((x - (shifted - EXPONENT_SHIFT_F64)) - y) + low);
}

INLINE vf32 exp2_f32(vf32 x) {
    vf32 shifted = x + EXPONENT_SHIFT_F32;
    return power_f32(x, shifted, x - (shifted - EXPONENT_SHIFT_F32));
}
INLINE vf64 exp2_f64(vf64 x) {
    vf64 shifted = x + EXPONENT_SHIFT_F64;
    return power_f64(x, shifted, x - (shifted - EXPONENT_SHIFT_F64));
}

INLINE vf32 exp_f32(vf32 x) {
    vf32 shifted = x * LOG2_E_F32 + EXPONENT_SHIFT_F32, whole = shifted - EXPONENT_SHIFT_F32;
    vf32 rest = rest_f32(x, broadcast_f32(LOG2_E_F32), broadcast_f32(LOG2_E_F32_LOW), whole);
    return power_f32(x * LOG2_E_F32, shifted, rest);
}
INLINE vf64 exp_f64(vf64 x) { return exp2_product_f64(x, broadcast_f64(LOG2_E), broadcast_f64(LOG2_E_LOW)); }

/* 1 / (1 + e^-x) as h / (h + h e^-x). The sum is rounded once, or all but once. Just above a power of two that costs the
 * most, and with h = 1 the quotient, just below one, would have its largest number of units there. */
#if defined(__AVX512F__)
INLINE vf32 sigmoid_f32(vf32 x) {
    const float c = 0.965617001f, h = 0.744179189f; /* as in power_f32; the roots are times h */
    static const float roots[16] __attribute__((aligned(64))) = {
        0.770677388f, 0.804798186f, 0.840429664f, 0.877638638f, 0.916495025f, 0.957071722f, 0.999444902f, 1.04369414f,
        1.0899024f, 1.13815653f, 1.18854702f, 1.2411685f, 1.29611969f, 1.35350382f, 1.41342854f, 1.47600639f};
    vf32 shifted = x * -LOG2_E_F32 + EXPONENT_SHIFT_F32, whole = shifted - EXPONENT_SHIFT_F32;
    vf32 rest = rest_f32(x, broadcast_f32(-LOG2_E_F32), broadcast_f32(-LOG2_E_F32_LOW), whole);
    __m512 root = _mm512_permutexvar_ps((__m512i)shifted, _mm512_load_ps(roots));
    return h / ((vf32)_mm512_scalef_ps(root, (__m512)whole) * polynomial_f32(c, c, rest) + h); /* NaN stays */
}
#else
INLINE vf32 sigmoid_f32(vf32 x) {
    const float h = 1.25f, most = 88.0f; /* beyond which it is below the smallest normal number, or 1 */
#if defined(__AVX2__)
    x = (vf32)_mm256_max_ps(_mm256_set1_ps(-most), _mm256_min_ps(_mm256_set1_ps(most), (__m256)x)); /* NaN stays */
#else
    x = select_f32(x > most, broadcast_f32(most), x);
    x = select_f32(x < -most, broadcast_f32(-most), x);
#endif
    vf32 shifted = x * (float)-LOG2_E + SHIFT_F32, whole = shifted - SHIFT_F32;
    vf32 f = whole * -0.693359375f - x; /* of few bits, so that the product is exact without a fused one, too */
    f = whole * 2.12194440e-4f + f;
    vf32 q = broadcast_f32(0.00138439564f);
    q = q * f + 0.00837416947f;
    q = q * f + 0.0416679978f;
    q = q * f + 0.166664317f;
    q = q * f + 0.49999994f;
    q = q * f + 1.0f;
    /* h 2^whole */
    const uint32_t one = 0x3fa00000; /* the bits of h */
    vf32 scale = (vf32)(((vu32)shifted << 23) + one);
    return h / ((scale * (q * f) + h) + scale);
}
#endif
INLINE vf64 sigmoid_f64(vf64 x) {
    const double most = 0x1.8p1023;
    vf64 e = exp_f64(-x);
    e = select_f64(e > most, broadcast_f64(most), e);
    vf64 sum = 1.0 + e, lost = 1.0 - (sum - e), share = 1.0 / sum;
    return share - share * (share * lost);
}

/* log(1 + e) for 0 <= e <= 1: 2 atanh(s) = 2 s (1 + t q(t)), s = e / (2 + e), t = s^2 <= 1/9. 2 s = e - s e, so that
 * the largest term, e, is not rounded. */
INLINE vf32 log1p_unit_f32(vf32 e) {
    vf32 s = e / (2.0f + e);
    vf32 t = s * s;
    vf32 q = broadcast_f32(0.12144830721626092f);
    q = q * t + 0.10715353878366553f;
    q = q * t + 0.1430830024700764f;
    q = q * t + 0.19999444088913917f;
    q = q * t + 0.33333337751597423f;
    return e - s * (e - 2.0f * t * q);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), without a threshold; 0 at -infinity */
INLINE vf32 softplus_f32(vf32 x) {
    vf32 negative = select_f32(x < 0.0f, x, -x);
    vf32 rest = log1p_unit_f32(exp_f32(negative));
    return select_f32(x <= 0.0f, broadcast_f32(0.0f), x) + rest; /* NaN stays */
}
INLINE vf64 softplus_f64(vf64 x) {
    double lanes[LANES_F64];
    memcpy(lanes, &x, sizeof x);
    for (int i = 0; i < LANES_F64; i++) {
        double above = lanes[i] <= 0 ? 0.0 : lanes[i]; /* NaN stays */
        lanes[i] = above + log1p(exp(-fabs(lanes[i])));
    }
    memcpy(&x, lanes, sizeof x);
    return x;
}

#endif
