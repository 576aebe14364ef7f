/* SSD backwards: parallel over rows and blocks of heads, in two sweeps over time.
 *
 * Forwards, each head's states at the starts of chunks are computed again and kept. Backwards, with the states S and
 * the gradients G of the state after the chunk, both (p, n), and v = dt x:
 *     dC  = diag(from_start) dy S + sum over heads of (dM * decay) B          M = decay * C B^T
 *     dB  = diag(to_end) v G + sum over heads of (dM * decay)^T C             dM = dy v^T
 *     dv  = diag(to_end) B G^T + M^T dy
 *     G'  = across G + dy^T diag(from_start) C
 * B, C, C B^T and the two sums over heads are there once a chunk for all heads of the block. Blocks are cut by the
 * shapes alone and added in order (ssd_gradients.h), so that the bits do not depend on the number of threads.
 */
#ifndef STATEWISE_SSD_BACKWARD_H
#define STATEWISE_SSD_BACKWARD_H

typedef struct {
    problem in;
    const real *grad_y, *grad_state;
    real *dx, *d_dt, *d_log_a, *dB, *dC, *dh0, *dD; /* dB and dC: one for each block; dD: for each row */
    real *scratch;
    int64_t scratch_size; /* of a thread */
} backward_job;

typedef struct {
    int64_t n, p; /* padded */
    real *B, *C, *B_turned, *scores, *d_scores, *dB, *dC;                    /* of a chunk, for all heads */
    real *dy, *dy_start, *values, *weighted, *values_turned;                 /* of a chunk and head */
    real *dv, *dv_turned, *d_mixing, *mixing, *product;
    real *states, *gradients; /* of all heads: a state for each chunk, the gradient of the one after the chunk */
    decays decay;
    real to_state[CHUNK], from_state[CHUNK], crossing[CHUNK]; /* what log_a scales, see add_decay_gradient */
} backward_scratch;

/* Lays the buffers into memory, or only measures them where memory is NULL. */
static int64_t lay_backward(const problem *all, int64_t most_heads, real *memory, backward_scratch *to) {
    int64_t n = to->n = round_up(all->n_states, MULTIPLE), p = to->p = round_up(all->width, MULTIPLE), at = 0;
    int64_t n_chunks = (all->length + CHUNK - 1) / CHUNK, square = CHUNK * CHUNK;
    struct {
        real **where;
        int64_t size;
    } buffers[] = {{&to->B, CHUNK * n},        {&to->C, CHUNK * n},         {&to->B_turned, n * CHUNK},
                   {&to->scores, square},      {&to->d_scores, square},     {&to->dB, CHUNK * n},
                   {&to->dC, CHUNK * n},       {&to->dy, CHUNK * p},        {&to->dy_start, CHUNK * p},
                   {&to->values, CHUNK * p},   {&to->weighted, CHUNK * p},  {&to->values_turned, p * CHUNK},
                   {&to->dv, CHUNK * p},       {&to->dv_turned, p * CHUNK}, {&to->d_mixing, square},
                   {&to->mixing, square},      {&to->product, CHUNK * n},   {&to->gradients, most_heads * p * n},
                   {&to->states, most_heads * n_chunks * p * n}};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        *buffers[i].where = memory ? memory + at : NULL;
        at += round_up(buffers[i].size, 64);
    }
    return at;
}

static void pack_values(const problem *all, const item *one, int64_t head, const chunk *part, backward_scratch *s) {
    const real *x = all->x + one->row * all->x_row + part->start * all->x_step + head * all->width;
    const real *dt = all->dt ? all->dt + (one->row * all->length + part->start) * all->n_heads + head : NULL;
    pack(part->steps, all->width, x, all->x_step, dt, all->n_heads, s->values, s->p);
    scale_rows(part->last, part->steps, s->decay.to_end, s->values, s->weighted, s->p);
}

/* a state (width, n) of the caller's -> (p, n) padded, or back */
static void pad_state(const problem *all, const real *from, real *to, int64_t p, int64_t n) {
    memset(to, 0, sizeof(real) * (size_t)(p * n));
    for (int64_t i = 0; i < all->width; i++)
        copy_numbers(to + i * n, from + i * all->n_states, all->n_states);
}
static void unpad_state(const problem *all, const real *from, real *to, int64_t n) {
    for (int64_t i = 0; i < all->width; i++)
        copy_numbers(to + i * all->n_states, from + i * n, all->n_states);
}

/* S' = across S + v^T diag(to_end) B, from the state at the start of this chunk to the next one's. Of the block's next
 * head, or of its first one in the next chunk, S' will lie at `then`
 * (NULL: there is none). */
static void next_state(const problem *all, const item *one, int64_t head, const chunk *part, real *S, const real *then,
                       backward_scratch *s) {
    int64_t n = s->n, p = s->p, last = part->last, size = sizeof(real);
    real *next = S + p * n;
    ahead a = {0};
    ahead_add(&a, then, 0, 0, p * n * size, 1);
    ahead_of_head(all, one, head, part, part->start + CHUNK, all->x, one->row * all->x_row, all->x_step, &a);
    ahead_share(&a, tiles(p, n / REAL_LANES));
    set_decays(all, one->row, head, part, &s->decay);
    pack_values(all, one, head, part, s);
    multiply_onto(S, &a, p, n / REAL_LANES, part->steps - last, (factor){s->weighted + last * p, 1, p}, s->B + last * n,
                  n, (scales){&s->decay.across, 0}, next, n);
}

/* What passes through the carried state: dC, and from_state[t] = dy_t . C_t S. */
static void through_entering_state(const chunk *part, const real *S, ahead *a, backward_scratch *s) {
    int64_t n = s->n;
    multiply_asking(a, round_up(part->carried, TILE_ROWS), n / REAL_LANES, s->p, (factor){s->dy_start, s->p, 1}, S, n,
                    (scales){&FRESH, 0}, s->product, n);
    for (int64_t t = 0; t < CHUNK; t++) {
        vreal sum = v_broadcast(0);
        for (int64_t j = 0; j < n && t < part->carried; j += REAL_LANES) {
            vreal here = v_load(s->product + t * n + j);
            sum += here * v_load(s->C + t * n + j);
            v_store(s->dC + t * n + j, v_load(s->dC + t * n + j) + here);
        }
        s->from_state[t] = t < part->carried ? v_sum(sum) : 0;
    }
}

/* What passes into the state after the chunk: dB, a part of dv, and to_state[s] = v_s . (G B_s) to_end[s]. */
static void through_leaving_state(const chunk *part, const real *G, ahead *a, backward_scratch *s) {
    int64_t n = s->n, p = s->p, last = part->last;
    multiply_asking(a, part->steps - last, n / REAL_LANES, p, (factor){s->weighted + last * p, p, 1}, G, n,
                    (scales){&ONE, 0}, s->dB + last * n, n);
    multiply_asking(a, p, CHUNK / REAL_LANES, n, (factor){G, n, 1}, s->B_turned, CHUNK, (scales){&FRESH, 0},
                    s->dv_turned, CHUNK);
    for (int64_t t = 0; t < CHUNK; t += REAL_LANES) {
        vreal sum = v_broadcast(0), weight = v_load(s->decay.to_end + t);
        vmask reaches = v_load(STEPS + t) >= (real)last;
        for (int64_t i = 0; i < p; i++) {
            vreal here = v_select(reaches, weight * v_load(s->dv_turned + i * CHUNK + t), v_broadcast(0));
            v_store(s->dv_turned + i * CHUNK + t, here);
            sum += here * v_load(s->values_turned + i * CHUNK + t);
        }
        v_store(s->to_state + t, v_select(reaches, sum, v_broadcast(0)));
    }
    transpose(p, CHUNK, s->dv_turned, CHUNK, s->dv, p);
}

/* What passes inside the chunk: M, the sum over heads of dM * decay, and crossing[t], the sum of dM * M over all
 * pairs u >= t > s. Rows are taken from the last, so that below[s] is the sum over u >= t. */
static void inside_chunk(const chunk *part, ahead *a, backward_scratch *s) {
    vreal below[CHUNK / REAL_LANES] = {0};
    for (int64_t t = 0; t < part->steps; t += TILE_ROWS)
        multiply_asking(a, TILE_ROWS, (t + TILE_ROWS - 1) / REAL_LANES + 1, s->p, (factor){s->dy + t * s->p, s->p, 1},
                        s->values_turned, CHUNK, (scales){&FRESH, 0}, s->d_mixing + t * CHUNK, CHUNK);
    for (int64_t t = part->steps - 1; t >= 0; t--) {
        vreal sum = v_broadcast(0);
        for (int64_t k = 0; k <= (t | (TILE_ROWS - 1)); k += REAL_LANES) { /* all that a tile of M^T reads */
            int64_t at = t * CHUNK + k;
            vreal decay = decay_between(&s->decay, part, t, k), score = v_load(s->scores + at);
            vmask seen = seen_from(part, t, k);
            vmask before = v_load(STEPS + k) < (real)t;
            vreal d_score = v_select(seen, decay * v_load(s->d_mixing + at), v_broadcast(0));
            v_store(s->d_scores + at, v_load(s->d_scores + at) + d_score);
            v_store(s->mixing + at, v_select(seen, decay * score, v_broadcast(0)));
            below[k / REAL_LANES] += v_select(seen & before, d_score * score, v_broadcast(0));
            sum += v_select(before, below[k / REAL_LANES], v_broadcast(0));
        }
        s->crossing[t] = v_sum(sum);
    }
    for (int64_t k = 0; k < part->steps; k += TILE_ROWS)
        multiply_asking(a, TILE_ROWS, s->p / REAL_LANES, part->steps - k, (factor){s->mixing + k * CHUNK + k, 1, CHUNK},
                        s->dy + k * s->p, s->p, (scales){&ONE, 0}, s->dv + k * s->p, s->p);
}

/* log_a_t scales whatever crosses from before t to t or later: from step to step inside the chunk, from the carried
 * state, to the end, and across. The shorter formula <dy, y> - <dv, v> would subtract large equal numbers. */
static void set_decay_gradient(const backward_job *job, const item *one, int64_t head, const chunk *part, double across,
                               const backward_scratch *s) {
    const problem *all = &job->in;
    real *d_log_a = job->d_log_a + (one->row * all->length + part->start) * all->n_heads + head;
    double sum = across, sums[CHUNK];
    for (int64_t t = part->steps - 1; t >= 0; t--) sums[t] = sum += (double)s->from_state[t];
    sum = 0;
    for (int64_t t = 0; t < part->steps; t++) {
        d_log_a[t * all->n_heads] = (real)(sums[t] + sum + (double)s->crossing[t]);
        sum += (double)s->to_state[t];
    }
}

/* dx = dt dv + D dy, d_dt = dv . x, dD of the row = the sum of dy x */
static void write_gradients(const backward_job *job, const item *one, int64_t head, const chunk *part,
                            const backward_scratch *s) {
    const problem *all = &job->in;
    int64_t width = all->width;
    real D = all->D ? all->D[head] : 0;
    vreal sum_D = v_broadcast(0);
    for (int64_t t = 0; t < part->steps; t++) {
        int64_t step = part->start + t, at = (one->row * all->length + step) * all->n_heads + head;
        const real *x = all->x + one->row * all->x_row + step * all->x_step + head * width;
        const real *dy = s->dy + t * s->p, *dv = s->dv + t * s->p;
        real dt = all->dt ? all->dt[at] : 1;
        vreal sum_dt = v_broadcast(0);
        for (int64_t j = 0; j < width; j += REAL_LANES) {
            int64_t count = width - j < REAL_LANES ? width - j : REAL_LANES;
            vreal dv_j = v_load(dv + j), dy_j = v_load(dy + j), dx = dt * dv_j;
            vreal x_j = count == REAL_LANES ? v_load(x + j) : v_load_some(x + j, count);
            if (all->D) dx += D * dy_j;
            sum_dt += dv_j * x_j;
            sum_D += dy_j * x_j;
            if (count == REAL_LANES)
                v_store(job->dx + at * width + j, dx);
            else
                v_store_some(job->dx + at * width + j, dx, count);
        }
        if (all->dt) job->d_dt[at] = v_sum(sum_dt);
    }
    if (all->D) job->dD[one->row * all->n_heads + head] += v_sum(sum_D);
}

/* Where this head's gradients go, and what is read after its own state, x and dy. `then`: that next state, or NULL. */
static void backward_ahead(const backward_job *job, const item *one, int64_t head, const chunk *part, const real *then,
                           const backward_scratch *s, ahead *a) {
    const problem *all = &job->in;
    const int64_t stride = all->n_heads * all->width, size = sizeof(real), next = part->start - CHUNK;
    const int64_t n = s->n / REAL_LANES, p = s->p / REAL_LANES, row = one->row * all->length * stride;
    *a = (ahead){0};
    ahead_add(a, job->dx, (row + part->start * stride + head * all->width) * size, stride * size, all->width * size,
              part->steps);
    ahead_add(a, then, 0, 0, s->p * s->n * size, 1);
    ahead_of_head(all, one, head, part, next, all->x, one->row * all->x_row, all->x_step, a);
    ahead_of_head(all, one, head, part, next, job->grad_y, row, stride, a);
    const int64_t inside = CHUNK / TILE_ROWS + tiles(CHUNK, p); /* dM, half of whose columns are not computed; dv */
    ahead_share(a, 2 * tiles(CHUNK, n) + tiles(s->p, CHUNK / REAL_LANES) + inside + tiles(s->p, n));
}

static void backward_head(const backward_job *job, const item *one, int64_t head, const chunk *part, const real *S,
                          const real *then, real *G, backward_scratch *s) {
    const problem *all = &job->in;
    int64_t n = s->n, p = s->p;
    ahead a;
    backward_ahead(job, one, head, part, then, s, &a);
    set_decays(all, one->row, head, part, &s->decay);
    pack_values(all, one, head, part, s);
    transpose(CHUNK, p, s->values, p, s->values_turned, CHUNK);
    const real *dy = job->grad_y + ((one->row * all->length + part->start) * all->n_heads + head) * all->width;
    pack(part->steps, all->width, dy, all->n_heads * all->width, NULL, 0, s->dy, p);
    scale_rows(0, part->carried, s->decay.from_start, s->dy, s->dy_start, p);
    through_entering_state(part, S, &a, s);
    through_leaving_state(part, G, &a, s);
    inside_chunk(part, &a, s);
    vreal carried = v_broadcast(0);
    if (part->carried == part->steps)
        for (int64_t i = 0; i < p * n; i += REAL_LANES) carried += v_load(G + i) * v_load(S + i);
    double across = part->carried == part->steps ? (double)(s->decay.across * v_sum(carried)) : 0;
    set_decay_gradient(job, one, head, part, across, s);
    write_gradients(job, one, head, part, s);
    multiply_asking(&a, p, n / REAL_LANES, part->carried, (factor){s->dy_start, 1, p}, s->C, n,
                    (scales){&s->decay.across, 0}, G, n);
}

#endif
