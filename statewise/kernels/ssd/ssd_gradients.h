/* The adjoint of SSD as a whole: the items of ssd_backward.h over all chunks, then the sums over blocks of heads. */
#ifndef STATEWISE_SSD_GRADIENTS_H
#define STATEWISE_SSD_GRADIENTS_H

static void prepare_chunk(const problem *all, const item *one, const chunk *part, backward_scratch *s) {
    const real *B = all->B + one->row * all->B_row + part->start * all->B_step + one->group * all->n_states;
    pack(part->steps, all->n_states, B, all->B_step, NULL, 0, s->B, s->n);
}

/* the state of the block's i-th head at the start of a chunk */
INLINE real *state_of(const backward_scratch *s, int64_t n_chunks, int64_t i, int64_t c) {
    return s->states + (i * n_chunks + c) * s->p * s->n;
}

static void keep_states(const backward_job *job, const item *one, backward_scratch *s) {
    const problem *all = &job->in;
    int64_t n = s->n, p = s->p, n_chunks = (all->length + CHUNK - 1) / CHUNK, size = all->width * all->n_states;
    for (int64_t i = 0; i < one->n_heads; i++) {
        int64_t state = one->row * all->n_heads + one->first_head + i;
        if (n_chunks > 0) pad_state(all, all->h0 + state * size, s->states + i * n_chunks * p * n, p, n);
        pad_state(all, job->grad_state + state * size, s->gradients + i * p * n, p, n);
        if (all->D) job->dD[state] = 0;
    }
    for (int64_t c = 0; c + 1 < n_chunks; c++) {
        chunk part = chunk_at(all, one->row, c * CHUNK);
        prepare_chunk(all, one, &part, s);
        for (int64_t i = 0; i < one->n_heads; i++) {
            real *S = state_of(s, n_chunks, i, c), *then = NULL;
            if (i + 1 < one->n_heads) then = state_of(s, n_chunks, i + 1, c + 1);
            else if (c + 2 < n_chunks) then = state_of(s, n_chunks, 0, c + 2);
            next_state(all, one, one->first_head + i, &part, S, then, s);
        }
    }
}

/* The parts of dB and dC that came through C B^T, and both to their places. */
static void finish_chunk(const backward_job *job, const item *one, const chunk *part, backward_scratch *s) {
    const problem *all = &job->in;
    int64_t n = s->n, steps = part->steps;
    for (int64_t t = 0; t < steps; t += TILE_ROWS) {
        int64_t end = t + TILE_ROWS < steps ? t + TILE_ROWS : steps;
        multiply(TILE_ROWS, n / REAL_LANES, end, (factor){s->d_scores + t * CHUNK, CHUNK, 1}, s->B, n,
                 (scales){&ONE, 0}, s->dC + t * n, n);
        multiply(TILE_ROWS, n / REAL_LANES, steps - t, (factor){s->d_scores + t * CHUNK + t, 1, CHUNK}, s->C + t * n, n,
                 (scales){&ONE, 0}, s->dB + t * n, n);
    }
    for (int64_t t = 0; t < steps; t++) {
        int64_t row = (one->block * all->batch + one->row) * all->length + part->start + t;
        int64_t at = (row * all->n_groups + one->group) * all->n_states;
        copy_numbers(job->dB + at, s->dB + t * n, all->n_states);
        copy_numbers(job->dC + at, s->dC + t * n, all->n_states);
    }
}

static void backward_item(void *context, int64_t index, int64_t thread) {
    const backward_job *job = context;
    const problem *all = &job->in;
    item one = item_of(all, index);
    backward_scratch s;
    int64_t per_group = all->n_heads / all->n_groups;
    lay_backward(all, (per_group + all->n_blocks - 1) / all->n_blocks, job->scratch + thread * job->scratch_size, &s);
    int64_t n = s.n, p = s.p, n_chunks = (all->length + CHUNK - 1) / CHUNK, size = all->width * all->n_states;
    keep_states(job, &one, &s);
    const real *C = all->C + one.row * all->C_row + one.group * all->n_states;
    for (int64_t c = n_chunks - 1; c >= 0; c--) {
        chunk part = chunk_at(all, one.row, c * CHUNK);
        prepare_chunk(all, &one, &part, &s);
        pack(part.steps, all->n_states, C + part.start * all->C_step, all->C_step, NULL, 0, s.C, n);
        transpose(CHUNK, n, s.B, n, s.B_turned, CHUNK);
        set_scores(part.steps, n, s.C, s.B_turned, s.scores);
        memset(s.d_scores, 0, sizeof(real) * CHUNK * CHUNK);
        memset(s.dB, 0, sizeof(real) * (size_t)(CHUNK * n));
        memset(s.dC, 0, sizeof(real) * (size_t)(CHUNK * n));
        for (int64_t i = 0; i < one.n_heads; i++) {
            const real *then = NULL;
            if (i + 1 < one.n_heads) then = state_of(&s, n_chunks, i + 1, c);
            else if (c > 0) then = state_of(&s, n_chunks, 0, c - 1);
            backward_head(job, &one, one.first_head + i, &part, state_of(&s, n_chunks, i, c), then,
                          s.gradients + i * p * n, &s);
        }
        finish_chunk(job, &one, &part, &s);
    }
    for (int64_t i = 0; i < one.n_heads; i++)
        unpad_state(all, s.gradients + i * p * n,
                    job->dh0 + (one.row * all->n_heads + one.first_head + i) * size, n);
}

INLINE void add_numbers(real *restrict to, const real *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

/* The first block's dB and dC += those of the other blocks, in order; an item is a chunk of time of a row. */
static void add_blocks(void *context, int64_t index, int64_t thread) {
    (void)thread;
    const backward_job *job = context;
    const problem *all = &job->in;
    int64_t n_chunks = (all->length + CHUNK - 1) / CHUNK, step = all->n_groups * all->n_states;
    int64_t row = index / n_chunks, start = index % n_chunks * CHUNK, stop = start + CHUNK;
    int64_t end = stop < all->length ? stop : all->length, block = all->batch * all->length * step;
    for (int64_t i = (row * all->length + start) * step; i < (row * all->length + end) * step; i += step)
        for (int64_t k = 1; k < all->n_blocks; k++) {
            add_numbers(job->dB + i, job->dB + k * block + i, step);
            add_numbers(job->dC + i, job->dC + k * block + i, step);
        }
}

/* The numbers of scratch memory that a thread of ssd_backward needs. */
void EXPORT(ssd_backward_scratch)(int64_t *size, int64_t length, int64_t n_heads, int64_t width, int64_t n_groups,
                                  int64_t n_states, int64_t n_blocks) {
    problem all = {.length = length, .width = width, .n_states = n_states};
    backward_scratch s;
    *size = lay_backward(&all, (n_heads / n_groups + n_blocks - 1) / n_blocks, NULL, &s);
}

void EXPORT(ssd_backward)(const real *grad_y, const real *grad_state, const real *x, const real *dt, const real *log_a,
                          const real *B, const real *C, const real *h0, const real *D, const int64_t *segments,
                          real *dx, real *d_dt, real *d_log_a, real *dB, real *dC, real *dh0, real *dD, real *scratch,
                          int64_t batch, int64_t length, int64_t n_heads, int64_t width, int64_t n_groups,
                          int64_t n_states, int64_t x_row, int64_t x_step, int64_t B_row, int64_t B_step, int64_t C_row,
                          int64_t C_step, int64_t n_blocks, int64_t scratch_size, int64_t n_threads) {
    backward_job job = {
        {x, dt, log_a, B, C, h0, D, segments, batch, length, n_heads, width, n_groups, n_states, x_row, x_step, B_row,
         B_step, C_row, C_step, n_blocks},
        grad_y, grad_state, dx, d_dt, d_log_a, dB, dC, dh0, dD, scratch, scratch_size};
    parallel_for(batch * n_groups * n_blocks, n_threads, backward_item, &job);
    if (n_blocks > 1) parallel_for(batch * ((length + CHUNK - 1) / CHUNK), n_threads, add_blocks, &job);
}

#endif
