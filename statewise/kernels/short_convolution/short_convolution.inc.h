/* z_t = bias + sum_{i < n_taps} taps_i x_{t-i} for each channel, y = z or SiLU(z), and the adjoint.
 *
 * Layout: x (batch, length, width) with any stride of rows and steps, y and gradients contiguous; taps (n_taps, width)
 * and history (batch, n_taps - 1, width) in full precision. Order: rows of the batch and chunks of time are the items,
 * handed to threads; within one, a block of channels (the lanes) is walked through time with its last inputs in
 * registers. The adjoint walks n_taps - 1 steps beyond its chunk, whose outputs its last inputs reach.
 * Inputs of another segment are left out: `reach` is how many of the last inputs are of this step's segment.
 */
typedef struct {
    const stored *x, *grad;
    const real *taps, *bias, *history;
    const int64_t *segments;
    stored *y;                             /* the output, or the gradient of x */
    real *grad_history, *partial, *window; /* partial: (items, n_taps + 1, width); window: scratch for each thread */
    int64_t length, width, n_taps, row_stride, step_stride, grad_row_stride, grad_step_stride, silu, chunk, n_chunks;
} LOCAL(convolution);

INLINE vreal LOCAL(stored_lanes)(const stored *from, int64_t lanes) {
    return lanes == REAL_LANES ? s_load(from) : s_load_some(from, lanes);
}
INLINE vreal LOCAL(real_lanes)(const real *from, int64_t lanes) {
    return lanes == REAL_LANES ? v_load(from) : v_load_some(from, lanes);
}
INLINE void LOCAL(put_stored)(stored *to, vreal value, int64_t lanes) {
    if (lanes == REAL_LANES) s_store(to, value);
    else s_store_some(to, value, lanes);
}
INLINE void LOCAL(put_real)(real *to, vreal value, int64_t lanes) {
    if (lanes == REAL_LANES) v_store(to, value);
    else v_store_some(to, value, lanes);
}

/* x_t of a block of channels; before the sequence the history */
INLINE vreal LOCAL(input)(const LOCAL(convolution) * c, int64_t row, int64_t t, int64_t channel, int64_t lanes) {
    if (t >= 0) return LOCAL(stored_lanes)(c->x + row * c->row_stride + t * c->step_stride + channel, lanes);
    int64_t last = c->n_taps - 1;
    return LOCAL(real_lanes)(c->history + (row * last + last + t) * c->width + channel, lanes);
}

/* How many of x_t, x_{t-1}, ... belong to the segment of t, at most n_taps; the history is segment 0. */
static int64_t LOCAL(first_reach)(const LOCAL(convolution) * c, int64_t row, int64_t t) {
    if (!c->segments || t < 0) return c->n_taps;
    const int64_t *ids = c->segments + row * c->length;
    int64_t reach = 1;
    while (reach < c->n_taps && (t - reach >= 0 ? ids[t - reach] : 0) == ids[t]) reach++;
    return reach;
}
INLINE int64_t LOCAL(next_reach)(const LOCAL(convolution) * c, int64_t row, int64_t t, int64_t reach) {
    if (!c->segments) return c->n_taps;
    const int64_t *ids = c->segments + row * c->length;
    if (ids[t] != (t ? ids[t - 1] : 0)) return 1;
    return reach < c->n_taps ? reach + 1 : reach;
}

/* window[i] = x_{t-1-i}; `window` and `taps` have room for n_taps vectors, in registers where that is a constant */
INLINE void LOCAL(walk)(const LOCAL(convolution) * c, int64_t row, int64_t begin, int64_t end, int64_t channel,
                        int64_t lanes, int64_t n_taps, vreal *taps, vreal *window) {
    vreal bias = c->bias ? LOCAL(real_lanes)(c->bias + channel, lanes) : v_broadcast(0);
    for (int64_t i = 0; i < n_taps; i++) taps[i] = LOCAL(real_lanes)(c->taps + i * c->width + channel, lanes);
    for (int64_t i = 0; i + 1 < n_taps; i++) window[i] = LOCAL(input)(c, row, begin - 1 - i, channel, lanes);
    int64_t reach = LOCAL(first_reach)(c, row, begin - 1);
    stored *y = c->y + (row * c->length + begin) * c->width + channel;
    for (int64_t t = begin; t < end; t++, y += c->width) {
        reach = LOCAL(next_reach)(c, row, t, reach);
        vreal x = LOCAL(input)(c, row, t, channel, lanes);
        vreal z = bias + taps[0] * x;
        for (int64_t i = 1; i < n_taps; i++)
            if (i < reach) z += taps[i] * window[i - 1];
        for (int64_t i = n_taps - 2; i > 0; i--) window[i] = window[i - 1];
        if (n_taps > 1) window[0] = x;
        LOCAL(put_stored)(y, c->silu ? z * v_sigmoid(z) : z, lanes);
    }
}

/* A gradient that is complete: of an input of this chunk, or of the history. */
INLINE void LOCAL(emit)(const LOCAL(convolution) * c, int64_t row, int64_t t, int64_t begin, int64_t end,
                        int64_t channel, int64_t lanes, vreal value) {
    int64_t last = c->n_taps - 1;
    if (t >= begin && t < end) LOCAL(put_stored)(c->y + (row * c->length + t) * c->width + channel, value, lanes);
    else if (t < 0 && begin == 0)
        LOCAL(put_real)(c->grad_history + (row * last + last + t) * c->width + channel, value, lanes);
}

/* grads[i] is what is known of the gradient of x_{t-i}; tap_grads has n_taps + 1 vectors, the bias last */
INLINE void LOCAL(walk_back)(const LOCAL(convolution) * c, int64_t row, int64_t begin, int64_t end, int64_t channel,
                             int64_t lanes, int64_t n_taps, real *partial, vreal *taps, vreal *window, vreal *grads,
                             vreal *tap_grads) {
    vreal bias = c->bias ? LOCAL(real_lanes)(c->bias + channel, lanes) : v_broadcast(0);
    for (int64_t i = 0; i < n_taps; i++) taps[i] = LOCAL(real_lanes)(c->taps + i * c->width + channel, lanes);
    for (int64_t i = 0; i + 1 < n_taps; i++) window[i] = LOCAL(input)(c, row, begin - 1 - i, channel, lanes);
    for (int64_t i = 0; i < n_taps; i++) grads[i] = v_broadcast(0);
    for (int64_t i = 0; i <= n_taps; i++) tap_grads[i] = v_broadcast(0);
    int64_t reach = LOCAL(first_reach)(c, row, begin - 1), t = begin;
    int64_t stop = end + n_taps - 1 < c->length ? end + n_taps - 1 : c->length;
    for (; t < stop; t++) {
        reach = LOCAL(next_reach)(c, row, t, reach);
        vreal x = LOCAL(input)(c, row, t, channel, lanes);
        vreal grad = LOCAL(stored_lanes)(c->grad + row * c->grad_row_stride + t * c->grad_step_stride + channel, lanes);
        if (c->silu) {
            vreal z = bias + taps[0] * x;
            for (int64_t i = 1; i < n_taps; i++)
                if (i < reach) z += taps[i] * window[i - 1];
            vreal s = v_sigmoid(z);
            grad *= s * (1 + z * (1 - s));
        }
        for (int64_t i = n_taps - 1; i > 0; i--) grads[i] = grads[i - 1];
        grads[0] = taps[0] * grad;
        for (int64_t i = 1; i < n_taps; i++)
            if (i < reach) grads[i] += taps[i] * grad;
        if (t < end) { /* beyond, the next chunk counts it */
            tap_grads[0] += grad * x;
            for (int64_t i = 1; i < n_taps; i++)
                if (i < reach) tap_grads[i] += grad * window[i - 1];
            tap_grads[n_taps] += grad;
        }
        for (int64_t i = n_taps - 2; i > 0; i--) window[i] = window[i - 1];
        if (n_taps > 1) window[0] = x;
        LOCAL(emit)(c, row, t - (n_taps - 1), begin, end, channel, lanes, grads[n_taps - 1]);
    }
    for (int64_t i = n_taps - 2; i >= 0; i--) /* at the end of the sequence nothing more comes */
        LOCAL(emit)(c, row, t - 1 - i, begin, end, channel, lanes, grads[i]);
    for (int64_t i = 0; i <= n_taps; i++) LOCAL(put_real)(partial + i * c->width + channel, tap_grads[i], lanes);
}

/* The last block of channels overlaps the one before it, and writes the same numbers again. */
#define EACH_BLOCK_OF_CHANNELS(call_full, call_some)                                             \
    if (c->width < REAL_LANES) {                                                                  \
        int64_t channel = 0, lanes = c->width;                                                    \
        call_some;                                                                                \
    } else                                                                                        \
        for (int64_t next = 0; next < c->width; next += REAL_LANES) {                             \
            int64_t channel = next + REAL_LANES <= c->width ? next : c->width - REAL_LANES;       \
            call_full;                                                                            \
        }

static void LOCAL(convolve_chunk)(void *context, int64_t item, int64_t thread) {
    const LOCAL(convolution) *c = context;
    int64_t row = item / c->n_chunks, begin = item % c->n_chunks * c->chunk;
    int64_t end = begin + c->chunk < c->length ? begin + c->chunk : c->length;
    if (c->n_taps == 4) {
        vreal taps[4], window[4];
        EACH_BLOCK_OF_CHANNELS(LOCAL(walk)(c, row, begin, end, channel, REAL_LANES, 4, taps, window),
                               LOCAL(walk)(c, row, begin, end, channel, lanes, 4, taps, window))
        return;
    }
    vreal *taps = (vreal *)(c->window + thread * 2 * c->n_taps * REAL_LANES), *window = taps + c->n_taps;
    EACH_BLOCK_OF_CHANNELS(LOCAL(walk)(c, row, begin, end, channel, REAL_LANES, c->n_taps, taps, window),
                           LOCAL(walk)(c, row, begin, end, channel, lanes, c->n_taps, taps, window))
}

static void LOCAL(adjoint_chunk)(void *context, int64_t item, int64_t thread) {
    const LOCAL(convolution) *c = context;
    int64_t row = item / c->n_chunks, begin = item % c->n_chunks * c->chunk, n = c->n_taps;
    int64_t end = begin + c->chunk < c->length ? begin + c->chunk : c->length;
    real *partial = c->partial + item * (n + 1) * c->width;
    if (n == 4) {
        vreal taps[4], window[4], grads[4], sums[5];
        EACH_BLOCK_OF_CHANNELS(
            LOCAL(walk_back)(c, row, begin, end, channel, REAL_LANES, 4, partial, taps, window, grads, sums),
            LOCAL(walk_back)(c, row, begin, end, channel, lanes, 4, partial, taps, window, grads, sums))
        return;
    }
    vreal *taps = (vreal *)(c->window + thread * (4 * n + 1) * REAL_LANES);
    vreal *window = taps + n, *grads = window + n, *sums = grads + n;
    EACH_BLOCK_OF_CHANNELS(
        LOCAL(walk_back)(c, row, begin, end, channel, REAL_LANES, n, partial, taps, window, grads, sums),
        LOCAL(walk_back)(c, row, begin, end, channel, lanes, n, partial, taps, window, grads, sums))
}

/* scratch holds n_threads * 2 n_taps vectors, aligned to one */
void EXPORT(short_convolution)(const stored *x, const real *taps, const real *bias, const real *history,
                               const int64_t *segments, stored *y, real *scratch, int64_t batch, int64_t length,
                               int64_t width, int64_t n_taps, int64_t row_stride, int64_t step_stride, int64_t silu,
                               int64_t chunk, int64_t n_threads) {
    LOCAL(convolution) c = {.x = x, .taps = taps, .bias = bias, .history = history, .segments = segments, .y = y,
                            .window = scratch, .length = length, .width = width, .n_taps = n_taps,
                            .row_stride = row_stride, .step_stride = step_stride, .silu = silu, .chunk = chunk,
                            .n_chunks = (length + chunk - 1) / chunk};
    parallel_for(batch * c.n_chunks, n_threads, LOCAL(convolve_chunk), &c);
}

/* scratch holds n_threads * (4 n_taps + 1) vectors; partial is summed over its items, in order, by sum_of_items */
void EXPORT(short_convolution_backward)(const stored *grad, const stored *x, const real *taps, const real *bias,
                                        const real *history, const int64_t *segments, stored *grad_x,
                                        real *grad_history, real *partial, real *scratch, int64_t batch,
                                        int64_t length, int64_t width, int64_t n_taps, int64_t grad_row_stride,
                                        int64_t grad_step_stride, int64_t row_stride, int64_t step_stride,
                                        int64_t silu, int64_t chunk, int64_t n_threads) {
    LOCAL(convolution) c = {.x = x, .grad = grad, .taps = taps, .bias = bias, .history = history,
                            .segments = segments, .y = grad_x, .grad_history = grad_history, .partial = partial,
                            .window = scratch, .length = length, .width = width, .n_taps = n_taps,
                            .row_stride = row_stride, .step_stride = step_stride, .grad_row_stride = grad_row_stride,
                            .grad_step_stride = grad_step_stride, .silu = silu, .chunk = chunk,
                            .n_chunks = (length + chunk - 1) / chunk};
    parallel_for(batch * c.n_chunks, n_threads, LOCAL(adjoint_chunk), &c);
}
#undef EACH_BLOCK_OF_CHANNELS
