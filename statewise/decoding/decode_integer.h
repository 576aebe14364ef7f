/* A block of an INT8 or INT4 matrix times the x of all sequences, in integers of 16 bits.
 *
 * x is rounded once for each matrix: of every TILE columns the number of the largest size becomes 32767, and the others
 * whole numbers of the same scale. A product of pairs then is exact in 32 bits, as is the sum over a segment, which ends
 * where a tile or a group of columns ends. So the order within a segment changes no bit, nor does the instruction that
 * sums it: decode_integer.inc.h is compiled with vpdpwssd (AVX512-VNNI) and without.
 *   y = sum over tiles of x's scale (sum over segments of W's scale (sum of q x), and W's offset (sum of x))
 * NaN or infinity in a tile makes its scale, and with it y, NaN.
 *
 * Of one sequence there lie, in floats: words x 4 (pairs of integers), a scale for each tile, and for INT4, and where W has
 * offsets, -8 times the sum of the integers of each segment: the numbers of INT4 without offsets are packed as q + 8.
 */
#ifndef STATEWISE_DECODE_INTEGER_H
#define STATEWISE_DECODE_INTEGER_H

#include "decode_matrix.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef int16_t vi16 __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t vi16_half __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef int16_t vi16_half_unaligned __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef int8_t vi8_half __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef int8_t vi8_half_unaligned __attribute__((vector_size(VECTOR_BYTES / 2), aligned(1), may_alias));

#define LARGEST 32767.0f
#define AT_ONCE_INTEGER (PARTS > 1 ? 4 : 8) /* sequences that a column is read once for */

/* Where the segment that begins at a column ends. */
INLINE int64_t segment_end(int64_t first, int64_t n_columns, int64_t group) {
    int64_t end = (first / TILE + 1) * TILE, end_of_group = (first / group + 1) * group;
    end = end_of_group < end ? end_of_group : end;
    return n_columns < end ? n_columns : end;
}

/* n <= TILE numbers to integers; what they are to be multiplied with comes back */
INLINE float round_tile(const float *x, int64_t n, int16_t *out) {
    vf32 most = {0}, wrong = {0};
    for (int64_t k = 0; k < n; k += LANES) {
        vf32 value = load_upto(x + k, n - k);
        vf32 size = select_f32(value < 0.0f, -value, value);
        most = select_f32(size > most, size, most);
        wrong += value * 0.0f; /* NaN if there is NaN or infinity */
    }
    float largest = 0;
    for (int i = 0; i < LANES; i++) largest = most[i] > largest ? most[i] : largest;
    float check = sum_f32(wrong), scale = largest > 0 && check == 0 ? LARGEST / largest : 0;
    if (scale > 3e38f) scale = 0; /* of what is nearly subnormal nothing is left */
    for (int64_t k = 0; k < n; k += LANES) {
        /* adding 1.5 * 2^23 rounds to a whole number, which is then in the low bits */
        vi32 whole = (vi32)(load_upto(x + k, n - k) * scale + 12582912.0f) - 0x4b400000;
        vi16_half narrow = __builtin_convertvector(scale > 0 ? whole : (vi32){0}, vi16_half);
        memcpy(out + k, &narrow, sizeof(int16_t) * (size_t)(n - k < LANES ? n - k : LANES));
    }
    return largest / LARGEST + check;
}

/* What a product with w needs of the x of one sequence */
static void round_row(const matrix *w, const float *x, float *to) {
    int64_t n = w->n_columns, words = words_of(n), n_tiles = (n + TILE - 1) / TILE;
    int16_t *integers = (int16_t *)(void *)to;
    float *scales = to + words * (WORD / 2);
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        int64_t first = tile * TILE, left = n - first;
        scales[tile] = round_tile(x + first, left < TILE ? left : TILE, integers + first);
    }
    for (int64_t k = n; k < words * WORD; k++) integers[k] = 0;
    if (w->precision != INT4 && !w->offsets) return;
    int32_t *offsets = (int32_t *)(void *)(scales + n_tiles);
    for (int64_t first = 0, end; first < n; first = end) {
        end = segment_end(first, n, w->group);
        int32_t sum = 0;
        for (int64_t k = first; k < end; k++) sum += integers[k];
        *offsets++ = -8 * sum;
    }
}

/* Pairs of integers from bytes; see widen_u16 of vector.h */
INLINE vi32 widen(const char *from) {
#if defined(__AVX512BW__)
    return (vi32)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)from));
#elif defined(__AVX2__)
    return (vi32)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)from));
#else
    vi8_half bytes = (vi8_half) * (const vi8_half_unaligned *)(const void *)from;
    return (vi32)__builtin_convertvector(bytes, vi16);
#endif
}

INLINE vi32 pair_everywhere(const int16_t *from) {
    int32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (vi32){0} + pair;
}

#define VNNI 0
#include "decode_integer.inc.h"
#undef VNNI
#if defined(__AVX512F__)
#define VNNI 1
#include "decode_integer.inc.h"
#undef VNNI
#endif

#endif
