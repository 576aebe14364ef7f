/* Backwards: parallel over rows of the batch and heads, in two sweeps over time.
 *
 * Forwards the states at the starts of chunks are computed again and kept. Backwards, with G the gradient of the state
 * after the chunk, dd that of d, and then, the triangular system solved the other way round, of its right side:
 *     dd = to_end G + Q^T dy        dd <- (1 - A)^-T dd        dA = dd d^T        dQ = dy d^T
 *     G' = across G + read_start^T dd + q_start^T dy
 */
#ifndef STATEWISE_RANK_ONE_BACKWARD_H
#define STATEWISE_RANK_ONE_BACKWARD_H

typedef struct {
    problem in;
    const real *grad_y, *grad_state;
    real *dv, *dq, *dk, *d_log_a, *dS0, *d_read, *d_erase, *d_beta, *scratch;
    int64_t scratch_size; /* of a thread */
} backward_job;

static int64_t lay_backward(const problem *all, real *memory, adjoint *to) {
    chunk *s = &to->at;
    int64_t at = lay_chunk(all, memory, s), n_chunks = (all->length + CHUNK - 1) / CHUNK;
    int64_t keys = CHUNK * s->n, values = CHUNK * s->p, square = CHUNK * CHUNK, size = s->n * s->p;
    buffer buffers[] = {{&to->dy, values},         {&to->dd, values},        {&to->d_turned, values},
                        {&to->S_turned, size},     {&to->G_turned, size},    {&to->dv, values},
                        {&to->dA, square},         {&to->dQ, square},        {&to->d_read_late, keys},
                        {&to->d_q_late, keys},     {&to->d_early, keys},     {&to->d_read, keys},
                        {&to->d_q, keys},          {&to->d_keys[0], keys},   {&to->d_keys[1], keys},
                        {&to->d_log_a, keys},      {&to->sum, s->n},         {&to->G, size},
                        {&to->states, n_chunks * size}};
    return lay(buffers, sizeof buffers / sizeof *buffers, memory, at);
}

/* dd of the right side from that of d: substitution from the last row on */
static void solve_turned(const chunk *s, real *dd) {
    int64_t p = s->p;
    for (int64_t t = s->rows - TILE_ROWS; t >= 0; t -= TILE_ROWS) {
        int64_t behind = t + TILE_ROWS;
        multiply(TILE_ROWS, p / REAL_LANES, s->rows - behind, (factor){s->A[0] + behind * CHUNK + t, 1, CHUNK},
                 dd + behind * p, p, (scales){&ONE, 0}, dd + t * p, p);
        for (int64_t i = behind - 1; i > t; i--)
            for (int64_t k = t; k < i; k++) add_row(p, s->A[0][i * CHUNK + k], dd + i * p, dd + k * p);
    }
}

/* The gradient of what v alone has added, where it has a key of its own. */
static void set_dv(const problem *all, adjoint *to) {
    chunk *s = &to->at;
    if (!all->erase) {
        memcpy(to->dv, to->dd, sizeof(real) * (size_t)(s->rows * s->p));
        return;
    }
    multiply(s->rows, s->p / REAL_LANES, s->n, (factor){s->to_end[1], s->n, 1}, to->G, s->p, (scales){&FRESH, 0},
             to->dv, s->p);
    add_lower_turned(s, s->Q[1], to->dy, to->dv);
    add_lower_turned(s, s->A[1], to->dd, to->dv);
}

static void backward_chunk(const problem *all, const real *S, adjoint *to) {
    chunk *s = &to->at;
    int64_t n = s->n, p = s->p;
    size_t keys = sizeof(real) * (size_t)(s->rows * n);
    solve(all, S, s);
    multiply(s->rows, p / REAL_LANES, n, (factor){s->to_end[0], n, 1}, to->G, p, (scales){&FRESH, 0}, to->dd, p);
    add_lower_turned(s, s->Q[0], to->dy, to->dd);
    solve_turned(s, to->dd);
    set_dv(all, to);
    real *zeros[] = {to->d_read, to->d_q, to->d_keys[0], to->d_keys[1], to->d_log_a};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) memset(zeros[i], 0, keys);
    transpose(n, p, S, p, to->S_turned, n);
    transpose(n, p, to->G, p, to->G_turned, n);
    key_adjoint(to, 0, s->d);
    if (all->erase) key_adjoint(to, 1, s->values);
    multiply(s->rows, n / REAL_LANES, p, (factor){to->dd, p, 1}, to->S_turned, n, (scales){&FRESH, 0}, to->d_read_late,
             n);
    multiply(s->rows, n / REAL_LANES, p, (factor){to->dy, p, 1}, to->S_turned, n, (scales){&FRESH, 0}, to->d_q_late, n);
    for (int64_t i = 0; i < n; i++) {
        vreal carried = v_broadcast(0);
        for (int64_t j = 0; j < p; j += REAL_LANES) carried += v_load(to->G + i * p + j) * v_load(S + i * p + j);
        to->sum[i] = s->across[i] * v_sum(carried);
    }
    late_adjoint(to, 0, s->rows, s->read_start, s->q_start, to->d_read_late, to->d_q_late);
    multiply(n, p / REAL_LANES, s->rows, (factor){s->read_start, 1, n}, to->dd, p, (scales){s->across, 1}, to->G, p);
    multiply(n, p / REAL_LANES, s->rows, (factor){s->q_start, 1, n}, to->dy, p, (scales){&ONE, 0}, to->G, p);
}

/* From the gradients of -a k and beta k to those of k, in their place, of beta and of log_a. */
static void delta_adjoint(const backward_job *job, int64_t first, int64_t steps, adjoint *to) {
    const problem *all = &job->in;
    chunk *s = &to->at;
    int64_t n = s->n;
    for (int64_t t = 0; t < steps; t++) {
        int64_t place = first + t * all->n_heads;
        vreal d_beta = v_broadcast(0);
        for (int64_t j = t * n; j < t * n + n; j += REAL_LANES) {
            vreal d_read = v_load(to->d_read + j), d_key = v_load(to->d_keys[0] + j);
            d_beta += d_key * v_load(s->keys[1] + j);
            v_store(to->d_keys[0] + j, all->beta[place] * d_key - v_load(s->a + j) * d_read);
            v_store(to->d_log_a + j, v_load(to->d_log_a + j) + d_read * v_load(s->read + j));
        }
        job->d_beta[place] = v_sum(d_beta);
    }
}

static void write_gradients(const backward_job *job, int64_t first, int64_t steps, adjoint *to) {
    const problem *all = &job->in;
    if (all->beta) delta_adjoint(job, first, steps, to);
    int64_t n = to->at.n, keys = all->n_keys, stride = all->n_heads * keys;
    unpack(steps, all->width, to->dv, to->at.p, 1, job->dv + first * all->width, all->n_heads * all->width);
    unpack(steps, keys, to->d_q, n, 1, job->dq + first * keys, stride);
    if (!all->beta) unpack(steps, keys, to->d_read, n, -1, job->d_read + first * keys, stride);
    unpack(steps, keys, to->d_keys[all->erase ? 1 : 0], n, 1, job->dk + first * keys, stride);
    if (all->erase) unpack(steps, keys, to->d_keys[0], n, 1, job->d_erase + first * keys, stride);
    if (all->n_decays > 1 || keys == 1) {
        unpack(steps, keys, to->d_log_a, n, 1, job->d_log_a + first * keys, stride);
        return;
    }
    for (int64_t t = 0; t < steps; t++) {
        vreal sum = v_broadcast(0);
        for (int64_t j = 0; j < n; j += REAL_LANES) sum += v_load(to->d_log_a + t * n + j);
        job->d_log_a[first + t * all->n_heads] = v_sum(sum);
    }
}

static void backward_item(void *context, int64_t index, int64_t thread) {
    const backward_job *job = context;
    const problem *all = &job->in;
    int64_t row = index / all->n_heads, head = index % all->n_heads, size = all->width * all->n_keys;
    int64_t n_chunks = (all->length + CHUNK - 1) / CHUNK;
    real *memory = job->scratch + thread * job->scratch_size;
    adjoint to;
    memset(memory, 0, sizeof(real) * (size_t)lay_backward(all, memory, &to));
    chunk *s = &to.at;
    int64_t padded = s->n * s->p;
    if (n_chunks) turn_state(all, all->S0 + index * size, to.states, s);
    for (int64_t c = 0; c + 1 < n_chunks; c++) {
        prepare_chunk(all, row, head, c * CHUNK, s);
        solve(all, to.states + c * padded, s);
        next_state(all, to.states + c * padded, s, to.states + (c + 1) * padded);
    }
    turn_state(all, job->grad_state + index * size, to.G, s);
    for (int64_t c = n_chunks - 1; c >= 0; c--) {
        int64_t left = all->length - c * CHUNK, steps = left < CHUNK ? left : CHUNK;
        int64_t first = (row * all->length + c * CHUNK) * all->n_heads + head;
        prepare_chunk(all, row, head, c * CHUNK, s);
        pack(steps, s->rows, all->width, job->grad_y + first * all->width, all->n_heads * all->width, 1, to.dy, s->p);
        backward_chunk(all, to.states + c * padded, &to);
        write_gradients(job, first, steps, &to);
    }
    turn_back(all, to.G, job->dS0 + index * size, s);
}

/* The numbers of scratch memory that a thread of rank_one_backward needs. */
void EXPORT(rank_one_backward_scratch)(int64_t *size, int64_t length, int64_t width, int64_t n_keys) {
    problem all = {.length = length, .width = width, .n_keys = n_keys};
    adjoint to;
    *size = lay_backward(&all, NULL, &to);
}

void EXPORT(rank_one_backward)(const real *grad_y, const real *grad_state, const real *v, const real *q, const real *k,
                               const real *log_a, const real *S0, const real *read, const real *erase,
                               const real *beta, real *dv, real *dq, real *dk, real *d_log_a, real *dS0, real *d_read,
                               real *d_erase, real *d_beta, real *scratch, int64_t batch, int64_t length,
                               int64_t n_heads, int64_t width, int64_t n_keys, int64_t n_decays, int64_t scratch_size,
                               int64_t n_threads) {
    backward_job job = {{v, q, k, log_a, S0, read, erase, beta, batch, length, n_heads, width, n_keys, n_decays},
                        grad_y, grad_state, dv, dq, dk, d_log_a, dS0, d_read, d_erase, d_beta, scratch, scratch_size};
    parallel_for(batch * n_heads, n_threads, backward_item, &job);
}

#endif
