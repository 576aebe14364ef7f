/* The gradient of what a short convolution reads, each number summed from the newest output that it reaches to the oldest.
 *
 * It begins with what later calls have left: so a sequence may be cut anywhere. past holds the n_taps - 1 inputs before a
 * call and then the call's own; z_t = sum_i taps_i past_{n_taps - 1 + t - i}. dz (batch, length, width) and dpast (batch,
 * n_taps - 1 + length, width) are contiguous, taps (n_taps, width); dpast is added to. Inputs of another segment than
 * their output's are left out; the history is segment 0.
 */
#define REAL_BITS 32
#include "real.h"

#include "parallel.h"

#define CHUNK 256 /* numbers of past that an item goes through */

typedef struct {
    const real *dz, *taps;
    const int64_t *segments;
    real *dpast;
    int64_t length, width, n_taps, n_chunks;
} ordered;

static void some_inputs(void *context, int64_t item, int64_t thread) {
    const ordered *o = context;
    (void)thread;
    int64_t row = item / o->n_chunks, first = item % o->n_chunks * CHUNK, before = o->n_taps - 1;
    int64_t end = first + CHUNK < before + o->length ? first + CHUNK : before + o->length;
    const int64_t *ids = o->segments ? o->segments + row * o->length : NULL;
    for (int64_t s = first; s < end; s++) {
        int64_t own = !ids || s < before ? 0 : ids[s - before];
        real *to = o->dpast + (row * (before + o->length) + s) * o->width;
        for (int64_t c = 0; c < o->width; c += REAL_LANES) {
            int64_t left = o->width - c;
            vreal sum = left >= REAL_LANES ? v_load(to + c) : v_load_some(to + c, left);
            for (int64_t i = before; i >= 0; i--) {
                int64_t t = s - before + i;
                if (t < 0 || t >= o->length || (ids && ids[t] != own)) continue;
                const real *tap = o->taps + i * o->width + c, *slope = o->dz + (row * o->length + t) * o->width + c;
                sum += left >= REAL_LANES ? v_load(tap) * v_load(slope) : v_load_some(tap, left) * v_load_some(slope, left);
            }
            if (left >= REAL_LANES) v_store(to + c, sum);
            else v_store_some(to + c, sum, left);
        }
    }
}

void EXPORT(short_convolution_ordered)(const real *dz, const real *taps, const int64_t *segments, real *dpast, int64_t batch,
                                       int64_t length, int64_t width, int64_t n_taps, int64_t n_threads) {
    ordered o = {dz, taps, segments, dpast, length, width, n_taps, (n_taps - 1 + length + CHUNK - 1) / CHUNK};
    parallel_for(batch * o.n_chunks, n_threads, some_inputs, &o);
}
