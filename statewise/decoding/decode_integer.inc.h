/* The products of decode_integer.h, with vpdpwssd if VNNI is 1. */

#if VNNI
#define TARGET __attribute__((target("avx512vnni")))
#define VARIANT(name) name##_vnni
#else
#define TARGET
#define VARIANT(name) name##_plain
#endif

/* sum + the products of both halves of each lane. The empty assembly keeps the sums in the order of the source: GCC 12
 * would form all products of a word first, and there are not registers for so many. */
INLINE TARGET vi32 VARIANT(add_pairs)(vi32 sum, vi32 w, vi32 x) {
#if VNNI
    return (vi32)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(__AVX512F__)
    sum += (vi32)_mm512_madd_epi16((__m512i)w, (__m512i)x);
    __asm__("" : "+v"(sum));
    return sum;
#elif defined(__AVX2__)
    sum += (vi32)_mm256_madd_epi16((__m256i)w, (__m256i)x);
    __asm__("" : "+x"(sum));
    return sum;
#elif defined(__SSE2__)
    sum += (vi32)_mm_madd_epi16((__m128i)w, (__m128i)x);
    __asm__("" : "+x"(sum));
    return sum;
#else
    return sum + ((w << 16) >> 16) * ((x << 16) >> 16) + (w >> 16) * (x >> 16);
#endif
}

/* A segment: n sequences, `phases` accumulators of each, of which the caller adds up. */
INLINE TARGET void VARIANT(add_segment)(const int n, const int phases, const int precision, const int prefetch,
                                        const multiplication *p, const char *block, const int16_t *x, int64_t first,
                                        int64_t end, vi32 sums[][PARTS]) {
    const int64_t bytes = BLOCK * (precision == INT8 ? 8 : 4); /* of a word */
    for (int64_t k = first; k < end; k += WORD) {
        const char *words = block + k / WORD * bytes;
        ask_for(prefetch, words + p->ahead, bytes);
        vi32 word[PARTS], w[PARTS];
        for (int part = 0; part < PARTS; part++)
            if (precision == INT4) memcpy(&word[part], words + part * VECTOR_BYTES, sizeof word[part]);
#pragma GCC unroll 4
        for (int j = 0; j < WORD / 2; j++) {
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                w[part] = precision == INT4 ? (vi32)((vu32)word[part] >> (4 * j)) & 0x000f000f
                                            : widen(words + (j * BLOCK + part * LANES) * 2);
#pragma GCC unroll 8
            for (int b = 0; b < n; b++) {
                vi32 pair = pair_everywhere(x + b * p->x_stride * 2 + k + 2 * j);
#pragma GCC unroll 4
                for (int part = 0; part < PARTS; part++) {
                    vi32 *sum = &sums[b * phases + j % phases][part];
                    *sum = VARIANT(add_pairs)(*sum, w[part], pair);
                }
            }
        }
    }
}

/* sums (n, 16) = the block times the x of n sequences */
INLINE TARGET void VARIANT(multiply_rows)(const int n, const int precision, const int prefetch, const multiplication *p,
                                          int64_t number, int64_t first_row, float *sums) {
    const matrix *w = p->w;
    const int phases = n == 1 ? 4 : n == 2 || PARTS == 1 ? 2 : 1; /* of eight a sum would wait for itself */
    const char *block = block_of(w, number);
    const int64_t first_scale = number * groups_of(w) * BLOCK;
    const char *scales = scales_from(w, first_scale);
    const float *w_offsets = w->offsets ? w->offsets + first_scale : NULL;
    const float *row = (const float *)p->x + first_row * p->x_stride;
    int64_t n_columns = w->n_columns, n_tiles = (n_columns + TILE - 1) / TILE, group = 0, segment = 0;
    int64_t end_of_group = w->group;
    const float *x_scales = row + words_of(n_columns) * (WORD / 2);
    const int32_t *offsets = (const int32_t *)(const void *)(x_scales + n_tiles);
    vf32 total[AT_ONCE_INTEGER][PARTS];
    memset(total, 0, sizeof total);
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        int64_t end_of_tile = (tile + 1) * TILE < n_columns ? (tile + 1) * TILE : n_columns;
        vf32 tile_total[AT_ONCE_INTEGER][PARTS];
        memset(tile_total, 0, sizeof tile_total);
        for (int64_t first = tile * TILE, end; first < end_of_tile; first = end, segment++) {
            end = end_of_group < end_of_tile ? end_of_group : end_of_tile;
            vi32 sum[16][PARTS];
            for (int b = 0; b < n; b++)
                for (int j = 0; j < phases; j++)
                    for (int part = 0; part < PARTS; part++) {
                        int32_t offset = precision == INT4 && j == 0 && !w_offsets ? offsets[b * p->x_stride + segment] : 0;
                        sum[b * phases + j][part] = (vi32){0} + offset;
                    }
            VARIANT(add_segment)(n, phases, precision, prefetch, p, block, (const int16_t *)(const void *)row, first,
                                 end, sum);
            for (int part = 0; part < PARTS; part++) {
                int64_t lanes = group * BLOCK + part * LANES;
                vf32 scale = w->wide ? load_f32((const float *)(const void *)scales + lanes)
                                     : load_bf16((const uint16_t *)(const void *)scales + lanes);
                for (int b = 0; b < n; b++) {
                    vi32 whole = sum[b * phases][part];
                    for (int j = 1; j < phases; j++) whole += sum[b * phases + j][part];
                    tile_total[b][part] += scale * __builtin_convertvector(whole, vf32);
                    if (w_offsets)
                        tile_total[b][part] +=
                            load_f32(w_offsets + lanes) * (-0.125f * (float)offsets[b * p->x_stride + segment]);
                }
            }
            if (end == end_of_group) {
                group++;
                end_of_group += w->group;
            }
        }
        for (int b = 0; b < n; b++)
            for (int part = 0; part < PARTS; part++) total[b][part] += tile_total[b][part] * x_scales[b * p->x_stride + tile];
    }
    for (int b = 0; b < n; b++)
        for (int part = 0; part < PARTS; part++) store_f32(sums + b * BLOCK + part * LANES, total[b][part]);
}

INLINE TARGET void VARIANT(multiply_integer)(const int precision, const int prefetch, const multiplication *p, int64_t block,
                                             float *sums) {
    int64_t b = 0;
#define SEVERAL(n)                                               \
    for (; AT_ONCE_INTEGER >= n && b + n <= p->n_rows; b += n) \
        VARIANT(multiply_rows)(n, precision, prefetch, p, block, b, sums + b * BLOCK);
    SEVERAL(8)
    SEVERAL(4)
    SEVERAL(2)
    SEVERAL(1)
#undef SEVERAL
}

#define INTEGER_PRODUCT(PRECISION_, PREFETCH)                                                                          \
    static TARGET void VARIANT(multiply_##PRECISION_##_##PREFETCH)(const multiplication *p, int64_t block, float *sums) { \
        VARIANT(multiply_integer)(PRECISION_, PREFETCH, p, block, sums);                                               \
    }
INTEGER_PRODUCT(INT8, NONE)
INTEGER_PRODUCT(INT8, NEAR)
INTEGER_PRODUCT(INT8, PASSING)
INTEGER_PRODUCT(INT4, NONE)
INTEGER_PRODUCT(INT4, NEAR)
INTEGER_PRODUCT(INT4, PASSING)
#undef INTEGER_PRODUCT
#undef TARGET
#undef VARIANT
