/* Vectors of one instruction set, and the elementary functions of the models on them.
 *
 * The build compiles every file once for each instruction set, with ISA (avx512, avx2, portable) and VECTOR_BYTES
 * (64, 32, 16) defined. The types are GCC's and clang's vector extensions, so `portable` is also the path for Arm.
 * No function here loses a NaN or an infinity; an exponential below 2^-126 (2^-1022) may become zero.
 */
#ifndef STATEWISE_VECTOR_H
#define STATEWISE_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define LANES (VECTOR_BYTES / 4)        /* float32 lanes of a vector */
#define LANES_F64 (VECTOR_BYTES / 8)    /* float64 lanes of a vector */

#define INLINE static inline __attribute__((always_inline, unused))

#define JOIN3_(a, b, c) a##_##b##_##c
#define JOIN3(a, b, c) JOIN3_(a, b, c)
#define JOIN2_(a, b) a##_##b
#define JOIN2(a, b) JOIN2_(a, b)
/* a function of the library, of one precision */
#define EXPORT(name) __attribute__((visibility("default"))) JOIN3(name, PRECISION, ISA)
/* a function of the library without a precision of its own */
#define EXPORT_PLAIN(name) __attribute__((visibility("default"))) JOIN2(name, ISA)
/* a static function that each precision has its own of */
#define LOCAL(name) JOIN2(name, PRECISION)

typedef float vf32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi32 __attribute__((vector_size(VECTOR_BYTES)));
typedef double vf64 __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t vi64 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t vu16 __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint32_t vu32 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t vu64 __attribute__((vector_size(VECTOR_BYTES)));

/* The same, at any address. */
typedef float vf32_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef double vf64_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
typedef uint16_t vu16_unaligned __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

INLINE vf32 load_f32(const float *from) { return (vf32) * (const vf32_unaligned *)from; }
INLINE void store_f32(float *to, vf32 value) { *(vf32_unaligned *)to = value; }
INLINE vf64 load_f64(const double *from) { return (vf64) * (const vf64_unaligned *)from; }
INLINE void store_f64(double *to, vf64 value) { *(vf64_unaligned *)to = value; }

/* The first `count` lanes; the rest are zero, and nothing beyond them is read or written. Of none the address may be
   NULL, which memcpy is not to be given. */
INLINE vf32 load_some_f32(const float *from, int64_t count) {
    vf32 value = {0};
    if (count > 0) memcpy(&value, from, sizeof(float) * (size_t)count);
    return value;
}
INLINE void store_some_f32(float *to, vf32 value, int64_t count) {
    if (count > 0) memcpy(to, &value, sizeof(float) * (size_t)count);
}
INLINE vf64 load_some_f64(const double *from, int64_t count) {
    vf64 value = {0};
    if (count > 0) memcpy(&value, from, sizeof(double) * (size_t)count);
    return value;
}
INLINE void store_some_f64(double *to, vf64 value, int64_t count) {
    if (count > 0) memcpy(to, &value, sizeof(double) * (size_t)count);
}

INLINE vf32 broadcast_f32(float value) { return value - (vf32){0}; } /* adding zero would turn -0 into 0 */
INLINE vf64 broadcast_f64(double value) { return value - (vf64){0}; }

/* condition is all ones or all zeros in each lane, as comparisons give it */
INLINE vf32 select_f32(vi32 condition, vf32 yes, vf32 no) {
    return (vf32)((condition & (vi32)yes) | (~condition & (vi32)no));
}
INLINE vf64 select_f64(vi64 condition, vf64 yes, vf64 no) {
    return (vf64)((condition & (vi64)yes) | (~condition & (vi64)no));
}

/* The lanes are added in pairs, halves first: the same order on every run. */
INLINE float sum_f32(vf32 value) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)value), _mm512_extractf32x8_ps((__m512)value, 1));
#else
    __m256 half = (__m256)value;
#endif
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
#else
    float lanes[LANES];
    memcpy(lanes, &value, sizeof value);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
#endif
}
INLINE double sum_f64(vf64 value) {
    double lanes[LANES_F64];
    memcpy(lanes, &value, sizeof value);
#pragma GCC unroll 4
    for (int half = LANES_F64 / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* 2^x, relative error about 1e-7 (rounding), exactly 1 at 0. 2^f = 1 + f q(f) on |f| <= 1/2, q of least relative error. */
INLINE vf32 exp2_f32(vf32 x) {
#if defined(__AVX512F__)
    /* What rounding to a whole number leaves; of an infinity that is 0, so that 2^whole decides. */
    vf32 f = (vf32)_mm512_reduce_ps((__m512)x, 0);
    vf32 whole = x - f;
#else
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, which is then in the low bits */
    vf32 shifted = x + shift;
    vf32 whole = shifted - shift;
    vf32 f = x - whole;
#endif
    vf32 p = broadcast_f32(0.00015353697503460653f);
    p = p * f + 0.0013398896817005908f;
    p = p * f + 0.0096184362067396978f;
    p = p * f + 0.055503323955339304f;
    p = p * f + 0.24022647922257037f;
    p = p * f + 0.69314720291014293f;
    p = p * f + 1.0f;
#if defined(__AVX512F__)
    return (vf32)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    vf32 scaled = (vf32)((vu32)p + ((vu32)shifted << 23));
    scaled = select_f32(x < -126.0f, broadcast_f32(0.0f), scaled);
    scaled = select_f32(x >= 127.5f, select_f32(x >= 128.0f, broadcast_f32(INFINITY), p * 0x1p127f * 2.0f), scaled);
    return select_f32(x != x, x, scaled);
#endif
}

/* 2^x in float64 to rounding: the Taylor polynomial of degree 13 on |f| <= 1/2. */
INLINE vf64 exp2_f64(vf64 x) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    vf64 shifted = x + shift;
    vf64 whole = shifted - shift;
    vf64 f = x - whole;
    static const double coefficients[13] = {
        1.3691488853904128881e-12, 2.5678435993488205141e-11, 4.4455382718708114975e-10, 7.0549116208011233299e-9,
        1.0178086009239699728e-7,  1.3215486790144309488e-6,  1.5252733804059840280e-5,  1.5403530393381609954e-4,
        1.3333558146428443423e-3,  9.6181291076284771620e-3,  5.5504108664821579953e-2,  2.4022650695910071233e-1,
        6.9314718055994530942e-1};
    vf64 p = broadcast_f64(coefficients[0]);
    for (int i = 1; i < 13; i++) p = p * f + coefficients[i];
    p = p * f + 1.0;
    vf64 scaled = (vf64)((vu64)p + ((vu64)shifted << 52));
    scaled = select_f64(x < -1022.0, broadcast_f64(0.0), scaled);
    scaled = select_f64(x >= 1023.5, select_f64(x >= 1024.0, broadcast_f64(INFINITY), p * 0x1p1023 * 2.0), scaled);
    return select_f64(x != x, x, scaled);
}

#define LOG2_E 1.4426950408889634074
#define LN_2 0.69314718055994530942

/* 1 / (1 + e^-x) */
INLINE vf32 sigmoid_f32(vf32 x) { return 1.0f / (1.0f + exp2_f32(x * (float)-LOG2_E)); }
INLINE vf64 sigmoid_f64(vf64 x) { return 1.0 / (1.0 + exp2_f64(x * -LOG2_E)); }

/* log(1 + e) for 0 <= e <= 1: 2 atanh(s) = 2 s (1 + t q(t)), s = e / (2 + e), t = s^2 <= 1/9 */
INLINE vf32 log1p_unit_f32(vf32 e) {
    vf32 s = e / (2.0f + e);
    vf32 t = s * s;
    vf32 q = broadcast_f32(0.12144830721626092f);
    q = q * t + 0.10715353878366553f;
    q = q * t + 0.1430830024700764f;
    q = q * t + 0.19999444088913917f;
    q = q * t + 0.33333337751597423f;
    return 2.0f * s * (1.0f + t * q);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), without a threshold; 0 at -infinity */
INLINE vf32 softplus_f32(vf32 x) {
    vf32 negative = select_f32(x < 0.0f, x, -x);
    vf32 rest = log1p_unit_f32(exp2_f32(negative * (float)LOG2_E));
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

/* bfloat16 is the upper half of a float32; to it, halves round to even, and a NaN stays one. */
INLINE float float_of_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
INLINE uint16_t bf16_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE vf32 load_bf16(const uint16_t *from) {
    vu16 bits = (vu16) * (const vu16_unaligned *)from;
    return (vf32)(__builtin_convertvector(bits, vu32) << 16);
}
INLINE void store_bf16(uint16_t *to, vf32 value) {
    vu32 bits = (vu32)value;
    vu32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu32 not_a_number = (bits >> 16) | 0x40;
    vi32 is_nan = value != value;
    vu32 chosen = ((vu32)is_nan & not_a_number) | (~(vu32)is_nan & rounded);
    *(vu16_unaligned *)to = __builtin_convertvector(chosen, vu16);
}

#endif
