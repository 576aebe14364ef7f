/* y_b = W x_b + bias for the sequences b of a step, W being read from memory once for all of them.
 *
 * A thread does its share of the blocks of rows. Which function multiplies a block depends on the precision, on how the
 * step asks for memory, and on whether the processor has AVX512-VNNI; only the first changes a number.
 */
#ifndef STATEWISE_DECODE_LINEAR_H
#define STATEWISE_DECODE_LINEAR_H

#include "decode_integer.h"
#include "decode_real.h"

#define PRODUCTS(name) {name##_NONE, name##_NEAR, name##_PASSING}
#define INTEGER_PRODUCTS(name, suffix) {name##_NONE_##suffix, name##_NEAR_##suffix, name##_PASSING_##suffix}

static block_product product_of(const decoding *step, int64_t precision) {
    static const block_product plain[4][3] = {
        PRODUCTS(multiply_FLOAT32),
        PRODUCTS(multiply_BFLOAT16),
        INTEGER_PRODUCTS(multiply_INT8, plain),
        INTEGER_PRODUCTS(multiply_INT4, plain),
    };
#if defined(__AVX512F__)
    static const block_product vnni[2][3] = {INTEGER_PRODUCTS(multiply_INT8, vnni), INTEGER_PRODUCTS(multiply_INT4, vnni)};
    if (step->vnni && precision >= INT8) return vnni[precision - INT8][step->prefetch];
#endif
    return plain[precision][step->prefetch];
}

static void run_linear(const worker *me, const linear *a) {
    const matrix *w = &a->weight;
    const decoding *step = me->step;
    int64_t n_rows = step->n_rows;
    range mine = share_of(me, w->n_rows);
    place input = a->input;
    if (w->precision >= INT8) { /* every thread rounds all of x for itself */
        input = a->rounded;
        for (int64_t b = 0; b < n_rows; b++) round_row(w, at(me, a->input, b), at(me, input, b));
    }
    multiplication p = {w, at(me, input, 0), step->buffers[input.buffer].width, n_rows, step->ahead,
                        step->alike || a->alone};
    block_product multiply = product_of(step, w->precision);
    float *sums = at(me, a->sums, 0);
    for (int64_t row = mine.first; row < mine.end; row += BLOCK) {
        int64_t n = mine.end - row < BLOCK ? mine.end - row : BLOCK;
        multiply(&p, row / BLOCK, sums);
        for (int64_t b = 0; b < n_rows; b++) {
            float *out = at(me, a->output, b) + row;
            for (int64_t i = 0; i < n; i++) {
                float value = sums[b * BLOCK + i];
                if (a->bias) value += a->bias[row + i];
                if (a->scales) value *= a->scales[row + i];
                out[i] = a->add ? out[i] + value : value;
            }
        }
    }
}

#endif
