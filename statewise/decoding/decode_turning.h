/* One step of Mamba-3: the keys and queries of a token, a memory whose pairs turn, and the outputs of its ranks. */
#ifndef STATEWISE_DECODE_TURNING_H
#define STATEWISE_DECODE_TURNING_H

#include "decode_memory.h"

/* decay times the turn back by pi tanh(angle) dt of each pair. Whole turns are taken away in float64: what is left is
 * as exact as dt. */
static void turn_back(const turning_keys *a, const float *turns, float dt, float decay, float *same, float *crossed) {
    int64_t n_turned = 2 * a->n_angles;
    for (int64_t i = 0; i < a->n_angles; i++) {
        float angle = (float)fmod(M_PI * (double)turns[i] * (double)dt, 2 * M_PI);
        float cosine = decay * cosf(angle), sine = decay * sinf(angle);
        same[2 * i] = same[2 * i + 1] = cosine;
        crossed[2 * i] = sine;
        crossed[2 * i + 1] = -sine;
    }
    for (int64_t n = n_turned; n < a->d_state; n++) {
        same[n] = decay;
        crossed[n] = 0;
    }
}

/* A pair is two neighbouring lanes. */
INLINE vf32 turned(const float *same, const float *crossed, const float *x, int64_t count) {
    vf32 value = load_upto(x, count);
    return load_upto(same, count) * value + load_upto(crossed, count) * SHUFFLED(value, 1, 0);
}

static void keys_of_head(const worker *me, const turning_keys *a, int64_t b, int64_t head, const float *from,
                         float *to) {
    int64_t n = a->d_state, first = head * a->n_ranks * n, group = head / (a->n_heads / a->n_groups);
    float *same = at(me, a->same, b) + head * n, *crossed = at(me, a->crossed, b) + head * n;
    float *past = at(me, a->past, b) + first, *write = at(me, a->write, b) + first;
    float *query = at(me, a->query, b) + first;
    const float *key_bias = a->key_bias + first, *query_bias = a->query_bias + first;
    float dt = softplus_f32(broadcast_f32(at(me, a->dt, b)[head] + a->dt_bias[head]))[0];
    float raw = at(me, a->rate, b)[head];
    float rate = !a->heavy_tail ? softplus_f32(broadcast_f32(raw))[0] : raw > 0 ? 1.0f + raw : 1.0f / (1.0f - raw);
    if (rate < (float)a->least) rate = (float)a->least; /* NaN stays */
    float share = sigmoid_f32(broadcast_f32(at(me, a->share, b)[head]))[0], decay = exp_of(-dt * rate);
    float own = share * dt, before = (1.0f - share) * dt;
    turn_back(a, at(me, a->turns, b), dt, decay, same, crossed);
    for (int64_t rank = 0; rank < a->n_ranks; rank++) {
        int64_t place = (rank * a->n_groups + group) * n, row = rank * n;
        const float *key_in = at(me, a->key, b) + place, *query_in = at(me, a->query_in, b) + place;
        for (int64_t k = 0; k < n; k += LANES) {
            int64_t left = n - k, i = row + k;
            vf32 key = load_upto(key_in + k, left) + load_upto(key_bias + i, left);
            if (from) store_upto(past + i, before * turned(same + k, crossed + k, from + first + i, left), left);
            store_upto(to + first + i, key, left); /* perhaps where the one before was */
            store_upto(write + i, own * key, left);
            store_upto(query + i, load_upto(query_in + k, left) + load_upto(query_bias + i, left), left);
        }
    }
}

/* Whole heads: their keys are read by all channels of a head, and written over. */
static void run_turning_keys(const worker *me, const turning_keys *a) {
    const decoding *step = me->step;
    int64_t size = a->n_heads * a->n_ranks * a->d_state, end = a->n_heads * (me->thread + 1) / me->n_threads;
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, size), *angle = at(me, a->angle, b);
        float *to = state_after(step, a->state, b, size), *turns = at(me, a->turns, b);
        for (int64_t i = 0; i < a->n_angles; i++) turns[i] = tanhf(angle[i]);
        for (int64_t head = a->n_heads * me->thread / me->n_threads; head < end; head++)
            keys_of_head(me, a, b, head, from, to);
    }
}

/* What the channels of a head have in common. past: NULL if the memory is empty */
typedef struct {
    int64_t n;
    const float *same, *crossed, *past, *write, *query;
} turning_head;

/* A row of the memory. inputs: what each rank writes into it, and n_ranks behind, what it wrote before. Returns what a
 * single rank reads. */
INLINE float turning_channel(const int64_t n_ranks, const turning_head *a, const float *inputs, const float *from,
                             float *to) {
    int64_t n = a->n;
    vf32 sum = {0};
    for (int64_t k = 0; k < n; k += LANES) {
        int64_t left = n - k;
        vf32 s = from ? turned(a->same + k, a->crossed + k, from + k, left) : broadcast_f32(0);
        for (int64_t r = 0; r < n_ranks; r++) {
            s += load_upto(a->write + r * n + k, left) * inputs[r];
            if (from) s += load_upto(a->past + r * n + k, left) * inputs[n_ranks + r];
        }
        store_upto(to + k, s, left);
        if (n_ranks == 1) sum += s * load_upto(a->query + k, left);
    }
    return sum_f32(sum);
}

INLINE float product_of_rows(int64_t n, const float *x, const float *y) {
    vf32 sum = {0};
    for (int64_t k = 0; k < n; k += LANES) sum += load_upto(x + k, n - k) * load_upto(y + k, n - k);
    return sum_f32(sum);
}

static void run_turning_memory(const worker *me, const turning_memory *a) {
    const decoding *step = me->step;
    int64_t width = a->n_heads * a->d_head, n = a->d_state, n_ranks = a->n_ranks;
    range mine = share_of(me, width);
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *from = state_before(step, a->state, b, width * n), *last = state_before(step, a->last, b, width);
        float *to = state_after(step, a->state, b, width * n), *kept = state_after(step, a->last, b, width);
        const float *v = at(me, a->v, b);
        float *inputs = at(me, a->inputs, b), *y = at(me, a->y, b);
        for (int64_t c = mine.first; c < mine.end; c++) {
            int64_t number = c / a->d_head, first = number * n_ranks * n;
            turning_head head = {.n = n,
                                 .same = at(me, a->same, b) + number * n,
                                 .crossed = at(me, a->crossed, b) + number * n,
                                 .past = at(me, a->past, b) + first,
                                 .write = at(me, a->write, b) + first,
                                 .query = at(me, a->query, b) + first};
            const float *scales = a->scales ? a->scales + number * n_ranks * a->d_head + c % a->d_head : NULL;
            for (int64_t r = 0; r < n_ranks; r++) {
                float scale = scales ? scales[r * a->d_head] : 1.0f;
                inputs[r] = scale * v[c];
                inputs[n_ranks + r] = last ? scale * last[c] : 0.0f;
            }
            kept[c] = v[c];
            const float *row = from ? from + c * n : NULL;
            float read = n_ranks == 1 ? turning_channel(1, &head, inputs, row, to + c * n)
                                      : turning_channel(n_ranks, &head, inputs, row, to + c * n);
            for (int64_t r = 0; r < n_ranks; r++) {
                if (n_ranks > 1) read = product_of_rows(n, to + c * n, head.query + r * n);
                y[r * width + c] = read + a->D[number] * inputs[r];
            }
        }
    }
}

static void run_join_ranks(const worker *me, const join_ranks *a) {
    const decoding *step = me->step;
    int64_t width = a->width;
    range mine = step->buffers[a->output.buffer].local ? (range){0, width} : share_of(me, width);
    for (int64_t b = 0; b < step->n_rows; b++) {
        const float *z = at(me, a->z, b), *y = at(me, a->y, b);
        float *out = at(me, a->output, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            vf32 sum = {0}, gate = load_upto(z + i, left);
            for (int64_t r = 0, k = i; r < a->n_ranks; r++, k += width) {
                vf32 read = load_upto(y + k, left) * silu_f32(gate * load_upto(a->gate_scales + k, left));
                sum += load_upto(a->out_scales + k, left) * read;
            }
            store_upto(out + i, sum, left);
        }
    }
}

#endif
