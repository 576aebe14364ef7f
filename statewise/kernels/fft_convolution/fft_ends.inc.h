/* The first pass of the transform, which reads the sequence where it lies, and the inverse's last, which writes it. */

/* Where the numbers of the places [0, n) of a window lie: [begin, middle) in `past`, [middle, end) in `present`, both
 * given as if they began at place 0; elsewhere they are zero, and writing there is left out. */
typedef struct {
    real *past, *present;
    int64_t stride, begin, middle, end;
    int64_t lanes; /* how many of a vector's channels there are */
} LOCAL(window);

INLINE vreal LOCAL(window_load)(const LOCAL(window) *window, int64_t place, const int whole) {
    if (place < window->begin || place >= window->end) return (vreal){0};
    const real *from = (place < window->middle ? window->past : window->present) + place * window->stride;
    return whole ? v_load(from) : v_load_some(from, window->lanes);
}
INLINE void LOCAL(window_store)(const LOCAL(window) *window, int64_t place, vreal value, const int whole) {
    if (place < window->begin || place >= window->end) return;
    real *to = (place < window->middle ? window->past : window->present) + place * window->stride;
    if (whole) v_store(to, value);
    else v_store_some(to, value, window->lanes);
}

/* half: nothing lies at the places [m, n), where imaginary parts come from */
INLINE void LOCAL(fft_first)(const int64_t radix, const int whole, const int half, const LOCAL(window) *window,
                             int64_t points, const real *factors, real *data) {
    const LOCAL(window) from = *window;
    int64_t part = points / radix;
    real w[8];
    for (int64_t i = 0; i < LOCAL(fft_n_factors)(radix); i++) w[i] = factors[i];
    for (int64_t t = 0; t < part; t++) {
        LOCAL(number) x[8];
#pragma GCC unroll 8
        for (int64_t j = 0; j < radix; j++) {
            x[j].re = LOCAL(window_load)(&from, j * part + t, whole);
            x[j].im = half ? (vreal){0} : LOCAL(window_load)(&from, points + j * part + t, whole);
        }
        LOCAL(split)(radix, x, w);
#pragma GCC unroll 8
        for (int64_t j = 0; j < radix; j++) LOCAL(point_to)(data + (j * part + t) * POINT, x[j]);
    }
}
INLINE void LOCAL(fft_last)(const int64_t radix, const int whole, const int half, const LOCAL(window) *window,
                            int64_t points, const real *factors, const real *data) {
    const LOCAL(window) to = *window;
    int64_t part = points / radix;
    const real scale = (real)1 / (real)points;
    real w[8];
    for (int64_t i = 0; i < LOCAL(fft_n_factors)(radix); i++) w[i] = factors[i];
    for (int64_t t = 0; t < part; t++) {
        LOCAL(number) x[8];
#pragma GCC unroll 8
        for (int64_t j = 0; j < radix; j++) x[j] = LOCAL(point_at)(data + (j * part + t) * POINT);
        LOCAL(unite)(radix, x, w);
#pragma GCC unroll 8
        for (int64_t j = 0; j < radix; j++) {
            LOCAL(window_store)(&to, j * part + t, x[j].re * scale, whole);
            if (!half) LOCAL(window_store)(&to, points + j * part + t, x[j].im * scale, whole);
        }
    }
}

#define FFT_ENDS(name, data_type) \
    static void LOCAL(name##_as)(int64_t radix, const LOCAL(window) *window, int64_t points, const real *factors, \
                                 data_type data) { \
        const int whole = window->lanes == REAL_LANES, half = window->end <= points; \
        FFT_END(name, 8) FFT_END(name, 4) FFT_END(name, 5) FFT_END(name, 3) FFT_END(name, 2) \
    }
#define FFT_END(name, constant) \
    if (radix == constant) { \
        if (!whole) LOCAL(name)(constant, 0, 0, window, points, factors, data); \
        else if (half) LOCAL(name)(constant, 1, 1, window, points, factors, data); \
        else LOCAL(name)(constant, 1, 0, window, points, factors, data); \
        return; \
    }
FFT_ENDS(fft_first, real *)
FFT_ENDS(fft_last, const real *)
#undef FFT_ENDS
#undef FFT_END
