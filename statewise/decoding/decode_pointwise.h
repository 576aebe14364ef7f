/* Norms, activations and what else acts on each number, or each sequence's row of numbers, by itself. */
#ifndef STATEWISE_DECODE_POINTWISE_H
#define STATEWISE_DECODE_POINTWISE_H

#include "decode_program.h"

INLINE vf32 sum_of(const float *x, int64_t n, vf32 less, int squares) {
    vf32 sum = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        vf32 value = load_upto(x + i, n - i) - less;
        if (n - i < LANES) { /* the lanes beyond the end count nothing */
            vf32 kept = {0};
            memcpy(&kept, &value, sizeof(float) * (size_t)(n - i));
            value = kept;
        }
        sum += squares ? value * value : value;
    }
    return sum;
}

static void norm_row(const norm *a, const float *x, const float *gate, float *out) {
    int64_t n = a->width / a->n_groups;
    for (int64_t group = 0; group < a->n_groups; group++) {
        int64_t first = group * n;
        float mean = 0, scale = 1;
        if (a->kind == LAYER) mean = sum_f32(sum_of(x + first, n, broadcast_f32(0), 0)) / (float)n;
        if (a->kind != AFFINE) {
            float square = sum_f32(sum_of(x + first, n, broadcast_f32(mean), 1)) / (float)n;
            scale = 1.0f / sqrtf(square + (float)a->epsilon);
        }
        for (int64_t i = first; i < first + n; i += LANES) {
            int64_t left = first + n - i;
            vf32 y = (load_upto(x + i, left) - mean) * scale;
            if (a->weight) y *= load_upto(a->weight + i, left);
            if (a->bias) y += load_upto(a->bias + i, left);
            if (gate) {
                vf32 raw = load_upto(gate + i, left), share = sigmoid_f32(raw);
                y *= a->gate_kind == SIGMOID ? share : raw * share;
            }
            store_upto(out + i, y, left);
        }
    }
}

static void run_norm(const worker *me, const norm *a) {
    int64_t n = me->step->n_rows, first = 0, end = n;
    if (!me->step->buffers[a->output.buffer].local) {
        first = n * me->thread / me->n_threads;
        end = n * (me->thread + 1) / me->n_threads;
    }
    for (int64_t b = first; b < end; b++)
        norm_row(a, at(me, a->input, b), at(me, a->gate, b), at(me, a->output, b));
}

static void run_add_row(const worker *me, const add_row *a) {
    const decoding *step = me->step;
    const int64_t *position = (const int64_t *)(uintptr_t)step->state[a->positions];
    range mine = step->buffers[a->x.buffer].local ? (range){0, a->width} : share_of(me, a->width);
    int64_t at_now = 0;
    for (int64_t b = 0; b < step->n_rows; b++) {
        at_now = position_of(step, position, b, at_now);
        const float *added = a->table + at_now * a->width;
        float *x = at(me, a->x, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            store_upto(x + i, load_upto(x + i, left) + load_upto(added + i, left), left);
        }
    }
}

/* erf(x) to an absolute 1.5e-7. Abramowitz & Stegun 7.1.26; NaN stays. */
INLINE vf32 erf_f32(vf32 x) {
    vf32 size = select_f32(x < 0.0f, -x, x);
    vf32 t = 1.0f / (1.0f + 0.3275911f * size);
    vf32 p = broadcast_f32(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf32 y = 1.0f - p * t * exp2_f32(size * size * (float)-LOG2_E);
    return select_f32(x < 0.0f, -y, y);
}

INLINE vf32 activate(int64_t kind, vf32 x) {
    if (kind == GELU) return 0.5f * x * (1.0f + erf_f32(x * 0.70710678118654752f));
    if (kind == GELU_TANH) return x * sigmoid_f32(1.5957691216057308f * (x + 0.044715f * x * x * x));
    if (kind == RELU) return select_f32(x <= 0.0f, broadcast_f32(0.0f), x);
    if (kind == RELU2) return select_f32(x <= 0.0f, broadcast_f32(0.0f), x * x);
    if (kind == SILU) return silu_f32(x);
    if (kind == SIGMOID) return sigmoid_f32(x);
    if (kind == IDENTITY) return x;
    return 2.0f * sigmoid_f32(2.0f * x) - 1.0f;
}

static void run_activation(const worker *me, const activation *a) {
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        float *x = at(me, a->x, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            vf32 y = activate(a->kind, load_upto(x + i, left));
            if (a->gated) y *= load_upto(x + a->width + i, left);
            store_upto(x + i, y, left);
        }
    }
}

static void run_multiply(const worker *me, const multiply *a) {
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        float *x = at(me, a->x, b);
        const float *by = at(me, a->by, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            store_upto(x + i, load_upto(x + i, left) * activate(a->kind, load_upto(by + i, left)), left);
        }
    }
}

static void run_clear(const worker *me, const clear *a) {
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < me->step->n_rows; b++)
        memset(at(me, a->x, b) + mine.first, 0, sizeof(float) * (size_t)(mine.end - mine.first));
}

static void run_add(const worker *me, const add *a) {
    range mine = share_of(me, a->width);
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        float *x = at(me, a->x, b);
        const float *by = at(me, a->by, b), *gate = at(me, a->gate, b);
        float scale = (float)a->scale * (gate ? sigmoid_f32(broadcast_f32(*gate))[0] : 1.0f);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            store_upto(x + i, load_upto(x + i, left) + scale * load_upto(by + i, left), left);
        }
    }
}

static void run_cap(const worker *me, const cap *a) {
    range mine = share_of(me, a->width);
    float most = (float)a->cap;
    for (int64_t b = 0; b < me->step->n_rows; b++) {
        float *x = at(me, a->x, b);
        for (int64_t i = mine.first; i < mine.end; i += LANES) {
            int64_t left = mine.end - i;
            store_upto(x + i, most * activate(TANH, load_upto(x + i, left) / most), left);
        }
    }
}

#endif
