/* Causal softmax attention of each token to itself and the keys and values of its past.
 *
 * ANGLES makes cos and sin of position * frequency in float64, for the rotary positions. ATTENTION turns the new key and
 * the queries, appends key and value to the history, and then walks over the keys from the window's first to the new
 * one in runs of KEYS, with the sum of the exponentials and the weighted values relative to the largest score so far.
 * A thread does whole heads of keys, each with the queries that share it.
 *
 * Rows that continue one prefix share its keys and values, and those that they wrote before they parted. Where a slot
 * lies does not change what is summed in which order: a row's numbers are those that it has with copies of them, bit for
 * bit.
 */
#ifndef STATEWISE_DECODE_ATTENTION_H
#define STATEWISE_DECODE_ATTENTION_H

#include "decode_program.h"

#define KEYS 64

INLINE const history *history_of(const decoding *step, int64_t slot) { return (const history *)&step->state[slot]; }

static void run_angles(const worker *me, const angles *a) {
    const decoding *step = me->step;
    const history *past = history_of(step, a->history);
    int64_t position = 0;
    for (int64_t b = 0; b < step->n_rows; b++) {
        position = position_of(step, past->position, b, position);
        float *out = at(me, a->output, b);
        for (int64_t i = 0; i < a->n_angles; i++) {
            double angle = (double)position * a->frequencies[i];
            out[i] = (float)cos(angle);
            out[a->n_angles + i] = (float)sin(angle);
        }
    }
}

/* Features i and i + n_angles are one pair. */
static void rotate_head(float *x, const float *angle, int64_t n_angles) {
    const float *cosine = angle, *sine = angle + n_angles;
    for (int64_t i = 0; i < n_angles; i++) {
        float first = x[i], second = x[i + n_angles];
        x[i] = first * cosine[i] - second * sine[i];
        x[i + n_angles] = second * cosine[i] + first * sine[i];
    }
}

INLINE float product(const float *a, const float *b, int64_t n) {
    vf32 sum = {0};
    for (int64_t i = 0; i < n; i += LANES) sum += load_upto(a + i, n - i) * load_upto(b + i, n - i);
    return sum_f32(sum);
}

/* A row of a history whose prefix others share, and the offset of the head of keys. */
typedef struct {
    const history *past;
    int64_t row, border, head;
} branch;

/* Where the slot lies, among keys and values; `stride` floats after the slot before it, if that is on the same side. */
static void find_slot(const branch *of, int64_t slot, int64_t stride, const float **key, const float **value) {
    const history *past = of->past;
    if (slot < of->border) {
        int64_t row = past->prefix_row[of->row], offset = slot * stride + of->head;
        *key = past->prefix_keys + row * past->prefix_key_stride + offset;
        *value = past->prefix_values + row * past->prefix_value_stride + offset;
    } else {
        int64_t i = slot - of->border, row = past->source[of->row * past->source_stride + i];
        *key = past->keys + row * past->key_stride + i * stride + of->head;
        *value = past->values + row * past->value_stride + i * stride + of->head;
    }
}

/* out = softmax(scale q . keys) values over the slots first .. end; of: NULL where they lie one after the other */
INLINE void attend(const float *q, const float *keys, const float *values, int64_t stride, int64_t first, int64_t end,
                   int64_t d_key, int64_t d_value, float scale, float *weighted, float *out, const branch *of) {
    const float *key_at[KEYS], *value_at[KEYS];
#define KEY_AT(j) (of ? key_at[j] : keys + (begin + (j)) * stride)
#define VALUE_AT(j) (of ? value_at[j] : values + (begin + (j)) * stride)
    float largest = -INFINITY, total = 0;
    memset(weighted, 0, sizeof(float) * (size_t)d_value);
    for (int64_t begin = first; begin < end; begin += KEYS) {
        int64_t n = end - begin < KEYS ? end - begin : KEYS;
        float scores[KEYS];
        float most = largest;
        for (int64_t j = 0; j < KEYS; j++) scores[j] = -INFINITY;
        for (int64_t j = 0; of && j < n; j++) find_slot(of, begin + j, stride, key_at + j, value_at + j);
        for (int64_t j = 0; j < n; j++) {
            scores[j] = product(q, KEY_AT(j), d_key) * scale;
            if (scores[j] > most) most = scores[j];
        }
        float kept = largest == -INFINITY ? 0.0f : exp2_f32(broadcast_f32(largest - most))[0];
        vf32 sums = {0};
        for (int64_t j = 0; j < KEYS; j += LANES) {
            vf32 weights = exp2_f32(load_f32(scores + j) - most);
            store_f32(scores + j, weights);
            sums += weights;
        }
        total = total * kept + sum_f32(sums);
        for (int64_t i = 0; i < d_value; i += LANES) {
            int64_t left = d_value - i;
            vf32 sum = load_upto(weighted + i, left) * kept;
            for (int64_t j = 0; j < n; j++) sum += load_upto(VALUE_AT(j) + i, left) * scores[j];
            store_upto(weighted + i, sum, left);
        }
        largest = most;
    }
    for (int64_t i = 0; i < d_value; i++) out[i] = weighted[i] / total;
#undef KEY_AT
#undef VALUE_AT
}

static void run_attention(const worker *me, const attention *a) {
    const decoding *step = me->step;
    const history *past = history_of(step, a->history);
    int64_t shared = a->n_heads / a->n_kv_heads, d_head = a->d_head, stride = a->n_kv_heads * d_head;
    int64_t n_items = step->n_sequences * a->n_kv_heads; /* a token sees the keys of those before it: one thread */
    float scale = (float)a->scale, *weighted = at(me, a->scratch, 0);
    for (int64_t item = n_items * me->thread / me->n_threads; item < n_items * (me->thread + 1) / me->n_threads; item++) {
        int64_t sequence = item / a->n_kv_heads, group = item % a->n_kv_heads;
        int64_t b = step->begins[sequence], row = step->rows[b];
        float *keys = past->keys + row * past->key_stride + group * d_head;
        float *values = past->values + row * past->value_stride + group * d_head;
        branch of = {past, row, past->source ? past->border[row] : 0, group * d_head};
        int64_t start = past->start[row];
        for (int64_t end = past->end[row]; b < step->begins[sequence + 1]; b++, end++) {
            float *qkv = at(me, a->qkv, b), *out = at(me, a->output, b);
            const float *angle = a->n_angles ? at(me, a->angles, b) : NULL;
            float *key = qkv + (a->n_heads + group) * d_head, *value = key + stride;
            if (step->restarts[b]) start = end;
            int64_t first = a->window && start < end + 1 - a->window ? end + 1 - a->window : start;
            rotate_head(key, angle, a->n_angles);
            memcpy(keys + (end - of.border) * stride, key, sizeof(float) * (size_t)d_head);
            memcpy(values + (end - of.border) * stride, value, sizeof(float) * (size_t)d_head);
            for (int64_t head = group * shared; head < (group + 1) * shared; head++) {
                float *q = qkv + head * d_head;
                rotate_head(q, angle, a->n_angles);
                float *to = out + head * d_head;
                if (past->source)
                    attend(q, NULL, NULL, stride, first, end + 1, d_head, d_head, scale, weighted, to, &of);
                else
                    attend(q, keys, values, stride, first, end + 1, d_head, d_head, scale, weighted, to, NULL);
            }
        }
    }
}

static void run_advance(const worker *me, const advance *a) {
    const decoding *step = me->step;
    const history *past = history_of(step, a->history);
    if (me->thread) return;
    for (int64_t sequence = 0; sequence < step->n_sequences; sequence++) {
        int64_t b = step->begins[sequence], row = step->rows[b];
        int64_t start = past->start[row], end = past->end[row], position = past->position[row];
        for (; b < step->begins[sequence + 1]; b++, end++) {
            if (step->restarts[b]) start = end;
            position = (step->restarts[b] ? 0 : position) + 1;
        }
        past->start_next[row] = start;
        past->position_next[row] = position;
        past->end_next[row] = past->filled[row] = end;
    }
}

#endif
