/* One step of a convolution, of Mamba's selective system, of Mamba-2's (SSD) and of H3's diagonal one.
 *
 * States come as two addresses in the table of states, from which and to which; they may be the same. A number of the
 * state is read once, then written once, by the thread whose share its channel is in. Where a sequence has several
 * tokens, a state is written behind each, and the next token reads that.
 */
#ifndef STATEWISE_DECODE_RECURRENT_H
#define STATEWISE_DECODE_RECURRENT_H

#include "decode_program.h"
#define REAL_BITS 32
#include "real.h"

#include "complex_lanes.inc.h"

/* Where the state before a token is, of `size` floats a sequence; NULL if it is zero. Place 0 reads the state that was
 * given, and place i the one that place i - 1 has left. */
INLINE const float *state_before(const decoding *step, int64_t slot, int64_t b, int64_t size) {
    int64_t place = step->places[b], row = step->rows[b];
    if (step->restarts[b]) return NULL;
    if (!place) return (const float *)(uintptr_t)step->state[slot] + row * size;
    return (const float *)(uintptr_t)step->state[slot + 1] + ((place - 1) * step->batch + row) * size;
}

/* Where the state behind it goes: (places, batch, size) */
INLINE float *state_after(const decoding *step, int64_t slot, int64_t b, int64_t size) {
    return (float *)(uintptr_t)step->state[slot + 1] + (step->places[b] * step->batch + step->rows[b]) * size;
}

#define STRIP 8 /* vectors of channels done together, so that a long past is read in runs of whole cache lines */

/* n vectors of channels from c on, of one sequence; `left` channels, if that is less than they hold (then n is 1) */
INLINE void convolve_strip(const convolution *a, const int n, int64_t left, int64_t c, const float *past, float *next,
                           float *x) {
    int64_t width = a->width, n_past = a->n_taps - 1;
    vf32 u[STRIP], sums[STRIP];
    for (int j = 0; j < n; j++) {
        u[j] = load_upto(x + c + j * LANES, left);
        sums[j] = load_upto(a->taps + c + j * LANES, left) * u[j];
        if (a->bias) sums[j] += load_upto(a->bias + c + j * LANES, left);
    }
    for (int64_t i = 0; i < n_past; i++)
        for (int j = 0; j < n; j++) {
            int64_t k = c + j * LANES;
            vf32 value = past ? load_upto(past + i * width + k, left) : broadcast_f32(0);
            sums[j] += load_upto(a->taps + (n_past - i) * width + k, left) * value;
            if (i > 0) store_upto(next + (i - 1) * width + k, value, left);
        }
    for (int j = 0; j < n; j++) {
        int64_t k = c + j * LANES;
        if (n_past > 0) store_upto(next + (n_past - 1) * width + k, u[j], left);
        store_upto(x + k, a->silu ? silu_f32(sums[j]) : sums[j], left);
    }
}

static void run_convolution(const worker *me, const convolution *a) {
    const decoding *step = me->step;
    range mine = share_of(me, a->width);
    int64_t n_past = a->n_taps - 1, width = a->width;
    for (int64_t b = 0; b < step->n_rows; b++) {
        float *x = at(me, a->x, b);
        const float *past = state_before(step, a->state, b, n_past * width);
        float *next = state_after(step, a->state, b, n_past * width);
        int64_t c = mine.first;
        for (; c + STRIP * LANES <= mine.end; c += STRIP * LANES) convolve_strip(a, STRIP, LANES, c, past, next, x);
        for (; c < mine.end; c += LANES) convolve_strip(a, 1, mine.end - c, c, past, next, x);
    }
}

/* (e^z - 1) / z, 1 at 0. Below 1/4 a Taylor polynomial, whose rest is under 1e-8; above, the difference loses 3 bits. */
INLINE vf32 phi1_f32(vf32 z, vf32 exponential) {
    vf32 p = broadcast_f32(1.0f / 5040);
    p = p * z + 1.0f / 720;
    p = p * z + 1.0f / 120;
    p = p * z + 1.0f / 24;
    p = p * z + 1.0f / 6;
    p = p * z + 0.5f;
    p = p * z + 1.0f;
    vi32 small = (z < 0.25f) & (z > -0.25f);
    return select_f32(small, p, (exponential - 1.0f) / z);
}

/* A channel's n_state numbers are lanes. */
INLINE float selective_channel(const selective *a, const float *decay, const float *B, const float *C, float dt, float u,
                               const float *from, float *to) {
    vf32 sum = {0};
    for (int64_t n = 0; n < a->n_state; n += LANES) {
        int64_t left = a->n_state - n;
        vf32 rate = load_upto(decay + n, left) * dt; /* log2 of e^{Delta A} */
        vf32 factor = exp2_product_f32(broadcast_f32(dt), load_upto(decay + n, left), broadcast_f32(0));
        vf32 input = load_upto(B + n, left) * (dt * u);
        if (a->zero_order_hold) input *= phi1_f32(rate * (float)LN_2, factor);
        vf32 h = from ? factor * load_upto(from + n, left) + input : input;
        store_upto(to + n, h, left);
        sum += h * load_upto(C + n, left);
    }
    return sum_f32(sum);
}

static void run_selective(const worker *me, const selective *a) {
    const decoding *step = me->step;
    range mine = share_of(me, a->width);
    int64_t n = a->n_state;
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, a->width * n);
        float *to = state_after(step, a->state, b, a->width * n);
        const float *u = at(me, a->u, b), *z = at(me, a->z, b), *dt = at(me, a->dt, b);
        const float *B = at(me, a->B, b), *C = at(me, a->C, b);
        float *y = at(me, a->y, b);
        for (int64_t c = mine.first; c < mine.end; c += LANES) {
            int64_t left = mine.end - c, count = left < LANES ? left : LANES;
            float steps[LANES], sums[LANES] = {0};
            vf32 input = load_upto(u + c, left);
            store_f32(steps, softplus_f32(load_upto(dt + c, left) + load_upto(a->dt_bias + c, left)));
            for (int64_t i = 0; i < count; i++) {
                int64_t k = (c + i) * n;
                sums[i] = selective_channel(a, a->log_decay + k, B, C, steps[i], u[c + i], from ? from + k : NULL, to + k);
            }
            vf32 out = load_f32(sums) + load_upto(a->D + c, left) * input;
            store_upto(y + c, out * silu_f32(load_upto(z + c, left)), left);
        }
    }
}

/* The n_state numbers of a channel are lanes. */
INLINE float ssd_channel(int64_t n_state, float decay, float input, const float *B, const float *C, const float *from,
                         float *to) {
    vf32 sums[2] = {{0}, {0}};
    int64_t n = 0;
    for (; n + 2 * LANES <= n_state; n += 2 * LANES)
        for (int j = 0; j < 2; j++) {
            int64_t k = n + j * LANES;
            vf32 h = load_f32(B + k) * input;
            if (from) h += load_f32(from + k) * decay;
            store_f32(to + k, h);
            sums[j] += h * load_f32(C + k);
        }
    for (; n < n_state; n += LANES) {
        int64_t left = n_state - n;
        vf32 h = load_upto(B + n, left) * input;
        if (from) h += load_upto(from + n, left) * decay;
        store_upto(to + n, h, left);
        sums[0] += h * load_upto(C + n, left);
    }
    return sum_f32(sums[0] + sums[1]);
}

static void run_ssd(const worker *me, const ssd *a) {
    const decoding *step = me->step;
    int64_t width = a->n_heads * a->d_head, n = a->n_state;
    range mine = share_of(me, width);
    float low = (float)a->low, high = (float)a->high;
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, width * n);
        float *to = state_after(step, a->state, b, width * n);
        const float *x = at(me, a->x, b), *z = at(me, a->z, b), *dt = at(me, a->dt, b);
        float *y = at(me, a->y, b);
        int64_t end;
        for (int64_t c = mine.first; c < mine.end; c = end) {
            int64_t head = c / a->d_head, group = head / a->heads_per_group;
            end = (head + 1) * a->d_head < mine.end ? (head + 1) * a->d_head : mine.end;
            float delta = softplus_f32(broadcast_f32(dt[head] + a->dt_bias[head]))[0];
            delta = delta < low ? low : delta > high ? high : delta; /* NaN stays */
            float decay = exp2_product_f32(broadcast_f32(delta), broadcast_f32(a->log_decay[head]), broadcast_f32(0))[0];
            const float *B = at(me, a->B, b) + group * n, *C = at(me, a->C, b) + group * n;
            for (int64_t i = c; i < end; i++)
                y[i] = ssd_channel(n, decay, delta * x[i], B, C, from ? from + i * n : NULL, to + i * n) +
                       a->D[head] * x[i];
        }
        for (int64_t c = mine.first; a->gated && c < mine.end; c += LANES) {
            int64_t left = mine.end - c;
            store_upto(y + c, load_upto(y + c, left) * silu_f32(load_upto(z + c, left)), left);
        }
    }
}

/* What makes x, of n numbers, one of length 1. */
INLINE float unit_scale(int64_t n, const float *x, float epsilon) {
    vf32 squares = {0};
    for (int64_t k = 0; k < n; k += LANES) {
        vf32 part = load_upto(x + k, n - k);
        squares += part * part;
    }
    return 1.0f / sqrtf(sum_f32(squares) + epsilon);
}

/* A row of a head's memory: what it holds for the key is looked up, corrected, and read. */
INLINE float delta_channel(int64_t n, float decay, float beta, float value, const float *key, float key_scale,
                           const float *query, const float *from, float *to) {
    vf32 held = {0}, read = {0};
    for (int64_t k = 0; from && k < n; k += LANES) held += load_upto(from + k, n - k) * load_upto(key + k, n - k);
    float added = beta * key_scale * (value - decay * key_scale * sum_f32(held));
    for (int64_t k = 0; k < n; k += LANES) {
        vf32 s = load_upto(key + k, n - k) * added;
        if (from) s += load_upto(from + k, n - k) * decay;
        store_upto(to + k, s, n - k);
        read += s * load_upto(query + k, n - k);
    }
    return sum_f32(read);
}

static void run_delta_memory(const worker *me, const delta_memory *a) {
    const decoding *step = me->step;
    int64_t width = a->n_heads * a->d_value, n = a->d_key;
    range mine = share_of(me, width);
    float most = (float)a->most_beta, epsilon = (float)a->epsilon, scale = 1.0f / sqrtf((float)n);
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, width * n);
        float *to = state_after(step, a->state, b, width * n);
        const float *v = at(me, a->v, b), *raw = at(me, a->raw, b), *beta = at(me, a->beta, b);
        float *y = at(me, a->y, b);
        int64_t end;
        for (int64_t c = mine.first; c < mine.end; c = end) {
            int64_t head = c / a->d_value, group = head / a->heads_per_group;
            end = (head + 1) * a->d_value < mine.end ? (head + 1) * a->d_value : mine.end;
            float dt = softplus_f32(broadcast_f32(raw[head] + a->dt_bias[head]))[0];
            float decay = exp2_product_f32(broadcast_f32(dt), broadcast_f32(a->log_decay[head]), broadcast_f32(0))[0];
            float share = most * sigmoid_f32(broadcast_f32(beta[head]))[0];
            const float *q = at(me, a->q, b) + group * n, *k = at(me, a->k, b) + group * n;
            float key_scale = unit_scale(n, k, epsilon), query_scale = scale * unit_scale(n, q, epsilon);
            for (int64_t i = c; i < end; i++)
                y[i] = query_scale * delta_channel(n, decay, share, v[i], k, key_scale, q, from ? from + i * n : NULL,
                                                   to + i * n);
        }
    }
}

/* Complex numbers are pairs of lanes. */
INLINE float diagonal_entry(const diagonal *a, int64_t head, float input, const float *from, float *to) {
    vf32 sum = {0};
    int64_t n = a->n_state, first = head * n;
    for (int64_t k = 0; k < n; k += LANES) {
        int64_t left = n - k, place = first + k;
        vf32 h = load_upto(a->B + place, left) * input;
        if (from) {
            vf32 past = load_upto(from + k, left);
            h += load_upto(a->same + place, left) * past + load_upto(a->crossed + place, left) * SHUFFLED(past, 1, 0);
        }
        store_upto(to + k, h, left);
        sum += load_upto(a->C + place, left) * h;
    }
    return sum_f32(sum) + a->D[head] * input;
}

/* Sequences are the inner loop: a head's numbers are read from memory once for all of them. */
static void run_diagonal(const worker *me, const diagonal *a) {
    const decoding *step = me->step;
    int64_t d = a->d_head, n_entries = a->n_heads * d * d;
    int64_t end = a->n_heads * (me->thread + 1) / me->n_threads;
    for (int64_t head = a->n_heads * me->thread / me->n_threads; head < end; head++)
        for (int64_t b = 0; b < step->n_rows; b++) {
            int64_t begin = head * d * d * a->n_state;
            const float *before = state_before(step, a->state, b, n_entries * a->n_state);
            const float *from = before ? before + begin : NULL;
            float *to = state_after(step, a->state, b, n_entries * a->n_state) + begin;
            const float *query = at(me, a->query, b) + head * d, *key = at(me, a->key, b) + head * d;
            const float *value = at(me, a->value, b) + head * d;
            float *out = at(me, a->output, b) + head * d;
            for (int64_t i = 0; i < d; i++)
                for (int64_t j = 0; j < d; j++) {
                    int64_t k = (i * d + j) * a->n_state;
                    float y = diagonal_entry(a, head, key[i] * value[j], from ? from + k : NULL, to + k);
                    out[j] = (i ? out[j] : 0.0f) + query[i] * y;
                }
        }
}

#endif
