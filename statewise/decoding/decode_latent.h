/* Multi-head latent attention: the history is one vector a token, a latent and what all heads' keys have in common.
 *
 * The heads' maps of the latent are not applied to the history but to the query (transposed) and to what was read. A thread
 * does whole heads of a sequence; the new token's vector is appended before, by another instruction. */
#ifndef STATEWISE_DECODE_LATENT_H
#define STATEWISE_DECODE_LATENT_H

#include "decode_attention.h"
#include "decode_integer.h"
#include "decode_real.h"

static void run_append_latent(const worker *me, const append_latent *a) {
    const decoding *step = me->step;
    const history *past = history_of(step, a->history);
    int64_t n = step->n_sequences, stride = a->rank + a->d_shared;
    for (int64_t sequence = n * me->thread / me->n_threads; sequence < n * (me->thread + 1) / me->n_threads; sequence++) {
        int64_t b = step->begins[sequence], row = step->rows[b];
        int64_t slot = past->end[row] - (past->source ? past->border[row] : 0);
        float *to = past->keys + row * past->key_stride + slot * stride;
        for (; b < step->begins[sequence + 1]; b++, to += stride) {
            memcpy(to, at(me, a->latent, b), sizeof(float) * (size_t)a->rank);
            memcpy(to + a->rank, at(me, a->shared, b), sizeof(float) * (size_t)a->d_shared);
        }
    }
}

static void run_latent_attention(const worker *me, const latent_attention *a) {
    const decoding *step = me->step;
    const history *past = history_of(step, a->history);
    int64_t width = a->rank + a->d_shared, d_query = a->d_key + a->d_shared, n_items = step->n_sequences * a->n_heads;
    float scale = (float)a->scale, *q = at(me, a->scratch, 0), *weighted = q + width;
    history both = *past; /* the values are the first numbers of the keys */
    both.values = both.keys, both.value_stride = both.key_stride;
    both.prefix_values = both.prefix_keys, both.prefix_value_stride = both.prefix_key_stride;
    for (int64_t item = n_items * me->thread / me->n_threads; item < n_items * (me->thread + 1) / me->n_threads; item++) {
        int64_t sequence = item / a->n_heads, head = item % a->n_heads;
        int64_t b = step->begins[sequence], row = step->rows[b], start = past->start[row];
        const float *keys = past->keys + row * past->key_stride;
        branch of = {&both, row, past->source ? past->border[row] : 0, 0};
        for (int64_t end = past->end[row]; b < step->begins[sequence + 1]; b++, end++) {
            if (step->restarts[b]) start = end;
            memcpy(q, at(me, a->absorbed, b) + head * a->rank, sizeof(float) * (size_t)a->rank);
            memcpy(q + a->rank, at(me, a->query, b) + head * d_query + a->d_key, sizeof(float) * (size_t)a->d_shared);
            float *to = at(me, a->output, b) + head * a->rank;
            if (past->source)
                attend(q, NULL, NULL, width, start, end + 1, width, a->rank, scale, weighted, to, &of);
            else
                attend(q, keys, keys, width, start, end + 1, width, a->rank, scale, weighted, to, NULL);
        }
    }
}

/* Numbers of a column, without their scales */
INLINE vf32 load_numbers(const int precision, const matrix *w, const char *block, int64_t column, int part) {
    if (precision == INT8) {
        const char *pairs = block + (column / 2 * BLOCK + part * LANES) * 2;
        vu32 bits = widen_u16((const uint16_t *)(const void *)pairs);
        return __builtin_convertvector((vi32)(bits << (column % 2 ? 16 : 24)) >> 24, vf32);
    }
    if (precision == INT4) {
        vu32 words;
        memcpy(&words, block + column / WORD * BLOCK * 4 + part * VECTOR_BYTES, sizeof words);
        vu32 numbers = words >> (uint32_t)(4 * (column % WORD / 2) + 16 * (column % 2)) & 15;
        return __builtin_convertvector((vi32)numbers - (w->offsets ? 0 : 8), vf32);
    }
    return load_column(precision, block, column, part);
}

/* `scaled`: x, each number times the scale of its row; what the offsets of all rows add comes back. */
static float scale_rows(const matrix *w, int64_t group, const float *x, float *scaled) {
    vf32 added = {0};
    for (int64_t i = 0; i < w->n_rows; i += LANES) {
        vf32 value = load_upto(x + i, w->n_rows - i);
        if (w->precision >= INT8) {
            int64_t first = (i / BLOCK * groups_of(w) + group) * BLOCK + i % BLOCK;
            const void *scales = scales_from(w, first);
            if (w->offsets) added += value * load_f32(w->offsets + first);
            value *= w->wide ? load_f32((const float *)scales) : load_bf16((const uint16_t *)scales);
        }
        store_f32(scaled + i, value);
    }
    return sum_f32(added);
}

INLINE void transpose_columns(const int precision, const matrix *w, int64_t first, int64_t end, float added,
                              const float *scaled, float *out) {
    int64_t bytes = bytes_of_block(w);
    for (int64_t k = first; k < end; k++) {
        const char *block = (const char *)w->data;
        vf32 sum = {0};
        for (int64_t i = 0; i < w->n_rows; i += BLOCK, block += bytes)
            for (int part = 0; part < PARTS; part++)
                sum += load_numbers(precision, w, block, k, part) * load_f32(scaled + i + part * LANES);
        out[k] = sum_f32(sum) + added;
    }
}

static void run_transposed_linear(const worker *me, const transposed_linear *a) {
    const matrix *w = &a->weight;
    range mine = share_of(me, w->n_columns);
    int64_t group = w->precision >= INT8 ? w->group : w->n_columns, filled = (w->n_rows + BLOCK - 1) / BLOCK * BLOCK;
    float *scaled = at(me, a->scaled, 0);
    memset(scaled, 0, sizeof(float) * (size_t)filled);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        float *out = at(me, a->output, b);
        for (int64_t first = mine.first, end; first < mine.end; first = end) {
            end = (first / group + 1) * group < mine.end ? (first / group + 1) * group : mine.end;
            float added = scale_rows(w, first / group, at(me, a->input, b), scaled);
            switch (w->precision) {
                case FLOAT32: transpose_columns(FLOAT32, w, first, end, added, scaled, out); break;
                case BFLOAT16: transpose_columns(BFLOAT16, w, first, end, added, scaled, out); break;
                case INT8: transpose_columns(INT8, w, first, end, added, scaled, out); break;
                default: transpose_columns(INT4, w, first, end, added, scaled, out);
            }
        }
    }
}

#endif
