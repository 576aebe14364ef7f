/* A few steps, as in decoding: the recurrence itself, for every row of the state in turn. Parallel as forwards.
 *
 *     found = s . read_t      s = a_t s - found erase_t + v_t k_t      y_t = s . q_t      s (n): a row of S, of one v
 */
#ifndef STATEWISE_RANK_ONE_STEPS_H
#define STATEWISE_RANK_ONE_STEPS_H

typedef struct {
    problem in;
    real *y, *state, *rows; /* rows: (b, h, 3, n), for a, read and the key of a step */
} steps_job;

INLINE vreal some(const real *from, int64_t count) {
    return count >= REAL_LANES ? v_load(from) : v_load_some(from, count);
}

/* One step of a row of the state, from `before` into `after`; its y is returned. */
INLINE real step_of(int64_t n, const real *before, const real *a, const real *read, const real *erase, real v,
                    const real *k, const real *q, real *after) {
    vreal found = v_broadcast(0), y = v_broadcast(0);
    for (int64_t j = 0; j < n; j += REAL_LANES) found += some(before + j, n - j) * some(read + j, n - j);
    real d = v_sum(found);
    for (int64_t j = 0; j < n; j += REAL_LANES) {
        vreal s = some(before + j, n - j) * some(a + j, n - j) - d * some(erase + j, n - j) + v * some(k + j, n - j);
        y += s * some(q + j, n - j);
        if (n - j >= REAL_LANES)
            v_store(after + j, s);
        else
            v_store_some(after + j, s, n - j);
    }
    return v_sum(y);
}

static void steps_item(void *context, int64_t index, int64_t thread) {
    (void)thread;
    const steps_job *job = context;
    const problem *all = &job->in;
    int64_t row = index / all->n_heads, head = index % all->n_heads, n = all->n_keys, width = all->width;
    const real *before = all->S0 + index * width * n;
    real *after = job->state + index * width * n;
    for (int64_t t = 0; t < all->length; t++, before = after) {
        int64_t at = (row * all->length + t) * all->n_heads + head;
        const real *k = all->k + at * n, *read = all->read ? all->read + at * n : NULL;
        real *a = job->rows + index * 3 * n;
        for (int64_t j = 0; j < n; j++)
            a[j] = j && all->n_decays == 1 ? a[0] : (real)exp((double)all->log_a[at * all->n_decays + j]);
        if (all->beta) {
            for (int64_t j = 0; j < n; j++) a[n + j] = a[j] * k[j], a[2 * n + j] = all->beta[at] * k[j];
            read = a + n, k = a + 2 * n;
        }
        const real *erase = all->erase ? all->erase + at * n : k;
        for (int64_t i = 0; i < width; i++)
            job->y[at * width + i] = step_of(n, before + i * n, a, read, erase, all->v[at * width + i], k,
                                             all->q + at * n, after + i * n);
    }
}

void EXPORT(rank_one_steps)(const real *v, const real *q, const real *k, const real *log_a, const real *S0,
                            const real *read, const real *erase, const real *beta, real *y, real *state, real *rows,
                            int64_t batch, int64_t length, int64_t n_heads, int64_t width, int64_t n_keys,
                            int64_t n_decays, int64_t n_threads) {
    steps_job job = {{v, q, k, log_a, S0, read, erase, beta, batch, length, n_heads, width, n_keys, n_decays},
                     y, state, rows};
    parallel_for(batch * n_heads, n_threads, steps_item, &job);
}

#endif
