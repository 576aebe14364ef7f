/* Vectors of one instruction set. What is computed with them besides sums and products is in exponential.h.
 *
 * The build compiles every file once for each instruction set, with ISA (avx512, avx2, portable) and VECTOR_BYTES
 * (64, 32, 16) defined. The types are GCC's and clang's vector extensions, so `portable` is also the path for Arm.
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

/* A product that is rounded by itself: no one operation is made of it and a sum. Of two products in a sum the compiler
 * may take either into it, here this one and there that one. */
#if defined(__x86_64__)
#define KEEP(value) __asm__("" : "+v"(value))
#elif defined(__aarch64__)
#define KEEP(value) __asm__("" : "+w"(value))
#else
#define KEEP(value) __asm__("" : "+m"(value))
#endif
INLINE vf32 alone_f32(vf32 value) {
    KEEP(value);
    return value;
}
INLINE vf64 alone_f64(vf64 value) {
    KEEP(value);
    return value;
}

/* a b + c in one rounding where the processor does it so, in two elsewhere: one or the other wherever it stands. What the
 * compiler makes of a b + c is its own choice, and may be another in an iteration that it takes out of a loop. */
#if defined(__FMA__) && VECTOR_BYTES == 64
INLINE vf32 fused_f32(vf32 a, vf32 b, vf32 c) { return (vf32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__FMA__) && VECTOR_BYTES == 32
INLINE vf32 fused_f32(vf32 a, vf32 b, vf32 c) { return (vf32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__FP_FAST_FMAF)
INLINE vf32 fused_f32(vf32 a, vf32 b, vf32 c) {
    for (int i = 0; i < LANES; i++) a[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return a;
}
#else
INLINE vf32 fused_f32(vf32 a, vf32 b, vf32 c) { return alone_f32(a * b) + c; }
#endif
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
INLINE float fused_one_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
INLINE float fused_one_f32(float a, float b, float c) {
    float product = a * b;
    KEEP(product);
    return product + c;
}
#endif

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
/* GCC 12 makes two halves of a conversion to twice the width, and joins them: four instructions for one. */
INLINE vu32 widen_u16(const uint16_t *from) {
#if defined(__AVX512F__)
    return (vu32)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
#elif defined(__AVX2__)
    return (vu32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
#else
    vu16 narrow = (vu16) * (const vu16_unaligned *)from;
    return __builtin_convertvector(narrow, vu32);
#endif
}
INLINE vf32 load_bf16(const uint16_t *from) { return (vf32)(widen_u16(from) << 16); }
INLINE void store_bf16(uint16_t *to, vf32 value) {
    vu32 bits = (vu32)value;
    vu32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu32 not_a_number = (bits >> 16) | 0x40;
    vi32 is_nan = value != value;
    vu32 chosen = ((vu32)is_nan & not_a_number) | (~(vu32)is_nan & rounded);
#if defined(__AVX512F__)
    _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16((__m512i)chosen));
#elif defined(__AVX2__)
    __m256i halves = _mm256_packus_epi32((__m256i)chosen, (__m256i)chosen);
    _mm_storeu_si128((void *)to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
#else
    *(vu16_unaligned *)to = __builtin_convertvector(chosen, vu16);
#endif
}

#include "exponential.h"

#endif
