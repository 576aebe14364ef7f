/* A diagonal time-invariant system over a whole sequence, the states never in memory:
 *
 *   h_t = A h_{t-1} + B u_t,   y_t = Re(C h_t) + D u_t,   h (n complex numbers a channel), u real.
 *
 * LANES channels go side by side, STATES of their numbers at a time: these stay in registers over STEPS steps, and what
 * they add to the output goes to a small buffer that stays in the first-level cache.
 */
#include "parallel.h"
#include "vector.h"

#define STEPS 64 /* of u and y in the cache: 2 * 64 * 64 bytes */
#define STATES 2 /* two chains of two multiply-adds in flight fill both units */

enum { RE_A, IM_A, RE_B, IM_B, RE_C, IM_C, RE_H, IM_H, PLANES };

typedef struct {
    const float *u, *A, *B, *C, *D; /* (batch, length, channels); (systems, n, 2); D (systems,) or NULL */
    const float *before;            /* (batch, channels, n, 2) */
    const int64_t *lengths;         /* (batch,) or NULL: a row ends there, y is 0 beyond */
    float *y, *after, *scratch;     /* scratch: for each thread PLANES * even(n) vectors */
    int64_t batch, length, channels, each, n; /* `each` neighbouring channels share a system */
} diagonal_scan_call;

INLINE int64_t even(int64_t n) { return n + n % STATES; }

/* y (count, LANES) += what STATES numbers of each channel, planes apart by `stride`, give for u; they move on */
INLINE void scan_states(float *plane, int64_t stride, const float *u, float *y, int64_t count) {
    vf32 v[PLANES][STATES];
    for (int i = 0; i < PLANES; i++)
        for (int j = 0; j < STATES; j++) v[i][j] = load_f32(plane + i * stride + j * LANES);
    for (int64_t t = 0; t < count; t++) {
        vf32 input = load_f32(u + t * LANES), sum = load_f32(y + t * LANES);
        for (int j = 0; j < STATES; j++) {
            vf32 re = v[RE_B][j] * input + v[RE_A][j] * v[RE_H][j], im = v[IM_B][j] * input + v[IM_A][j] * v[RE_H][j];
            v[RE_H][j] = re - v[IM_A][j] * v[IM_H][j];
            v[IM_H][j] = im + v[RE_A][j] * v[IM_H][j];
            sum += v[RE_C][j] * v[RE_H][j] - v[IM_C][j] * v[IM_H][j];
        }
        store_f32(y + t * LANES, sum);
    }
    for (int i = RE_H; i < PLANES; i++)
        for (int j = 0; j < STATES; j++) store_f32(plane + i * stride + j * LANES, v[i][j]);
}

/* Item: a row of the batch and LANES channels */
static void diagonal_scan_item(void *context, int64_t item, int64_t thread) {
    const diagonal_scan_call *a = context;
    int64_t blocks = (a->channels + LANES - 1) / LANES, n = a->n;
    int64_t row = item / blocks, first = item % blocks * LANES;
    int64_t width = a->channels - first < LANES ? a->channels - first : LANES;
    int64_t stride = even(n) * LANES;
    float *plane = a->scratch + thread * PLANES * stride;
    float skip[LANES] = {0}, u[STEPS * LANES], y[STEPS * LANES];
    if (n > 0) memset(plane, 0, sizeof(float) * (size_t)(PLANES * stride)); /* no states, no scratch memory */
    for (int64_t c = 0; c < width; c++) {
        int64_t system = (first + c) / a->each;
        const float *state = a->before + (row * a->channels + first + c) * n * 2;
        const float *from[] = {a->A + system * n * 2, a->B + system * n * 2, a->C + system * n * 2, state};
        for (int64_t k = 0; k < n; k++)
            for (int i = 0; i < PLANES; i++) plane[i * stride + k * LANES + c] = from[i / 2][2 * k + i % 2];
        if (a->D) skip[c] = a->D[system];
    }
    int64_t end = a->lengths ? a->lengths[row] : a->length;
    for (int64_t begin = 0; begin < a->length; begin += STEPS) {
        int64_t stop = begin + STEPS < a->length ? begin + STEPS : a->length;
        int64_t count = end < begin ? 0 : end < stop ? end - begin : stop - begin;
        const float *in = a->u + (row * a->length + begin) * a->channels + first;
        float *out = a->y + (row * a->length + begin) * a->channels + first;
        for (int64_t t = 0; t < count; t++) {
            vf32 input = width == LANES ? load_f32(in + t * a->channels) : load_some_f32(in + t * a->channels, width);
            store_f32(u + t * LANES, input);
            store_f32(y + t * LANES, load_f32(skip) * input);
        }
        for (int64_t k = 0; k < n; k += STATES) scan_states(plane + k * LANES, stride, u, y, count);
        for (int64_t t = 0; t < stop - begin; t++) {
            if (t < count) memcpy(out + t * a->channels, y + t * LANES, sizeof(float) * (size_t)width);
            else memset(out + t * a->channels, 0, sizeof(float) * (size_t)width);
        }
    }
    for (int64_t c = 0; c < width; c++) {
        float *state = a->after + (row * a->channels + first + c) * n * 2;
        for (int64_t k = 0; k < n; k++)
            for (int i = 0; i < 2; i++) state[2 * k + i] = plane[(RE_H + i) * stride + k * LANES + c];
    }
}

void EXPORT_PLAIN(diagonal_scan)(const float *u, const float *A, const float *B, const float *C, const float *D,
                                 const float *before, const int64_t *lengths, float *y, float *after, float *scratch,
                                 int64_t batch, int64_t length, int64_t channels, int64_t each, int64_t n,
                                 int64_t n_threads) {
    diagonal_scan_call call = {u, A, B, C, D, before, lengths, y, after, scratch, batch, length, channels, each, n};
    parallel_for(batch * ((channels + LANES - 1) / LANES), n_threads, diagonal_scan_item, &call);
}
