/* A few steps of SSD, as in decoding: the recurrence itself, for every row of the state in turn.
 *
 *     h = exp(log_a_t) h + dt_t x_t B_t        y_t = h . C_t + D x_t        h (n) for each row, head and number of x
 *
 * The state is read and written once where there is one step, which is all that the time goes to. Parallel over rows
 * of the batch and heads.
 */
#ifndef STATEWISE_SSD_STEPS_H
#define STATEWISE_SSD_STEPS_H

typedef struct {
    problem in;
    real *y, *state;
} steps_job;

/* One step of one row of the state: h from `before` (NULL: zero) into `after`; h . C is returned. */
INLINE real step_of(int64_t n, real a, const real *before, real value, const real *B, const real *C, real *after) {
    vreal sum = v_broadcast(0);
    int64_t j = 0;
    for (; j + REAL_LANES <= n; j += REAL_LANES) {
        vreal h = value * v_load(B + j);
        if (before) h += a * v_load(before + j);
        v_store(after + j, h);
        sum += h * v_load(C + j);
    }
    if (j < n) {
        vreal h = value * v_load_some(B + j, n - j);
        if (before) h += a * v_load_some(before + j, n - j);
        v_store_some(after + j, h, n - j);
        sum += h * v_load_some(C + j, n - j);
    }
    return v_sum(sum);
}

static void steps_item(void *context, int64_t index, int64_t thread) {
    (void)thread;
    const steps_job *job = context;
    const problem *all = &job->in;
    int64_t row = index / all->n_heads, head = index % all->n_heads, n = all->n_states, width = all->width;
    int64_t group = head / (all->n_heads / all->n_groups);
    const real *before = all->h0 + index * width * n;
    real *after = job->state + index * width * n, D = all->D ? all->D[head] : 0;
    int64_t segment = 0; /* of what comes in from outside */
    for (int64_t t = 0; t < all->length; t++, before = after) {
        int64_t at = (row * all->length + t) * all->n_heads + head;
        const real *x = all->x + row * all->x_row + t * all->x_step + head * width;
        const real *B = all->B + row * all->B_row + t * all->B_step + group * n;
        const real *C = all->C + row * all->C_row + t * all->C_step + group * n;
        real a = (real)exp((double)all->log_a[at]), dt = all->dt ? all->dt[at] : 1;
        int64_t now = all->segments ? all->segments[row * all->length + t] : 0;
        for (int64_t i = 0; i < width; i++) {
            const real *h = now == segment ? before + i * n : NULL;
            real y = step_of(n, a, h, dt * x[i], B, C, after + i * n);
            job->y[at * width + i] = all->D ? y + D * x[i] : y;
        }
        segment = now;
    }
}

void EXPORT(ssd_steps)(const real *x, const real *dt, const real *log_a, const real *B, const real *C, const real *h0,
                       const real *D, const int64_t *segments, real *y, real *state, int64_t batch, int64_t length,
                       int64_t n_heads, int64_t width, int64_t n_groups, int64_t n_states, int64_t x_row,
                       int64_t x_step, int64_t B_row, int64_t B_step, int64_t C_row, int64_t C_step,
                       int64_t n_threads) {
    steps_job job = {
        {x, dt, log_a, B, C, h0, D, segments, batch, length, n_heads, width, n_groups, n_states, x_row, x_step, B_row,
         B_step, C_row, C_step, 1},
        y, state};
    parallel_for(batch * n_heads, n_threads, steps_item, &job);
}

#endif
