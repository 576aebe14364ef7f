/* The adjoint of the diagonal scan. With g the gradient of y and l that of h, from the last step to the first:
 *
 *   l_t = conj(C) g_t + conj(A) l_{t+1},
 *   du_t = Re(conj(B) l_t) + D g_t,   dA = sum_t l_t conj(h_{t-1}),   dB = sum_t l_t u_t,   dC = sum_t g_t conj(h_t).
 *
 * The states are computed again: a first walk keeps those before every BLOCK steps, and each block is walked forwards
 * and back while its states lie in the first-level cache. Sums over time are taken block by block.
 */
#include "parallel.h"
#include "vector.h"

#define BLOCK 64

enum { RE_A, IM_A, RE_B, IM_B, RE_C, IM_C, RE_H, IM_H, RE_L, IM_L, RE_DA, IM_DA, RE_DB, IM_DB, RE_DC, IM_DC, PLANES };

typedef struct {
    const float *grad_y, *grad_after;   /* as y and after */
    const float *u, *A, *B, *C, *D;     /* (batch, length, channels); (systems, n, 2); D (systems,) or NULL */
    const float *before;                /* (batch, channels, n, 2) */
    const int64_t *lengths;             /* (batch,) or NULL */
    float *du, *dA, *dB, *dC, *dD;      /* as u; (batch, channels, n, 2) each; (batch, channels) */
    float *dbefore, *scratch;           /* scratch: for each thread (PLANES + 2 blocks) * n vectors */
    int64_t batch, length, channels, each, n;
} diagonal_scan_call;

/* The state of one number of each channel over `count` steps */
INLINE void walk(float *plane, int64_t stride, const float *u, int64_t count) {
    vf32 a = load_f32(plane + RE_A * stride), a_im = load_f32(plane + IM_A * stride);
    vf32 b = load_f32(plane + RE_B * stride), b_im = load_f32(plane + IM_B * stride);
    vf32 h = load_f32(plane + RE_H * stride), h_im = load_f32(plane + IM_H * stride);
    for (int64_t t = 0; t < count; t++) {
        vf32 input = load_f32(u + t * LANES);
        vf32 re = b * input + a * h, im = b_im * input + a_im * h;
        h = re - a_im * h_im;
        h_im = im + a * h_im;
    }
    store_f32(plane + RE_H * stride, h);
    store_f32(plane + IM_H * stride, h_im);
}

/* One number of each channel through a block and back. h, h_im: before the block; u, g (count, LANES); du is added to */
INLINE void there_and_back(float *plane, int64_t stride, vf32 h, vf32 h_im, const float *u, const float *g, float *du,
                           int64_t count) {
    float states[2 * (BLOCK + 1) * LANES];
    vf32 a = load_f32(plane + RE_A * stride), a_im = load_f32(plane + IM_A * stride);
    vf32 b = load_f32(plane + RE_B * stride), b_im = load_f32(plane + IM_B * stride);
    store_f32(states, h);
    store_f32(states + LANES, h_im);
    for (int64_t t = 0; t < count; t++) {
        vf32 input = load_f32(u + t * LANES);
        vf32 re = b * input + a * h, im = b_im * input + a_im * h;
        h = re - a_im * h_im;
        h_im = im + a * h_im;
        store_f32(states + 2 * (t + 1) * LANES, h);
        store_f32(states + (2 * (t + 1) + 1) * LANES, h_im);
    }
    vf32 c = load_f32(plane + RE_C * stride), c_im = load_f32(plane + IM_C * stride);
    vf32 l = load_f32(plane + RE_L * stride), l_im = load_f32(plane + IM_L * stride);
    vf32 da = {0}, da_im = {0}, db = {0}, db_im = {0}, dc = {0}, dc_im = {0};
    for (int64_t t = count - 1; t >= 0; t--) {
        vf32 input = load_f32(u + t * LANES), gradient = load_f32(g + t * LANES);
        l += c * gradient;
        l_im -= c_im * gradient;
        dc += gradient * h;
        dc_im -= gradient * h_im;
        db += l * input;
        db_im += l_im * input;
        h = load_f32(states + 2 * t * LANES);
        h_im = load_f32(states + (2 * t + 1) * LANES);
        da += l * h + l_im * h_im;
        da_im += l_im * h - l * h_im;
        store_f32(du + t * LANES, load_f32(du + t * LANES) + l * b + l_im * b_im);
        vf32 re = a * l + a_im * l_im;
        l_im = a * l_im - a_im * l;
        l = re;
    }
    vf32 found[] = {l, l_im, da, da_im, db, db_im, dc, dc_im};
    for (int i = 0; i < 8; i++) {
        float *at = plane + (RE_L + i) * stride;
        store_f32(at, i < 2 ? found[i] : load_f32(at) + found[i]);
    }
}

/* `count` steps of LANES channels, or of as many as there are, side by side */
INLINE void gather(float *to, const float *from, int64_t channels, int64_t width, int64_t count) {
    for (int64_t t = 0; t < count; t++)
        store_f32(to + t * LANES,
                  width == LANES ? load_f32(from + t * channels) : load_some_f32(from + t * channels, width));
}

/* Item: a row of the batch and LANES channels */
static void diagonal_scan_backward_item(void *context, int64_t item, int64_t thread) {
    const diagonal_scan_call *a = context;
    int64_t blocks = (a->channels + LANES - 1) / LANES, n = a->n, stride = n * LANES;
    int64_t row = item / blocks, first = item % blocks * LANES;
    int64_t width = a->channels - first < LANES ? a->channels - first : LANES;
    int64_t n_blocks = (a->length + BLOCK - 1) / BLOCK;
    float *plane = a->scratch + thread * (PLANES + 2 * n_blocks) * stride, *kept = plane + PLANES * stride;
    float skip[LANES] = {0}, skipped[LANES] = {0}, u[BLOCK * LANES], g[BLOCK * LANES], du[BLOCK * LANES];
    if (n > 0) memset(plane, 0, sizeof(float) * (size_t)(PLANES * stride)); /* no states, no scratch memory */
    for (int64_t c = 0; c < width; c++) {
        int64_t system = (first + c) / a->each, channel = (row * a->channels + first + c) * n * 2;
        const float *from[] = {a->A + system * n * 2, a->B + system * n * 2, a->C + system * n * 2, a->before + channel,
                               a->grad_after + channel};
        for (int64_t k = 0; k < n; k++)
            for (int i = 0; i <= IM_L; i++) plane[i * stride + k * LANES + c] = from[i / 2][2 * k + i % 2];
        if (a->D) skip[c] = a->D[system];
    }
    int64_t end = a->lengths ? a->lengths[row] : a->length;
    end = end < 0 ? 0 : end < a->length ? end : a->length;
    const float *inputs = a->u + row * a->length * a->channels + first;
    for (int64_t block = 0; block * BLOCK < end; block++) {
        memcpy(kept + 2 * block * stride, plane + RE_H * stride, sizeof(float) * (size_t)(2 * stride));
        int64_t count = end - block * BLOCK < BLOCK ? end - block * BLOCK : BLOCK;
        if ((block + 1) * BLOCK >= end) break; /* the last one is walked below */
        gather(u, inputs + block * BLOCK * a->channels, a->channels, width, count);
        for (int64_t k = 0; k < n; k++) walk(plane + k * LANES, stride, u, count);
    }
    for (int64_t block = n_blocks - 1; block >= 0; block--) {
        int64_t begin = block * BLOCK, stop = begin + BLOCK < a->length ? begin + BLOCK : a->length;
        int64_t count = end < begin ? 0 : end < stop ? end - begin : stop - begin;
        int64_t at = (row * a->length + begin) * a->channels + first;
        gather(u, a->u + at, a->channels, width, count);
        gather(g, a->grad_y + at, a->channels, width, count);
        vf32 sum = {0};
        for (int64_t t = 0; t < count; t++) {
            vf32 gradient = load_f32(g + t * LANES);
            store_f32(du + t * LANES, load_f32(skip) * gradient);
            sum += gradient * load_f32(u + t * LANES);
        }
        store_f32(skipped, load_f32(skipped) + sum);
        const float *states = kept + 2 * block * stride;
        for (int64_t k = 0; k < n && count > 0; k++) {
            vf32 h = load_f32(states + k * LANES), h_im = load_f32(states + stride + k * LANES);
            there_and_back(plane + k * LANES, stride, h, h_im, u, g, du, count);
        }
        for (int64_t t = 0; t < stop - begin; t++) {
            float *out = a->du + at + t * a->channels;
            if (t < count) memcpy(out, du + t * LANES, sizeof(float) * (size_t)width);
            else memset(out, 0, sizeof(float) * (size_t)width);
        }
    }
    for (int64_t c = 0; c < width; c++) {
        int64_t channel = row * a->channels + first + c;
        float *to[] = {a->dbefore, a->dA, a->dB, a->dC};
        for (int i = 0; i < 8; i++)
            for (int64_t k = 0; k < n; k++)
                to[i / 2][2 * (channel * n + k) + i % 2] = plane[(RE_L + i) * stride + k * LANES + c];
        a->dD[channel] = skipped[c];
    }
}

void EXPORT_PLAIN(diagonal_scan_backward)(const float *grad_y, const float *grad_after, const float *u, const float *A,
                                          const float *B, const float *C, const float *D, const float *before,
                                          const int64_t *lengths, float *du, float *dA, float *dB, float *dC, float *dD,
                                          float *dbefore, float *scratch, int64_t batch, int64_t length,
                                          int64_t channels, int64_t each, int64_t n, int64_t n_threads) {
    diagonal_scan_call call = {grad_y, grad_after, u,  A,       B,       C,     D,      before,   lengths, du, dA,
                               dB,     dC,         dD, dbefore, scratch, batch, length, channels, each,    n};
    parallel_for(batch * ((channels + LANES - 1) / LANES), n_threads, diagonal_scan_backward_item, &call);
}
