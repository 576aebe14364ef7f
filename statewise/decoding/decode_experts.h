/* Mixtures of experts: which experts each token has chosen, and their products.
 *
 * An expert's weights are read from memory once for all tokens that chose it, and not at all where none did. A token's
 * experts are added up in the order of their numbers, so that its sums do not depend on the other tokens.
 */
#ifndef STATEWISE_DECODE_EXPERTS_H
#define STATEWISE_DECODE_EXPERTS_H

#include <float.h>

#include "decode_linear.h"
#include "decode_pointwise.h"

#define IN_A_GROUP 2 /* weights of a group's best experts, of which the sum is the group's */

/* What may be chosen is above -infinity, which is taken. NaN stays. */
INLINE float choosable(float x) { return x < -FLT_MAX ? -FLT_MAX : x; }

/* The place of the largest of n numbers that is not taken. Of NaN the first counts. */
INLINE int64_t place_of_largest(const float *x, int64_t n) {
    int64_t best = 0;
    while (best + 1 < n && x[best] == -INFINITY) best++;
    for (int64_t i = best + 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Each expert's weight by its score, before that of the chosen is known: softmax, sigmoid, or the score itself. */
static void weigh(const route *a, const float *scores, float *every) {
    int64_t n = a->routes.n_experts;
    if (a->kind == SOFTMAX_OF_CHOSEN) {
        memcpy(every, scores, sizeof(float) * (size_t)n);
        return;
    }
    float most = scores[place_of_largest(scores, n)], sum = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        vf32 x = load_upto(scores + i, n - i);
        vf32 y = a->kind == SIGMOID_OF_EACH ? sigmoid_f32(x) : exp2_f32((x - most) * (float)LOG2_E);
        store_upto(every + i, y, n - i);
    }
    if (a->kind == SIGMOID_OF_EACH) return;
    for (int64_t i = 0; i < n; i++) sum += every[i];
    for (int64_t i = 0; i < n; i++) every[i] /= sum;
}

/* Takes the experts of all but the best groups out of what may be chosen. */
static void leave_best_groups(const route *a, float *asked, float *groups) {
    int64_t size = a->routes.n_experts / a->n_groups;
    for (int64_t g = 0; g < a->n_groups; g++) {
        const float *x = asked + g * size;
        int64_t best = place_of_largest(x, size), second = best ? 0 : 1;
        for (int64_t i = second + 1; i < size; i++)
            if (i != best && x[i] > x[second]) second = i;
        groups[g] = choosable(x[best] + (size >= IN_A_GROUP ? x[second] : 0.0f));
    }
    uint8_t kept[a->n_groups];
    memset(kept, 0, sizeof kept);
    for (int64_t k = 0; k < a->n_groups_active; k++) {
        int64_t best = place_of_largest(groups, a->n_groups);
        kept[best] = 1;
        groups[best] = -INFINITY;
    }
    for (int64_t i = 0; i < a->routes.n_experts; i++)
        if (!kept[i / size]) asked[i] = -INFINITY;
}

/* The experts of one token, and their weights. */
static void choose(const worker *me, const route *a, int64_t b, int32_t *chosen, float *weights) {
    int64_t n = a->routes.n_experts, n_active = a->routes.n_active;
    float *every = at(me, a->every, b), *asked = at(me, a->asked, b), sum = 0, most = 0;
    weigh(a, at(me, a->scores, b), every);
    for (int64_t i = 0; i < n; i++) asked[i] = choosable(a->bias ? every[i] + a->bias[i] : every[i]);
    if (a->n_groups > 1) leave_best_groups(a, asked, at(me, a->groups, b));
    for (int64_t j = 0; j < n_active; j++) {
        int64_t best = place_of_largest(asked, n);
        asked[best] = -INFINITY;
        chosen[j] = (int32_t)best;
        weights[j] = every[best];
        if (j == 0) most = weights[0];
        if (a->kind == SOFTMAX_OF_CHOSEN) weights[j] = exp2_f32(broadcast_f32((weights[j] - most) * (float)LOG2_E))[0];
        sum += weights[j];
    }
    float divisor = a->kind == SOFTMAX_OF_CHOSEN ? sum : a->normalize ? sum + (float)a->smallest : 1.0f;
    for (int64_t j = 0; j < n_active; j++) weights[j] = weights[j] / divisor * (float)a->scale;
}

INLINE int32_t *numbers_at(const worker *me, place where) { return (int32_t *)(void *)at(me, where, 0); }

static void run_route(const worker *me, const route *a) {
    const routes *to = &a->routes;
    int64_t n_rows = me->step->n_rows, n_active = to->n_active, n_pairs = n_rows * n_active;
    float *by_token = at(me, a->chosen, 0), *weights = at(me, to->weights, 0);
    int32_t *experts = (int32_t *)(void *)(by_token + n_pairs);
    int32_t *tokens = numbers_at(me, to->tokens), *begins = numbers_at(me, to->begins);
    memset(begins, 0, sizeof(int32_t) * (size_t)(to->n_experts + 1));
    for (int64_t b = 0; b < n_rows; b++) choose(me, a, b, experts + b * n_active, by_token + b * n_active);
    for (int64_t i = 0; i < n_pairs; i++) begins[experts[i] + 1]++;
    for (int64_t e = 0; e < to->n_experts; e++) begins[e + 1] += begins[e];
    for (int64_t i = 0; i < n_pairs; i++) { /* begins[e] goes on to where e's next pair lies */
        int32_t at_now = begins[experts[i]]++;
        weights[at_now] = by_token[i];
        tokens[at_now] = (int32_t)(i / n_active);
    }
    memmove(begins + 1, begins, sizeof(int32_t) * (size_t)to->n_experts);
    begins[0] = 0;
}

INLINE int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

/* The inputs of an expert's tokens, one behind the other: as they lie, if they do, or else copied. */
static multiplication inputs_of(const worker *me, const experts_in *a, place input, const int32_t *tokens, int64_t n) {
    const decoding *step = me->step;
    const float *x = at(me, input, tokens[0]);
    int64_t stride = step->buffers[input.buffer].width, width = a->weight.precision >= INT8 ? stride : a->weight.n_columns;
    if (tokens[n - 1] - tokens[0] != n - 1) {
        for (int64_t r = 0; r < n; r++)
            memcpy(at(me, a->gathered, r), at(me, input, tokens[r]), sizeof(float) * (size_t)width);
        x = at(me, a->gathered, 0);
        stride = step->buffers[a->gathered.buffer].width;
    }
    return (multiplication){&a->weight, x, stride, n, step->ahead, step->alike};
}

/* f(W x), or f(W x) (V x), of a block for the n pairs of an expert; sums: W x, and behind it V x */
static void leave_block(const experts_in *a, const float *sums, int64_t row, int64_t n, float *out) {
    int64_t width = a->d_hidden - row < BLOCK ? a->d_hidden - row : BLOCK;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < width; i += LANES) {
            vf32 y = activate(a->kind, load_f32(sums + r * BLOCK + i));
            if (a->gated) y *= load_f32(sums + (n + r) * BLOCK + i);
            store_upto(out + r * a->stride + row + i, y, width - i);
        }
}

static void run_experts_in(const worker *me, const experts_in *a) {
    const decoding *step = me->step;
    const matrix *w = &a->weight;
    const int32_t *begins = numbers_at(me, a->routes.begins), *tokens = numbers_at(me, a->routes.tokens);
    int64_t n_experts = a->routes.n_experts, units = blocks_of(a->d_hidden), turns = a->gated ? 2 : 1, n_read = 0;
    for (int64_t e = 0; e < n_experts; e++) n_read += begins[e + 1] > begins[e];
    int64_t first = n_read * units * me->thread / me->n_threads, end = n_read * units * (me->thread + 1) / me->n_threads;
    if (first == end) return;
    place input = a->input;
    if (w->precision >= INT8) {
        input = a->rounded;
        for (int64_t b = 0; b < step->n_rows; b++) round_row(w, at(me, a->input, b), at(me, input, b));
    }
    block_product multiply = product_of(step, w->precision);
    float *sums = at(me, a->sums, 0), *output = at(me, a->output, 0);
    for (int64_t e = 0, before = 0; e < n_experts && before < end; e++) {
        int64_t n = begins[e + 1] - begins[e];
        if (!n) continue;
        int64_t from = first > before ? first - before : 0, to = end - before < units ? end - before : units;
        before += units;
        if (from >= to) continue;
        multiplication p = inputs_of(me, a, input, tokens + begins[e], n);
        for (int64_t unit = from; unit < to; unit++) {
            int64_t block = (e * units + unit) * turns;
            multiply(&p, block, sums);
            if (a->gated) multiply(&p, block + 1, sums + n * BLOCK);
            leave_block(a, sums, unit * BLOCK, n, output + begins[e] * a->stride);
        }
    }
}

static void run_experts_out(const worker *me, const experts_out *a) {
    const decoding *step = me->step;
    const matrix *w = &a->weight;
    const int32_t *begins = numbers_at(me, a->routes.begins), *tokens = numbers_at(me, a->routes.tokens);
    const float *weights = at(me, a->routes.weights, 0), *x = at(me, a->input, 0);
    int64_t n_experts = a->routes.n_experts, stride = a->stride;
    range mine = share_of(me, w->n_rows);
    if (mine.first == mine.end) return;
    if (w->precision >= INT8) { /* every thread rounds all for itself */
        float *rounded = at(me, a->rounded, 0);
        for (int64_t i = 0; i < begins[n_experts]; i++) round_row(w, x + i * stride, rounded + i * a->rounded_stride);
        x = rounded;
        stride = a->rounded_stride;
    }
    for (int64_t b = 0; b < step->n_rows && !a->add; b++)
        memset(at(me, a->output, b) + mine.first, 0, sizeof(float) * (size_t)(mine.end - mine.first));
    block_product multiply = product_of(step, w->precision);
    float *sums = at(me, a->sums, 0);
    for (int64_t e = 0; e < n_experts; e++) {
        int64_t n = begins[e + 1] - begins[e];
        if (!n) continue;
        multiplication p = {w, x + begins[e] * stride, stride, n, step->ahead, step->alike};
        for (int64_t row = mine.first; row < mine.end; row += BLOCK) {
            int64_t width = mine.end - row < BLOCK ? mine.end - row : BLOCK;
            multiply(&p, e * blocks_of(w->n_rows) + row / BLOCK, sums);
            for (int64_t r = 0; r < n; r++) {
                float *out = at(me, a->output, tokens[begins[e] + r]) + row, weight = weights[begins[e] + r];
                for (int64_t i = 0; i < width; i++) out[i] += weight * sums[r * BLOCK + i];
            }
        }
    }
}

#endif
