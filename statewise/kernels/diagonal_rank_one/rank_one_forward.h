/* Forwards: parallel over rows of the batch and heads; inside, chunk by chunk. S stays in the cache. */
#ifndef STATEWISE_RANK_ONE_FORWARD_H
#define STATEWISE_RANK_ONE_FORWARD_H

typedef struct {
    problem in;
    real *y, *state, *scratch;
    int64_t scratch_size; /* of a thread */
} forward_job;

static int64_t lay_forward(const problem *all, real *memory, chunk *s, real **S) {
    int64_t at = lay_chunk(all, memory, s);
    return lay((buffer[]){{S, s->n * s->p}}, 1, memory, at);
}

static void forward_item(void *context, int64_t index, int64_t thread) {
    const forward_job *job = context;
    const problem *all = &job->in;
    int64_t row = index / all->n_heads, head = index % all->n_heads, size = all->width * all->n_keys;
    chunk s;
    real *S;
    int64_t total = lay_forward(all, job->scratch + thread * job->scratch_size, &s, &S);
    memset(job->scratch + thread * job->scratch_size, 0, sizeof(real) * (size_t)total);
    turn_state(all, all->S0 + index * size, S, &s);
    for (int64_t start = 0; start < all->length; start += CHUNK) {
        prepare_chunk(all, row, head, start, &s);
        solve(all, S, &s);
        multiply(s.rows, s.p / REAL_LANES, s.n, (factor){s.q_start, s.n, 1}, S, s.p, (scales){&FRESH, 0}, s.y, s.p);
        add_lower(&s, s.Q[0], s.d, s.y);
        if (all->erase) add_lower(&s, s.Q[1], s.values, s.y);
        next_state(all, S, &s, S);
        int64_t left = all->length - start, at = ((row * all->length + start) * all->n_heads + head) * all->width;
        unpack(left < CHUNK ? left : CHUNK, all->width, s.y, s.p, 1, job->y + at, all->n_heads * all->width);
    }
    turn_back(all, S, job->state + index * size, &s);
}

/* The numbers of scratch memory that a thread of rank_one_forward needs. */
void EXPORT(rank_one_forward_scratch)(int64_t *size, int64_t width, int64_t n_keys) {
    problem all = {.width = width, .n_keys = n_keys};
    chunk s;
    real *S;
    *size = lay_forward(&all, NULL, &s, &S);
}

void EXPORT(rank_one_forward)(const real *v, const real *q, const real *k, const real *log_a, const real *S0,
                              const real *read, const real *erase, const real *beta, real *y, real *state,
                              real *scratch, int64_t batch, int64_t length, int64_t n_heads, int64_t width,
                              int64_t n_keys, int64_t n_decays, int64_t scratch_size, int64_t n_threads) {
    forward_job job = {{v, q, k, log_a, S0, read, erase, beta, batch, length, n_heads, width, n_keys, n_decays},
                       y, state, scratch, scratch_size};
    parallel_for(batch * n_heads, n_threads, forward_item, &job);
}

#endif
