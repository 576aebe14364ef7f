/* Multi-head latent attention: the history is one vector a token, a latent and what all heads' keys have in common.
 *
 * The heads' maps of the latent are not applied to the history but to the query (transposed) and to what was read. A thread
 * does whole heads of a sequence, several at once; the new token's vector is appended before, by another instruction.
 */
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

/* n heads' queries (n, width) over the slots first .. end: out = softmax(scale q . keys) of the keys' first `rank` numbers.
 * A key is read once for all of them, and no head's numbers depend on the others. Of a row without a prefix that others
 * share the keys lie one after the other. */
INLINE void attend_latents(const int n, const float *q, const branch *of, int64_t width, int64_t rank, int64_t first,
                           int64_t end, float scale, float *weighted, float *out) {
    const history *past = of->past;
    float largest[HEADS], total[HEADS], scores[HEADS][KEYS];
    const float *key_at[KEYS], *value_at[KEYS];
    for (int h = 0; h < n; h++) largest[h] = -INFINITY, total[h] = 0;
    memset(weighted, 0, sizeof(float) * (size_t)(n * rank));
    for (int64_t begin = first; begin < end; begin += KEYS) {
        int64_t count = end - begin < KEYS ? end - begin : KEYS;
        for (int64_t j = 0; j < count; j++)
            if (past->source)
                find_slot(of, begin + j, width, key_at + j, value_at + j);
            else
                key_at[j] = past->keys + of->row * past->key_stride + (begin + j) * width;
        float kept[HEADS];
        for (int64_t j = 0; j < count; j++) {
            vf32 sums[HEADS][2];
            memset(sums, 0, sizeof sums);
            int64_t i = 0;
            for (; i + 2 * LANES <= width; i += 2 * LANES)
#pragma GCC unroll 2
                for (int part = 0; part < 2; part++) {
                    vf32 key = load_f32(key_at[j] + i + part * LANES);
#pragma GCC unroll 4
                    for (int h = 0; h < n; h++) sums[h][part] += key * load_f32(q + h * width + i + part * LANES);
                }
            for (; i < width; i += LANES) {
                vf32 key = load_upto(key_at[j] + i, width - i);
#pragma GCC unroll 4
                for (int h = 0; h < n; h++) sums[h][0] += key * load_upto(q + h * width + i, width - i);
            }
#pragma GCC unroll 4
            for (int h = 0; h < n; h++) scores[h][j] = sum_f32(sums[h][0] + sums[h][1]) * scale;
        }
        for (int h = 0; h < n; h++) {
            float most = largest[h];
            for (int64_t j = 0; j < count; j++) most = scores[h][j] > most ? scores[h][j] : most;
            for (int64_t j = count; j < KEYS; j++) scores[h][j] = -INFINITY;
            kept[h] = largest[h] == -INFINITY ? 0.0f : exp2_f32(broadcast_f32(largest[h] - most))[0];
            vf32 sums = {0};
            for (int64_t j = 0; j < KEYS; j += LANES) {
                vf32 weights = exp2_f32(load_f32(scores[h] + j) - most);
                store_f32(scores[h] + j, weights);
                sums += weights;
            }
            total[h] = total[h] * kept[h] + sum_f32(sums);
            largest[h] = most;
        }
        for (int64_t i = 0; i < rank; i += LANES) {
            vf32 sums[HEADS];
#pragma GCC unroll 4
            for (int h = 0; h < n; h++) sums[h] = load_upto(weighted + h * rank + i, rank - i) * kept[h];
            for (int64_t j = 0; j < count; j++) {
                vf32 value = load_upto(key_at[j] + i, rank - i);
#pragma GCC unroll 4
                for (int h = 0; h < n; h++) sums[h] += value * scores[h][j];
            }
#pragma GCC unroll 4
            for (int h = 0; h < n; h++) store_upto(weighted + h * rank + i, sums[h], rank - i);
        }
    }
    for (int h = 0; h < n; h++)
        for (int64_t i = 0; i < rank; i++) out[h * rank + i] = weighted[h * rank + i] / total[h];
}

static void run_latent_attention(const worker *me, const latent_attention *a) {
    const decoding *step = me->step;
    const history *past = history_of(step, a->history);
    int64_t rank = a->rank, width = rank + a->d_shared, d_query = a->d_key + a->d_shared;
    int64_t n_items = step->n_sequences * a->n_heads, item = n_items * me->thread / me->n_threads, n;
    float scale = (float)a->scale, *q = at(me, a->scratch, 0), *weighted = q + HEADS * width;
    history both = *past; /* the values are the first numbers of the keys */
    both.values = both.keys, both.value_stride = both.key_stride;
    both.prefix_values = both.prefix_keys, both.prefix_value_stride = both.prefix_key_stride;
    for (; item < n_items * (me->thread + 1) / me->n_threads; item += n) {
        int64_t sequence = item / a->n_heads, head = item % a->n_heads;
        int64_t left = n_items * (me->thread + 1) / me->n_threads - item;
        n = left >= HEADS && head + HEADS <= a->n_heads ? HEADS : 1;
        int64_t b = step->begins[sequence], row = step->rows[b], start = past->start[row];
        branch of = {&both, row, past->source ? past->border[row] : 0, 0};
        for (int64_t end = past->end[row]; b < step->begins[sequence + 1]; b++, end++) {
            const float *query = at(me, a->query, b), *absorbed = at(me, a->absorbed, b);
            float *out = at(me, a->output, b) + head * rank;
            if (step->restarts[b]) start = end;
            for (int64_t h = 0; h < n; h++) {
                const float *shared = query + (head + h) * d_query + a->d_key;
                memcpy(q + h * width, absorbed + (head + h) * rank, sizeof(float) * (size_t)rank);
                memcpy(q + h * width + rank, shared, sizeof(float) * (size_t)a->d_shared);
            }
            if (n == HEADS)
                attend_latents(HEADS, q, &of, width, rank, start, end + 1, scale, weighted, out);
            else
                attend_latents(1, q, &of, width, rank, start, end + 1, scale, weighted, out);
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
