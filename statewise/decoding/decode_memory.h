/* One step of memories with gates: those with a decay for each channel of a key (Kimi Delta Attention, RWKV-7, gated linear
 * attention), mLSTM's, and RG-LRU's single numbers; with what makes their gates, decays and keys. */
#ifndef STATEWISE_DECODE_MEMORY_H
#define STATEWISE_DECODE_MEMORY_H

#include "decode_recurrent.h"

static void run_channel_decay(const worker *me, const channel_decay *a) {
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        float *x = at(me, a->x, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            vf32 raw = load_upto(x + i, left);
            if (a->bias) raw += load_upto(a->bias + i, left);
            vf32 f = a->kind == LOGISTIC ? sigmoid_f32(raw) : softplus_f32(a->kind == SOFTPLUS ? raw : -raw);
            store_upto(x + i, exp2_product_f32(f, load_upto(a->factor + i, left), broadcast_f32(0)), left);
        }
    }
}

/* What all channels of a head's memory have in common. read: NULL if nothing is looked up; erase: NULL if it is write */
typedef struct {
    int64_t n;
    const float *decay, *read, *erase, *write, *query;
    float gain;
} head_of_memory;

INLINE float memory_channel(const int decayed, const head_of_memory *a, float value, const float *from, float *to) {
    int64_t n = a->n;
    vf32 sums = {0}, y = {0};
    for (int64_t k = 0; a->read && from && k < n; k += LANES) {
        vf32 s = load_upto(from + k, n - k);
        if (decayed) s *= load_upto(a->decay + k, n - k);
        sums += s * load_upto(a->read + k, n - k);
    }
    float held = sum_f32(sums), added = a->gain * (a->erase ? value : value - held), erased = -a->gain * held;
    for (int64_t k = 0; k < n; k += LANES) {
        vf32 s = load_upto(a->write + k, n - k) * added;
        if (a->erase) s += load_upto(a->erase + k, n - k) * erased;
        if (from) s += load_upto(from + k, n - k) * load_upto(a->decay + k, n - k);
        store_upto(to + k, s, n - k);
        y += s * load_upto(a->query + k, n - k);
    }
    return sum_f32(y);
}

INLINE const float *of_head(const worker *me, place where, int64_t b, int64_t first) {
    const float *all = at(me, where, b);
    return all ? all + first : NULL;
}

static void run_rank_one_memory(const worker *me, const rank_one_memory *a) {
    const decoding *step = me->step;
    int64_t width = a->n_heads * a->d_value, n = a->d_key;
    range mine = share_of(me, width);
    float scale = (float)a->scale;
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, width * n), *v = at(me, a->v, b);
        float *to = state_after(step, a->state, b, width * n), *y = at(me, a->y, b);
        int64_t end;
        for (int64_t c = mine.first; c < mine.end; c = end) {
            int64_t number = c / a->d_value, first = number * n;
            end = (number + 1) * a->d_value < mine.end ? (number + 1) * a->d_value : mine.end;
            const float *gain = at(me, a->gain, b);
            head_of_memory head = {.n = n,
                                   .decay = of_head(me, a->decay, b, first),
                                   .read = of_head(me, a->read, b, first),
                                   .erase = of_head(me, a->erase, b, first),
                                   .write = of_head(me, a->write, b, first),
                                   .query = of_head(me, a->query, b, first),
                                   .gain = gain ? (float)a->most_gain * gain[number] : 1.0f};
            for (int64_t i = c; i < end; i++) {
                const float *row = from ? from + i * n : NULL;
                y[i] = scale * (a->decayed ? memory_channel(1, &head, v[i], row, to + i * n)
                                           : memory_channel(0, &head, v[i], row, to + i * n));
            }
        }
    }
}

/* -- RWKV-7 ------------------------------------------------------------------------------------------------------- */

static void run_token_shift(const worker *me, const token_shift *a) {
    const decoding *step = me->step;
    int64_t width = a->width;
    range mine = share_of(me, width);
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, width), *x = at(me, a->x, b);
        float *to = state_after(step, a->state, b, width), *out = at(me, a->output, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            vf32 now = load_upto(x + i, left), change = (from ? load_upto(from + i, left) : broadcast_f32(0)) - now;
            for (int64_t m = 0; m < a->n_mixes; m++)
                store_upto(out + m * width + i, now + load_upto(a->mu + m * width + i, left) * change, left);
            store_upto(to + i, now, left);
        }
    }
}

static void run_mix_values(const worker *me, const mix_values *a) {
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        const float *share = at(me, a->share, b), *other = at(me, a->other, b);
        float *x = at(me, a->x, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            vf32 value = load_upto(x + i, left);
            vf32 change = sigmoid_f32(load_upto(share + i, left)) * (load_upto(other + i, left) - value);
            store_upto(x + i, value + change, left);
        }
    }
}

/* Every thread does all heads for itself. */
static void run_rwkv7_keys(const worker *me, const rwkv7_keys *a) {
    int64_t d = a->d_head, width = a->n_heads * d;
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        const float *k = at(me, a->k, b), *raw = at(me, a->rate, b);
        float *read = at(me, a->read, b), *erase = at(me, a->erase, b), *write = at(me, a->write, b);
        for (int64_t first = 0; first < width; first += d) {
            for (int64_t i = first; i < first + d; i += LANES) {
                int64_t left = first + d - i;
                store_upto(read + i, load_upto(k + i, left) * load_upto(a->xi + i, left), left);
            }
            float scale = unit_scale(d, read + first, (float)a->epsilon);
            for (int64_t i = first; i < first + d; i += LANES) {
                int64_t left = first + d - i;
                vf32 unit = load_upto(read + i, left) * scale, key = load_upto(k + i, left);
                vf32 rate = sigmoid_f32(load_upto(raw + i, left));
                store_upto(read + i, unit, left);
                store_upto(erase + i, rate * unit, left);
                store_upto(write + i, key + key * (rate - 1.0f) * load_upto(a->alpha + i, left), left);
            }
        }
    }
}

static void run_rwkv7_bonus(const worker *me, const rwkv7_bonus *a) {
    int64_t d = a->d_head, width = a->n_heads * d;
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        const float *r = at(me, a->r, b), *k = at(me, a->k, b), *v = at(me, a->v, b), *gate = at(me, a->gate, b);
        float *x = at(me, a->x, b);
        for (int64_t first = 0; first < width; first += d) {
            vf32 sums = {0};
            for (int64_t i = first; i < first + d; i += LANES) {
                int64_t left = first + d - i;
                sums += load_upto(r + i, left) * load_upto(a->rho + i, left) * load_upto(k + i, left);
            }
            float share = sum_f32(sums);
            for (int64_t i = first; i < first + d; i += LANES) {
                int64_t left = first + d - i;
                vf32 y = load_upto(x + i, left) + load_upto(v + i, left) * share;
                store_upto(x + i, y * load_upto(gate + i, left), left);
            }
        }
    }
}

/* -- mLSTM -------------------------------------------------------------------------------------------------------- */

INLINE float capped(float x, float cap) { return cap * tanhf(x / cap); }
INLINE float exp_of(float x) { return exp_f32(broadcast_f32(x))[0]; }

static void run_mlstm_gates(const worker *me, const mlstm_gates *a) {
    const decoding *step = me->step;
    range mine = share_of(me, a->n_heads);
    float cap = (float)a->cap;
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, a->n_heads), *raw = at(me, a->raw, b);
        float *to = state_after(step, a->state, b, a->n_heads), *input = at(me, a->input, b);
        float *decay = at(me, a->decay, b), *least = at(me, a->least, b);
        for (int64_t head = mine.first; head < mine.end; head++) {
            float log_i = capped(raw[head], cap), raw_f = capped(raw[a->n_heads + head], cap);
            float kept = (from ? from[head] : 0.0f) - softplus_f32(broadcast_f32(-raw_f))[0];
            float m = kept < log_i || log_i != log_i ? log_i : kept; /* NaN stays */
            to[head] = m;
            decay[head] = exp_of(kept - m);
            input[head] = exp_of(log_i - m);
            least[head] = exp_of(-m);
        }
    }
}

static void run_mlstm_memory(const worker *me, const mlstm_memory *a) {
    const decoding *step = me->step;
    int64_t rows = a->d_value + 1, width = a->n_heads * rows, n = a->d_key; /* the last row of a head is of ones */
    range mine = share_of(me, width);
    float scale = 1.0f / sqrtf((float)n);
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, width * n), *v = at(me, a->v, b);
        const float *decay = at(me, a->decay, b), *input = at(me, a->input, b), *q = at(me, a->q, b), *k = at(me, a->k, b);
        float *to = state_after(step, a->state, b, width * n), *y = at(me, a->y, b);
        for (int64_t i = mine.first; i < mine.end; i++) {
            int64_t head = i / rows, place = i % rows;
            float value = place < a->d_value ? v[head * a->d_value + place] : 1.0f;
            y[i] = scale * ssd_channel(n, decay[head], input[head] * value, k + head * n, q + head * n,
                                       from ? from + i * n : NULL, to + i * n);
        }
    }
}

/* Every thread does all heads for itself. */
static void run_mlstm_read(const worker *me, const mlstm_read *a) {
    int64_t d = a->d_value;
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        const float *y = at(me, a->y, b), *least = at(me, a->least, b);
        float *out = at(me, a->output, b);
        for (int64_t head = 0; head < a->n_heads; head++) {
            const float *row = y + head * (d + 1);
            float size = fabsf(row[d]), divisor = (size < least[head] ? least[head] : size) + (float)a->epsilon;
            for (int64_t i = 0; i < d; i += LANES)
                store_upto(out + head * d + i, load_upto(row + i, d - i) / divisor, d - i);
        }
    }
}

/* -- RG-LRU ------------------------------------------------------------------------------------------------------- */

INLINE vf32 root_f32(vf32 x) {
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
}

static void run_rg_lru(const worker *me, const rg_lru *a) {
    const decoding *step = me->step;
    const int64_t *n_read = (const int64_t *)(uintptr_t)step->state[a->n_read];
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, a->width);
        int begins = step->restarts[b] || (!step->places[b] && !n_read[step->rows[b]]);
        float *to = state_after(step, a->state, b, a->width), *x = at(me, a->x, b);
        const float *in = at(me, a->input_gate, b), *recurrence = at(me, a->recurrence_gate, b);
        for (int64_t c = mine.first; c < mine.end; c += LANES) {
            int64_t left = mine.end - c;
            vf32 h = sigmoid_f32(load_upto(in + c, left)) * load_upto(x + c, left);
            if (!begins) {
                vf32 r = sigmoid_f32(load_upto(recurrence + c, left)), factor = load_upto(a->log_decay + c, left);
                vf32 decay = exp2_product_f32(r, factor, broadcast_f32(0)), twice = r * factor * (float)(2 * LN_2);
                vf32 share = -twice * phi1_f32(twice, decay * decay); /* 1 - decay^2 */
                share = select_f32(share < (float)a->least, broadcast_f32((float)a->least), share);
                h = h * root_f32(share) + decay * load_upto(from + c, left);
            }
            store_upto(to + c, h, left);
            store_upto(x + c, h, left);
        }
    }
}

/* After all threads have read it. The first thread does it. */
static void run_count_tokens(const worker *me, const count_tokens *a) {
    const decoding *step = me->step;
    const int64_t *given = (const int64_t *)(uintptr_t)step->state[a->n_read];
    int64_t *next = (int64_t *)(uintptr_t)step->state[a->n_read + 1], batch = step->batch;
    for (int64_t b = 0; !me->thread && b < step->n_rows; b++) {
        int64_t place = step->places[b], row = step->rows[b];
        next[place * batch + row] = (place ? next[(place - 1) * batch + row] : given[row]) + 1;
    }
}

#endif
