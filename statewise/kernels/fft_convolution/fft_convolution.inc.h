/* y_t = sum_i K_i u_{t-i} by overlap-save, and its adjoint, for vectors of channels that lie next to one another.
 *
 * u, y: (batch, length, columns), K: (taps, columns), history: (batch, n_history, columns) with n_history 0 or
 * taps - 1: the inputs before u. A chunk of `hop` outputs takes a window of n = 2 m >= hop + taps - 1 inputs; see
 * fft_passes.inc.h for the transform.
 * An item is a vector of columns and a share of the rows: it transforms the filters, then goes through its rows and
 * their chunks. After the first pass a chunk's blocks are independent: each is transformed, multiplied and transformed
 * back while it is in the cache.
 * Backward: du_s = sum_i K_i g_{s+i} multiplies by the conjugate of K's values, and dK_i = sum_s u_s g_{s+i} by those
 * of u, summed over chunks and rows; a share of the rows has its own dK.
 */
#define FFT_TOGETHER 512 /* points of a block that is transformed, multiplied and transformed back at once */

typedef struct {
    const real *u, *history, *K, *grad;
    real *y, *du, *d_history, *dK;
    int64_t batch, length, n_history, taps, columns, points, n_shares;
    LOCAL(fft_plan) plan;
    real *scratch; /* for each thread: planes of `points` points */
    int64_t scratch_size;
} LOCAL(fft_call);

/* A vector of the columns and rows of an item */
typedef struct {
    const LOCAL(fft_call) *call;
    int64_t column, lanes, first_row, end_row;
    real *values, *filter, *inputs, *d_filter; /* the last two: of the backward pass only */
} LOCAL(fft_item);

static LOCAL(fft_item) LOCAL(fft_item_of)(const LOCAL(fft_call) *call, int64_t number, int64_t thread) {
    int64_t share = number % call->n_shares, column = number / call->n_shares * REAL_LANES;
    real *planes = call->scratch + thread * call->scratch_size;
    int64_t left = call->columns - column, plane = call->points * POINT;
    return (LOCAL(fft_item)){
        .call = call, .column = column, .lanes = left < REAL_LANES ? left : REAL_LANES,
        .first_row = call->batch * share / call->n_shares, .end_row = call->batch * (share + 1) / call->n_shares,
        .values = planes, .filter = planes + plane, .inputs = planes + 2 * plane, .d_filter = planes + 3 * plane};
}

/* The times [start, stop), from place 0 on, of a sequence of `before` numbers in `past` and `length` in `present` */
static LOCAL(window) LOCAL(window_of)(const LOCAL(fft_item) *item, const real *past, int64_t before,
                                      const real *present, int64_t length, int64_t start, int64_t stop) {
    int64_t stride = item->call->columns, middle = start < 0 ? -start : 0;
    return (LOCAL(window)){
        .past = before ? (real *)past + (start + before) * stride + item->column : NULL,
        .present = (real *)present + start * stride + item->column,
        .stride = stride, .begin = start < -before ? -before - start : 0, .middle = middle,
        .end = (stop < length ? stop : length) - start, .lanes = item->lanes};
}

static void LOCAL(fft_begin)(const LOCAL(fft_item) *item, LOCAL(window) window, real *data) {
    const LOCAL(fft_plan) *plan = &item->call->plan;
    LOCAL(fft_first_as)(plan->radices[0], &window, item->call->points, plan->factors, data);
}
static void LOCAL(fft_end)(const LOCAL(fft_item) *item, LOCAL(window) window, const real *data) {
    const LOCAL(fft_plan) *plan = &item->call->plan;
    LOCAL(fft_last_as)(plan->radices[0], &window, item->call->points, plan->factors, data);
}
static void LOCAL(fft_whole)(const LOCAL(fft_item) *item, LOCAL(window) window, real *data) {
    int64_t radix = item->call->plan.radices[0], part = item->call->points / radix;
    LOCAL(fft_begin)(item, window, data);
    for (int64_t j = 0; j < radix; j++) LOCAL(fft_split)(&item->call->plan, 1, j, part, data + j * part * POINT);
}

static void LOCAL(fft_multiply)(real *restrict values, const real *restrict filter, int64_t points) {
    for (int64_t t = 0; t < points; t++, values += POINT, filter += POINT) {
        LOCAL(number) a = LOCAL(point_at)(values), b = LOCAL(point_at)(filter);
        LOCAL(point_to)(values, (LOCAL(number)){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re});
    }
}
/* values: of the outputs' gradient, then of du */
static void LOCAL(fft_multiply_adjoint)(real *restrict values, const real *restrict filter,
                                        const real *restrict inputs, real *restrict d_filter, int64_t points) {
    for (int64_t t = 0; t < points * POINT; t += POINT) {
        LOCAL(number) g = LOCAL(point_at)(values + t), k = LOCAL(point_at)(filter + t), u = LOCAL(point_at)(inputs + t);
        LOCAL(number) sum = LOCAL(point_at)(d_filter + t);
        sum.re += u.re * g.re + u.im * g.im;
        sum.im += u.re * g.im - u.im * g.re;
        LOCAL(point_to)(d_filter + t, sum);
        LOCAL(point_to)(values + t, (LOCAL(number)){k.re * g.re + k.im * g.im, k.re * g.im - k.im * g.re});
    }
}

/* Of one block, from pass number `pass` on: transforms it, multiplies, and transforms back; `place` is where it begins.
 * It is cut until it is small, so that at any time only a little of the filter is in use. */
static void LOCAL(fft_product)(const LOCAL(fft_item) *item, int adjoint, int64_t pass, int64_t index, int64_t points,
                               int64_t place) {
    const LOCAL(fft_plan) *plan = &item->call->plan;
    real *values = item->values + place, *inputs = item->inputs + place;
    if (points <= FFT_TOGETHER) {
        LOCAL(fft_split)(plan, pass, index, points, values);
        if (adjoint) {
            LOCAL(fft_split)(plan, pass, index, points, inputs);
            LOCAL(fft_multiply_adjoint)(values, item->filter + place, inputs, item->d_filter + place, points);
        } else {
            LOCAL(fft_multiply)(values, item->filter + place, points);
        }
        LOCAL(fft_unite)(plan, pass, index, points, values);
        return;
    }
    int64_t radix = plan->radices[pass], part = points / radix;
    const real *factors = plan->factors + plan->offsets[pass] + index * LOCAL(fft_n_factors)(radix);
    LOCAL(fft_split_pass)(radix, values, 1, part, factors);
    if (adjoint) LOCAL(fft_split_pass)(radix, inputs, 1, part, factors);
    for (int64_t j = 0; j < radix; j++)
        LOCAL(fft_product)(item, adjoint, pass + 1, index * radix + j, part, place + j * part * POINT);
    LOCAL(fft_unite_pass)(radix, values, 1, part, factors);
}

static void LOCAL(fft_filter)(const LOCAL(fft_item) *item) {
    const LOCAL(fft_call) *call = item->call;
    LOCAL(fft_whole)(item, LOCAL(window_of)(item, NULL, 0, call->K, call->taps, 0, call->taps), item->filter);
}

static void LOCAL(fft_convolve)(void *context, int64_t number, int64_t thread) {
    const LOCAL(fft_call) *call = context;
    LOCAL(fft_item) item = LOCAL(fft_item_of)(call, number, thread);
    int64_t radix = call->plan.radices[0], part = call->points / radix, hop = 2 * call->points - call->taps + 1;
    LOCAL(fft_filter)(&item);
    for (int64_t row = item.first_row; row < item.end_row; row++) {
        const real *u = call->u + row * call->length * call->columns;
        const real *history = call->history + row * call->n_history * call->columns;
        real *y = call->y + row * call->length * call->columns;
        for (int64_t start = 0; start < call->length; start += hop) {
            int64_t stop = start + hop, first = start - call->taps + 1;
            if (first < -call->n_history) first = -call->n_history;
            LOCAL(fft_begin)(&item, LOCAL(window_of)(&item, history, call->n_history, u, call->length, first, stop),
                             item.values);
            for (int64_t j = 0; j < radix; j++) LOCAL(fft_product)(&item, 0, 1, j, part, j * part * POINT);
            LOCAL(window) outputs = LOCAL(window_of)(&item, NULL, 0, y, call->length, first, stop);
            outputs.begin = start - first;
            outputs.middle = 0;
            LOCAL(fft_end)(&item, outputs, item.values);
        }
    }
}

static void LOCAL(fft_adjoint)(void *context, int64_t number, int64_t thread) {
    const LOCAL(fft_call) *call = context;
    LOCAL(fft_item) item = LOCAL(fft_item_of)(call, number, thread);
    int64_t radix = call->plan.radices[0], part = call->points / radix, hop = 2 * call->points - call->taps + 1;
    int64_t before = call->n_history;
    LOCAL(fft_filter)(&item);
    memset(item.d_filter, 0, sizeof(real) * (size_t)(call->points * POINT));
    for (int64_t row = item.first_row; row < item.end_row; row++) {
        int64_t here = row * call->length * call->columns, past = row * before * call->columns;
        for (int64_t start = -before; start < call->length; start += hop) {
            int64_t stop = start + hop, reach = start + 2 * call->points;
            LOCAL(fft_begin)(&item, LOCAL(window_of)(&item, NULL, 0, call->grad + here, call->length, start, reach),
                             item.values);
            LOCAL(fft_begin)(&item, LOCAL(window_of)(&item, call->history + past, before, call->u + here, call->length,
                                                     start, stop), item.inputs);
            for (int64_t j = 0; j < radix; j++) LOCAL(fft_product)(&item, 1, 1, j, part, j * part * POINT);
            LOCAL(fft_end)(&item, LOCAL(window_of)(&item, call->d_history + past, before, call->du + here, call->length,
                                                   start, stop), item.values);
        }
    }
    for (int64_t j = 0; j < radix; j++) LOCAL(fft_unite)(&call->plan, 1, j, part, item.d_filter + j * part * POINT);
    real *dK = call->dK + number % call->n_shares * call->taps * call->columns;
    LOCAL(fft_end)(&item, LOCAL(window_of)(&item, NULL, 0, dK, call->taps, 0, call->taps), item.d_filter);
}

void EXPORT(fft_convolution_forward)(const real *u, const real *history, const real *K, real *y, int64_t batch,
                                     int64_t length, int64_t n_history, int64_t taps, int64_t columns, int64_t points,
                                     int64_t n_shares, int64_t n_passes, const int64_t *plan, const real *factors,
                                     real *scratch, int64_t scratch_size, int64_t n_threads) {
    LOCAL(fft_call) call = {
        .u = u, .history = history, .K = K, .y = y, .batch = batch, .length = length, .n_history = n_history,
        .taps = taps, .columns = columns, .points = points, .n_shares = n_shares,
        .plan = {n_passes, plan, plan + n_passes, factors}, .scratch = scratch, .scratch_size = scratch_size};
    parallel_for((columns + REAL_LANES - 1) / REAL_LANES * n_shares, n_threads, LOCAL(fft_convolve), &call);
}

void EXPORT(fft_convolution_backward)(const real *grad, const real *u, const real *history, const real *K, real *du,
                                      real *d_history, real *dK, int64_t batch, int64_t length, int64_t n_history,
                                      int64_t taps, int64_t columns, int64_t points, int64_t n_shares,
                                      int64_t n_passes, const int64_t *plan, const real *factors, real *scratch,
                                      int64_t scratch_size, int64_t n_threads) {
    LOCAL(fft_call) call = {
        .u = u, .history = history, .K = K, .grad = grad, .du = du, .d_history = d_history, .dK = dK, .batch = batch,
        .length = length, .n_history = n_history, .taps = taps, .columns = columns, .points = points,
        .n_shares = n_shares, .plan = {n_passes, plan, plan + n_passes, factors}, .scratch = scratch,
        .scratch_size = scratch_size};
    parallel_for((columns + REAL_LANES - 1) / REAL_LANES * n_shares, n_threads, LOCAL(fft_adjoint), &call);
}
