/* Products of complex numbers that lie in a vector as re, im, re, im ... */
#undef LANE_PAIRS
#undef SHUFFLED
#if VECTOR_BYTES * 8 / REAL_BITS == 16
#define LANE_PAIRS(x, y) x, y, 2 + x, 2 + y, 4 + x, 4 + y, 6 + x, 6 + y, 8 + x, 8 + y, 10 + x, 10 + y, 12 + x, 12 + y, 14 + x, 14 + y
#elif VECTOR_BYTES * 8 / REAL_BITS == 8
#define LANE_PAIRS(x, y) x, y, 2 + x, 2 + y, 4 + x, 4 + y, 6 + x, 6 + y
#elif VECTOR_BYTES * 8 / REAL_BITS == 4
#define LANE_PAIRS(x, y) x, y, 2 + x, 2 + y
#else
#define LANE_PAIRS(x, y) x, y
#endif
#if defined(__clang__)
#define SHUFFLED(v, x, y) __builtin_shufflevector(v, v, LANE_PAIRS(x, y))
#else
#define SHUFFLED(v, x, y) __builtin_shuffle(v, (vmask){LANE_PAIRS(x, y)})
#endif

/* a x, or conj(a) x: the products with the imaginary part of a are subtracted in one lane of a pair, added in the other */
INLINE vreal LOCAL(complex_product)(vreal a, vreal x, const int conjugate) {
    const vmask odd = -((vmask){LANE_PAIRS(0, 1)} & 1); /* all ones in the lanes of imaginary parts */
    vreal crossed = SHUFFLED(a, 1, 1) * SHUFFLED(x, 1, 0);
    return SHUFFLED(a, 0, 0) * x + v_select(conjugate ? ~odd : odd, crossed, -crossed);
}
