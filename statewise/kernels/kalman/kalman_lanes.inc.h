/* A number of one row (KALMAN_ONE), or one of each row in the lanes of a vector. */
#undef num
#undef num_mask
#undef NUM_LANES
#undef LANED
#undef LANE
#undef KALMAN_COPIES
#if KALMAN_ONE
#define num real
#define num_mask int
#define NUM_LANES 1
#define KALMAN_COPIES INLINE
#define LANED(name) JOIN2(LOCAL(name), one)
#define LANE(value, i) (value)
#else
#define num vreal
#define num_mask vmask
#define NUM_LANES REAL_LANES
#define KALMAN_COPIES __attribute__((noinline, unused)) static
#define LANED(name) JOIN2(LOCAL(name), lanes)
#define LANE(value, i) (value)[i]
#endif

/* Which rows the lanes stand for: `count` of them, the last of which also fills the lanes that are left. */
typedef struct {
    int64_t row[NUM_LANES], count;
} LANED(rows);

INLINE LANED(rows) LANED(rows_of)(int64_t item, int64_t n_rows) {
    LANED(rows) of;
    int64_t first = item * NUM_LANES;
    of.count = n_rows - first < NUM_LANES ? n_rows - first : NUM_LANES;
    for (int64_t i = 0; i < NUM_LANES; i++) of.row[i] = first + (i < of.count ? i : of.count - 1);
    return of;
}

INLINE num LANED(same)(real value) {
#if KALMAN_ONE
    return value;
#else
    return v_broadcast(value);
#endif
}
INLINE num LANED(choose)(num_mask condition, num yes, num no) {
#if KALMAN_ONE
    return condition ? yes : no;
#else
    return v_select(condition, yes, no);
#endif
}
/* `count` neighbours in memory of each row, into as many numbers, and back. In lanes they are functions of their own: a
 * copy of them at each place that reads would be most of the code. */
KALMAN_COPIES void LANED(load_all)(num *to, const real *at, int64_t stride, int64_t count, const LANED(rows) *of) {
    if (NUM_LANES > 1 && stride == 0)
        for (int64_t c = 0; c < count; c++) to[c] = LANED(same)(at[c]);
    else
        for (int64_t c = 0; c < count; c++)
            for (int64_t i = 0; i < NUM_LANES; i++) LANE(to[c], i) = at[of->row[i] * stride + c];
}
KALMAN_COPIES void LANED(store_all)(real *at, int64_t stride, const num *from, int64_t count, const LANED(rows) *of) {
    for (int64_t i = 0; i < of->count; i++) {
        real *to = at + of->row[i] * stride;
        for (int64_t c = 0; c < count; c++) to[c] = LANE(from[c], i);
    }
}
/* 1 where a byte is set, else 0 */
KALMAN_COPIES void LANED(load_flags)(num *to, const uint8_t *at, int64_t stride, int64_t count, const LANED(rows) *of) {
    for (int64_t c = 0; c < count; c++)
        for (int64_t i = 0; i < NUM_LANES; i++) LANE(to[c], i) = at[of->row[i] * stride + c] ? 1 : 0;
}
/* 1 where the step is not padding, else 0 */
KALMAN_COPIES void LANED(load_real)(num *to, const int64_t *lengths, int64_t t, const LANED(rows) *of) {
    for (int64_t i = 0; i < NUM_LANES; i++) LANE(*to, i) = t < lengths[of->row[i]] ? 1 : 0;
}
INLINE num LANED(root)(num value) {
    for (int64_t i = 0; i < NUM_LANES; i++)
        LANE(value, i) = sizeof(real) == 4 ? (real)sqrtf((float)LANE(value, i)) : (real)sqrt((double)LANE(value, i));
    return value;
}

/* The natural logarithm of numbers that are not negative. In lanes: x = 2^e m, sqrt(1/2) <= m < sqrt(2), and
 * log m = 2 atanh(s), s = (m - 1) / (m + 1), by its series up to rounding (s^2 < 0.0295). */
#undef KALMAN_BITS
#undef KALMAN_ROOT_HALF
#undef KALMAN_TERMS
#if REAL_BITS == 32
#define KALMAN_BITS 23
#define KALMAN_ROOT_HALF 0x3F3504F3
#define KALMAN_TERMS 11
#else
#define KALMAN_BITS 52
#define KALMAN_ROOT_HALF 0x3FE6A09E667F3BCD
#define KALMAN_TERMS 25
#endif
INLINE num LANED(logarithm)(num x) {
#if KALMAN_ONE
    return sizeof(real) == 4 ? (real)logf((float)x) : (real)log((double)x);
#else
    vmask exponent = ((vmask)x - KALMAN_ROOT_HALF) >> KALMAN_BITS;
    vreal m = (vreal)((vmask)x - (exponent << KALMAN_BITS));
    vreal s = (m - 1) / (m + 1), t = s * s, q = v_broadcast((real)1 / KALMAN_TERMS);
    for (int i = KALMAN_TERMS - 2; i > 1; i -= 2) q = q * t + (real)1 / (real)i;
    vreal value = __builtin_convertvector(exponent, vreal) * (real)LN_2 + 2 * s * (q * t + 1);
    value = v_select(x == 0, v_broadcast(-(real)INFINITY), value);
    return v_select((x != x) | (x == (real)INFINITY), x, value);
#endif
}
