/* h_t = a_t h_{t-1} + b_t, and its adjoint, for every channel of every row.
 *
 * An item is one row and a block of SCAN_VECTORS vectors of channels (or one vector, where there would be too few
 * items), whose states stay in registers while time goes by; complex numbers are pairs of lanes. The adjoint goes
 * backwards in time: g_t = grad_t + conj(a_{t+1}) g_{t+1}, da_t = g_t conj(h_{t-1}), db = g, dh0 = conj(a_0) g_0.
 * No channel meets another, so how they are divided does not change a bit.
 * b, h, grad, g, da: (rows, length, channels) real numbers; h0, dh0: (rows, channels); a has channels side by side, and a
 * stride of 0 over the rows or the times that it is expanded over.
 */
#ifndef SCAN_VECTORS
#define SCAN_VECTORS 4
#endif

typedef struct {
    const real *a, *b, *h0;
    real *h;
    int64_t rows, length, channels, is_complex, a_row, a_step;
    int64_t width, n_blocks; /* channels of an item, items of a row */
    const real *grad;        /* the rest: of the backward pass only, where h is given */
    real *g, *da, *dh0;
} LOCAL(scan_call);

INLINE vreal LOCAL(scan_load)(const real *from, int64_t count) {
    return count >= REAL_LANES ? v_load(from) : v_load_some(from, count);
}
INLINE void LOCAL(scan_store)(real *to, vreal value, int64_t count) {
    if (count >= REAL_LANES) v_store(to, value);
    else v_store_some(to, value, count);
}
INLINE vreal LOCAL(scan_product)(vreal a, vreal x, const int is_complex, const int conjugate) {
    return is_complex ? LOCAL(complex_product)(a, x, conjugate) : a * x;
}

/* `count` channels from `first` on: whole vectors unless n_vectors is 1 */
INLINE void LOCAL(scan_forward)(const LOCAL(scan_call) *call, int64_t row, int64_t first, const int n_vectors,
                                int64_t count, const int is_complex) {
    int64_t start = row * call->length * call->channels + first;
    const real *a = call->a + row * call->a_row + first, *b = call->b + start;
    real *to = call->h + start;
    vreal h[SCAN_VECTORS];
    for (int i = 0; i < n_vectors; i++)
        h[i] = LOCAL(scan_load)(call->h0 + row * call->channels + first + i * REAL_LANES, count);
    for (int64_t t = 0; t < call->length; t++, a += call->a_step, b += call->channels, to += call->channels)
        for (int i = 0; i < n_vectors; i++) {
            int64_t at = i * REAL_LANES;
            vreal moved = LOCAL(scan_product)(LOCAL(scan_load)(a + at, count), h[i], is_complex, 0);
            h[i] = moved + LOCAL(scan_load)(b + at, count);
            LOCAL(scan_store)(to + at, h[i], count);
        }
}

INLINE void LOCAL(scan_backward)(const LOCAL(scan_call) *call, int64_t row, int64_t first, const int n_vectors,
                                 int64_t count, const int is_complex) {
    int64_t start = row * call->length * call->channels + first, state = row * call->channels + first;
    vreal carry[SCAN_VECTORS];
    for (int i = 0; i < n_vectors; i++) carry[i] = (vreal){0};
    for (int64_t t = call->length - 1; t >= 0; t--) {
        int64_t place = start + t * call->channels;
        const real *a = call->a + row * call->a_row + first + t * call->a_step;
        const real *before = t > 0 ? call->h + place - call->channels : call->h0 + state;
        for (int i = 0; i < n_vectors; i++) {
            int64_t at = i * REAL_LANES;
            vreal g = LOCAL(scan_load)(call->grad + place + at, count) + carry[i];
            LOCAL(scan_store)(call->g + place + at, g, count);
            /* g conj(h) is conj(h) g */
            vreal da = LOCAL(scan_product)(LOCAL(scan_load)(before + at, count), g, is_complex, 1);
            LOCAL(scan_store)(call->da + place + at, da, count);
            carry[i] = LOCAL(scan_product)(LOCAL(scan_load)(a + at, count), g, is_complex, 1);
        }
    }
    for (int i = 0; i < n_vectors; i++) LOCAL(scan_store)(call->dh0 + state + i * REAL_LANES, carry[i], count);
}

#undef SCAN_ITEM
#define SCAN_ITEM(name, direction)                                                                             \
    static void LOCAL(name)(void *context, int64_t item, int64_t thread) {                                     \
        const LOCAL(scan_call) *call = context;                                                                \
        int64_t row = item / call->n_blocks, first = item % call->n_blocks * call->width;                      \
        int64_t end = first + call->width < call->channels ? first + call->width : call->channels;             \
        (void)thread;                                                                                          \
        while (first < end) {                                                                                  \
            int64_t count = end - first, whole = SCAN_VECTORS * REAL_LANES;                                    \
            if (count >= whole) {                                                                              \
                if (call->is_complex) LOCAL(direction)(call, row, first, SCAN_VECTORS, REAL_LANES, 1);         \
                else LOCAL(direction)(call, row, first, SCAN_VECTORS, REAL_LANES, 0);                          \
                first += whole;                                                                                \
            } else if (count >= REAL_LANES) {                                                                  \
                if (call->is_complex) LOCAL(direction)(call, row, first, 1, REAL_LANES, 1);                    \
                else LOCAL(direction)(call, row, first, 1, REAL_LANES, 0);                                     \
                first += REAL_LANES;                                                                           \
            } else {                                                                                           \
                if (call->is_complex) LOCAL(direction)(call, row, first, 1, count, 1);                         \
                else LOCAL(direction)(call, row, first, 1, count, 0);                                          \
                first = end;                                                                                   \
            }                                                                                                  \
        }                                                                                                      \
    }
SCAN_ITEM(scan_item, scan_forward)
SCAN_ITEM(scan_adjoint_item, scan_backward)

static void LOCAL(scan_divide)(LOCAL(scan_call) *call, int64_t n_threads) {
    call->width = SCAN_VECTORS * REAL_LANES;
    if (call->rows * ((call->channels + call->width - 1) / call->width) < 2 * n_threads) call->width = REAL_LANES;
    call->n_blocks = (call->channels + call->width - 1) / call->width;
}

void EXPORT(linear_scan_forward)(const real *a, const real *b, const real *h0, real *h, int64_t rows, int64_t length,
                                 int64_t channels, int64_t is_complex, int64_t a_row, int64_t a_step,
                                 int64_t n_threads) {
    LOCAL(scan_call) call = {
        .a = a, .b = b, .h0 = h0, .h = h, .rows = rows, .length = length, .channels = channels,
        .is_complex = is_complex, .a_row = a_row, .a_step = a_step};
    LOCAL(scan_divide)(&call, n_threads);
    parallel_for(rows * call.n_blocks, n_threads, LOCAL(scan_item), &call);
}

void EXPORT(linear_scan_backward)(const real *grad, const real *a, real *h, const real *h0, real *da, real *g,
                                  real *dh0, int64_t rows, int64_t length, int64_t channels, int64_t is_complex,
                                  int64_t a_row, int64_t a_step, int64_t n_threads) {
    LOCAL(scan_call) call = {
        .a = a, .h0 = h0, .h = h, .rows = rows, .length = length, .channels = channels, .is_complex = is_complex,
        .a_row = a_row, .a_step = a_step, .grad = grad, .g = g, .da = da, .dh0 = dh0};
    LOCAL(scan_divide)(&call, n_threads);
    parallel_for(rows * call.n_blocks, n_threads, LOCAL(scan_adjoint_item), &call);
}
