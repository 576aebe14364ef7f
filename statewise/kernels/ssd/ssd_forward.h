/* SSD forwards: parallel over rows and blocks of heads; inside, chunk by chunk and head by head.
 *
 * Of a chunk, B, C and C B^T are prepared once for all heads of the block. A head then has
 *     y   = diag(from_start) C S + M x          M = decay * C B^T, lower triangular
 *     S'  = across S + B^T diag(to_end) x       S (n, p), the state transposed, stays in the cache
 */
#ifndef STATEWISE_SSD_FORWARD_H
#define STATEWISE_SSD_FORWARD_H

typedef struct {
    problem in;
    real *y, *state, *scratch;
    int64_t scratch_size; /* of a thread */
} forward_job;

typedef struct {
    int64_t n, p; /* padded */
    real *B, *C, *B_turned, *scores, *mixing, *values, *weighted, *y, *states;
    decays decay;
} forward_scratch;

/* Lays the buffers into memory, or only measures them where memory is NULL. */
static int64_t lay_forward(const problem *all, int64_t most_heads, real *memory, forward_scratch *to) {
    int64_t n = to->n = round_up(all->n_states, MULTIPLE), p = to->p = round_up(all->width, MULTIPLE), at = 0;
    struct {
        real **where;
        int64_t size;
    } buffers[] = {{&to->B, CHUNK * n},           {&to->C, CHUNK * n},        {&to->B_turned, n * CHUNK},
                   {&to->scores, CHUNK * CHUNK},  {&to->mixing, CHUNK * CHUNK}, {&to->values, CHUNK * p},
                   {&to->weighted, CHUNK * p},    {&to->y, CHUNK * p},        {&to->states, most_heads * n * p}};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        *buffers[i].where = memory ? memory + at : NULL;
        at += round_up(buffers[i].size, 64);
    }
    return at;
}

static void write_outputs(const forward_job *job, const item *one, int64_t head, const chunk *part,
                          const forward_scratch *s) {
    const problem *all = &job->in;
    int64_t width = all->width;
    real D = all->D ? all->D[head] : 0;
    for (int64_t t = 0; t < part->steps; t++) {
        int64_t step = part->start + t;
        const real *from = s->y + t * s->p, *x = all->x + one->row * all->x_row + step * all->x_step + head * width;
        real *y = job->y + ((one->row * all->length + step) * all->n_heads + head) * width;
        for (int64_t j = 0; j < width; j += REAL_LANES) {
            int64_t count = width - j;
            vreal value = v_load(from + j);
            if (count >= REAL_LANES) {
                if (all->D) value += D * v_load(x + j);
                v_store(y + j, value);
            } else {
                if (all->D) value += D * v_load_some(x + j, count);
                v_store_some(y + j, value, count);
            }
        }
    }
}

/* Where this head's outputs go, and the x that is read after its own. */
static void forward_ahead(const forward_job *job, const item *one, int64_t head, const chunk *part,
                          const forward_scratch *s, ahead *a) {
    const problem *all = &job->in;
    const int64_t stride = all->n_heads * all->width, size = sizeof(real), vectors = s->p / REAL_LANES;
    *a = (ahead){0};
    ahead_add(a, job->y, ((one->row * all->length + part->start) * stride + head * all->width) * size, stride * size,
              all->width * size, part->steps);
    ahead_of_head(all, one, head, part, part->start + CHUNK, all->x, one->row * all->x_row, all->x_step, a);
    ahead_share(a, 2 * tiles(part->steps, vectors) + tiles(s->n, vectors));
}

static void forward_head(const forward_job *job, const item *one, int64_t head, const chunk *part, real *S,
                         forward_scratch *s) {
    const problem *all = &job->in;
    int64_t n = s->n, p = s->p, vectors = p / REAL_LANES;
    ahead a;
    forward_ahead(job, one, head, part, s, &a);
    set_decays(all, one->row, head, part, &s->decay);
    const real *x = all->x + one->row * all->x_row + part->start * all->x_step + head * all->width;
    const real *dt = all->dt ? all->dt + (one->row * all->length + part->start) * all->n_heads + head : NULL;
    real finite = pack(part->steps, all->width, x, all->x_step, dt, all->n_heads, s->values, p);
    multiply_asking(&a, round_up(part->carried, TILE_ROWS), vectors, n, (factor){s->C, n, 1}, S, p,
                    (scales){&FRESH, 0}, s->y, p);
    /* A tile's rows share a range of steps, and beyond its own a row multiplies by zero: not with a NaN in them. */
    int64_t rows = finite == 0 ? TILE_ROWS : 1;
    for (int64_t t = 0; t < part->steps; t += rows) {
        for (int64_t r = t; r < t + rows; r++)
            for (int64_t k = 0; k < t + rows; k += REAL_LANES) {
                vreal mixing = decay_between(&s->decay, part, r, k) * v_load(s->scores + r * CHUNK + k);
                v_store(s->mixing + r * CHUNK + k, v_select(seen_from(part, r, k), mixing, v_broadcast(0)));
            }
        int64_t first = part->first[t];
        multiply_asking(&a, rows, vectors, t + rows - first, (factor){s->mixing + t * CHUNK + first, CHUNK, 1},
                        s->values + first * p, p, (scales){s->decay.from_start + t, 1}, s->y + t * p, p);
    }
    write_outputs(job, one, head, part, s);
    int64_t last = part->last;
    scale_rows(last, part->steps, s->decay.to_end, s->values, s->weighted, p);
    multiply_asking(&a, n, vectors, part->steps - last, (factor){s->B + last * n, 1, n}, s->weighted + last * p, p,
                    (scales){&s->decay.across, 0}, S, p);
}

static void forward_item(void *context, int64_t index, int64_t thread) {
    const forward_job *job = context;
    const problem *all = &job->in;
    item one = item_of(all, index);
    forward_scratch s;
    lay_forward(all, 0, job->scratch + thread * job->scratch_size, &s);
    int64_t n = s.n, p = s.p, state_size = all->width * all->n_states;
    int64_t first_state = (one.row * all->n_heads + one.first_head) * state_size;
    memset(s.states, 0, sizeof(real) * (size_t)(one.n_heads * n * p));
    for (int64_t i = 0; i < one.n_heads; i++)
        transpose(all->width, all->n_states, all->h0 + first_state + i * state_size, all->n_states,
                  s.states + i * n * p, p);
    const real *B = all->B + one.row * all->B_row + one.group * all->n_states;
    const real *C = all->C + one.row * all->C_row + one.group * all->n_states;
    for (int64_t start = 0; start < all->length; start += CHUNK) {
        chunk part = chunk_at(all, one.row, start);
        pack(part.steps, all->n_states, B + start * all->B_step, all->B_step, NULL, 0, s.B, n);
        pack(part.steps, all->n_states, C + start * all->C_step, all->C_step, NULL, 0, s.C, n);
        transpose(CHUNK, n, s.B, n, s.B_turned, CHUNK);
        set_scores(part.steps, n, s.C, s.B_turned, s.scores);
        for (int64_t i = 0; i < one.n_heads; i++)
            forward_head(job, &one, one.first_head + i, &part, s.states + i * n * p, &s);
    }
    for (int64_t i = 0; i < one.n_heads; i++)
        transpose(all->n_states, all->width, s.states + i * n * p, p, job->state + first_state + i * state_size,
                  all->n_states);
}

/* The numbers of scratch memory that a thread of ssd_forward needs. */
void EXPORT(ssd_forward_scratch)(int64_t *size, int64_t n_heads, int64_t width, int64_t n_groups, int64_t n_states,
                                 int64_t n_blocks) {
    problem all = {.width = width, .n_states = n_states};
    forward_scratch s;
    *size = lay_forward(&all, (n_heads / n_groups + n_blocks - 1) / n_blocks, NULL, &s);
}

void EXPORT(ssd_forward)(const real *x, const real *dt, const real *log_a, const real *B, const real *C, const real *h0,
                         const real *D, const int64_t *segments, real *y, real *state, real *scratch, int64_t batch,
                         int64_t length, int64_t n_heads, int64_t width, int64_t n_groups, int64_t n_states,
                         int64_t x_row, int64_t x_step, int64_t B_row, int64_t B_step, int64_t C_row, int64_t C_step,
                         int64_t n_blocks, int64_t scratch_size, int64_t n_threads) {
    forward_job job = {
        {x, dt, log_a, B, C, h0, D, segments, batch, length, n_heads, width, n_groups, n_states, x_row, x_step, B_row,
         B_step, C_row, C_step, n_blocks},
        y, state, scratch, scratch_size};
    parallel_for(batch * n_groups * n_blocks, n_threads, forward_item, &job);
}

#endif
