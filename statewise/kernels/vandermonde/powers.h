/* Powers A^0, A^1, A^2, ... of complex numbers, as accurate as float64 allows, however long.
 *
 * Repeated squaring doubles the relative error each time. So each square keeps what its rounding lost, by error-free
 * products (Ogita, Rump & Oishi 2005, "Accurate sum and dot product", section 3, with a fused multiply-add), and a
 * power is the product of at most log2(count) squares. A real A is a complex one whose imaginary part is 0.
 * Planes: real parts of all states, then imaginary parts; `stride` numbers a plane, whole vectors of float64.
 */
#ifndef STATEWISE_POWERS_H
#define STATEWISE_POWERS_H

#include "vector.h"

#if defined(__FMA__)
#include <immintrin.h>
#endif

/* a b + c with one rounding */
INLINE vf64 fused(vf64 a, vf64 b, vf64 c) {
#if defined(__AVX512F__)
    return (vf64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__) && VECTOR_BYTES == 32
    return (vf64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    for (int i = 0; i < LANES_F64; i++) a[i] = __builtin_fma(a[i], b[i], c[i]);
    return a;
#endif
}

/* A product that the compiler may not merge with the addition that it goes into. */
INLINE vf64 rounded(vf64 product) {
#if defined(__x86_64__)
    __asm__("" : "+x"(product));
#elif defined(__aarch64__)
    __asm__("" : "+w"(product));
#else
    volatile vf64 kept = product;
    product = kept;
#endif
    return product;
}

INLINE vf64 finite_or_zero(vf64 x) { return select_f64(x - x == 0.0, x, broadcast_f64(0.0)); }

typedef struct {
    vf64 re, im;
} complex_f64;

/* The square of x, and in *lost what rounding has taken from it so far: the true power is found (1 + lost). */
INLINE complex_f64 compensated_square(complex_f64 x, complex_f64 *lost) {
    vf64 re_re = rounded(x.re * x.re), im_im = rounded(x.im * x.im), re_im = rounded(x.re * x.im);
    complex_f64 square = {re_re - im_im, 2.0 * re_im};
    vf64 part = square.re - re_re; /* error-free subtraction (Knuth's two-sum) */
    vf64 error_re = (re_re - (square.re - part)) - (im_im + part);
    error_re += fused(x.re, x.re, -re_re) - fused(x.im, x.im, -im_im);
    vf64 error_im = 2.0 * fused(x.re, x.im, -re_im);
    vf64 size = square.re * square.re + square.im * square.im;
    vf64 relative_re = (error_re * square.re + error_im * square.im) / size;
    vf64 relative_im = (error_im * square.re - error_re * square.im) / size;
    lost->re = 2.0 * lost->re + finite_or_zero(relative_re); /* a power that is 0 has lost nothing */
    lost->im = 2.0 * lost->im + finite_or_zero(relative_im);
    return square;
}

/* squares[level] = A^(2^level), two planes each; the first is there already. */
INLINE void all_squares(double *squares, int64_t n_levels, int64_t stride, const int compensated) {
    for (int64_t k = 0; k < stride; k += LANES_F64) {
        complex_f64 x = {load_f64(squares + k), load_f64(squares + stride + k)}, lost = {{0}, {0}};
        for (int64_t level = 1; level < n_levels; level++) {
            double *to = squares + 2 * level * stride + k;
            if (compensated) {
                x = compensated_square(x, &lost);
                store_f64(to, x.re + (x.re * lost.re - x.im * lost.im));
                store_f64(to + stride, x.im + (x.re * lost.im + x.im * lost.re));
            } else {
                x = (complex_f64){x.re * x.re - x.im * x.im, 2.0 * x.re * x.im};
                store_f64(to, x.re);
                store_f64(to + stride, x.im);
            }
        }
    }
}

/* rows[t] = base^t for t < count, two planes each, by doubling; squares: base^1, base^2, base^4 ... */
INLINE void powers_by_state(double *rows, int64_t count, const double *squares, int64_t stride) {
    for (int64_t k = 0; k < stride; k++) rows[k] = 1.0;
    for (int64_t k = 0; k < stride; k++) rows[stride + k] = 0.0;
    for (int64_t have = 1; have < count; have *= 2, squares += 2 * stride) {
        int64_t more = have < count - have ? have : count - have;
        for (int64_t k = 0; k < stride; k += LANES_F64) {
            vf64 re = load_f64(squares + k), im = load_f64(squares + stride + k);
            for (int64_t t = 0; t < more; t++) {
                const double *from = rows + 2 * t * stride + k;
                double *to = rows + 2 * (have + t) * stride + k;
                vf64 x = load_f64(from), y = load_f64(from + stride);
                store_f64(to, x * re - y * im);
                store_f64(to + stride, x * im + y * re);
            }
        }
    }
}

/* The same for one state, its powers one after the other: re[t] + i im[t] = base^t. */
INLINE void powers_by_time(double *restrict re, double *restrict im, int64_t count, const double *squares,
                           int64_t stride) {
    re[0] = 1.0;
    im[0] = 0.0;
    for (int64_t have = 1; have < count; have *= 2, squares += 2 * stride) {
        int64_t more = have < count - have ? have : count - have;
        double x = squares[0], y = squares[stride];
        double *restrict to_re = re + have, *restrict to_im = im + have;
        for (int64_t t = 0; t < more; t++) {
            to_re[t] = re[t] * x - im[t] * y;
            to_im[t] = re[t] * y + im[t] * x;
        }
    }
}

#endif
