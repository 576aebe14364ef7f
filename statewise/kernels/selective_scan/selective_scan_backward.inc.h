/* The adjoint of the selective scan, from the states kept at the starts of chunks: who does what, and the sums.
 *
 * An item is a share of the rows and a block of channels. It goes through its rows, their chunks last to first, and for
 * each chunk through the states, WIDTH at a time, and for these through its vectors of channels. So the sums of dB and
 * dC over channels stay in the cache as vectors, of which the lanes are added when a group ends. Blocks that share a
 * group write sums of their own, which Python adds in order, as it does those of A, D and dt_bias over the shares:
 * the bits do not depend on the number of threads.
 */
typedef struct {
    const real *d_state;
    const void *dy, *u, *dt, *gate;
    const real *A, *B, *C, *D, *dt_bias, *kept;
    const int64_t *segments;
    void *d_u, *d_dt, *d_gate; /* as u, dt and gate are, without gaps */
    real *d_A, *d_D, *d_bias;  /* (shares, width[, states]) */
    real *d_B, *d_C;           /* (splits, rows, length, groups, states) */
    real *d_h0, *scratch;
    const scan_sizes *sizes;
} LOCAL(backward_call);

typedef struct {
    real *delta, *input, *dy, *y, *d_input, *d_delta; /* by step */
    real *A, *rates, *h, *d_A, *d_h;                  /* by state */
    real *d_D, *d_bias;                               /* one vector for each of channels */
    real *a, *ah, *step, *slope, *d_B, *d_C, *B, *C;  /* of WIDTH states over a chunk */
    unsigned char resets[SCAN_MAX_CHUNK];
} LOCAL(backward_memory);

static void LOCAL(backward_carve)(const scan_sizes *z, const scan_block *block, real *scratch,
                                  LOCAL(backward_memory) * m) {
    const int64_t parts = 1 + z->is_complex;
    real **by_step[] = {&m->delta, &m->input, &m->dy, &m->y, &m->d_input, &m->d_delta};
    real **by_state[] = {&m->A, &m->h, &m->d_A, &m->d_h, &m->rates}; /* rates: twice as wide */
    real **by_part[] = {&m->a, &m->ah, &m->step, &m->slope, &m->d_B, &m->d_C, &m->B, &m->C};
    real **by_vector[] = {&m->d_D, &m->d_bias};
    for (int i = 0; i < 6; i++, scratch += SCRATCH(block->n_vectors, 0, z->chunk)) *by_step[i] = scratch;
    for (int i = 0; i < 5; i++, scratch += SCRATCH(block->n_vectors, 0, z->states * parts)) *by_state[i] = scratch;
    scratch += SCRATCH(block->n_vectors, 0, z->states * parts);
    for (int i = 0; i < 8; i++, scratch += SCRATCH(z->chunk, 0, WIDTH * parts)) *by_part[i] = scratch;
    for (int i = 0; i < 2; i++, scratch += SCRATCH(block->n_vectors, 0, 1)) *by_vector[i] = scratch;
}

/* Delta, Delta u or u, and the gradient of C h, of the chunk; what is added up starts at zero. */
static void LOCAL(backward_stage)(const LOCAL(backward_call) * call, const scan_block *block, int64_t row,
                                  int64_t start, int64_t steps, LOCAL(backward_memory) * m) {
    const scan_sizes *z = call->sizes;
    for (int64_t t = 0; t < steps; t++)
        for (int64_t v = 0; v < block->n_vectors; v++) {
            const scan_vector *x = &block->vectors[v];
            const int64_t to = SCRATCH(v, t, z->chunk), now = start + t, at = x->channel;
            vreal delta = LOCAL(stage_load)(call->dt, row * z->dt_row + now * z->dt_time + at, x->count, z->dt_bf16);
            vreal u = LOCAL(stage_load)(call->u, row * z->u_row + now * z->u_time + at, x->count, z->u_bf16);
            vreal dy = LOCAL(stage_load)(call->dy, row * z->dy_row + now * z->dy_time + at, x->count, z->u_bf16);
            delta += LOCAL(stage_channels)(call->dt_bias, x);
            if (z->softplus) delta = v_softplus(delta);
            if (call->gate) {
                const int64_t gate_at = row * z->gate_row + now * z->gate_time + at;
                vreal gate = LOCAL(stage_load)(call->gate, gate_at, x->count, z->gate_bf16);
                dy *= gate * v_sigmoid(gate);
            }
            v_store(m->delta + to, delta);
            v_store(m->input + to, z->exact ? u : delta * u);
            v_store(m->dy + to, z->is_complex ? 2 * dy : dy);
            v_store(m->y + to, v_broadcast(0));
            v_store(m->d_input + to, v_broadcast(0));
            v_store(m->d_delta + to, v_broadcast(0));
        }
}

/* Gradients of u, dt and gate of the chunk, and what it adds to those of D and dt_bias. */
static void LOCAL(backward_finish)(const LOCAL(backward_call) * call, const scan_block *block, int64_t row,
                                   int64_t start, int64_t steps, LOCAL(backward_memory) * m) {
    const scan_sizes *z = call->sizes;
    for (int64_t v = 0; v < block->n_vectors; v++) {
        const scan_vector *x = &block->vectors[v];
        const vreal D = LOCAL(stage_channels)(call->D, x), bias = LOCAL(stage_channels)(call->dt_bias, x);
        vreal d_D = v_broadcast(0), d_bias = v_broadcast(0);
        for (int64_t t = 0; t < steps; t++) {
            const int64_t from = SCRATCH(v, t, z->chunk), now = start + t, at = x->channel;
            const int64_t to = (row * z->length + now) * z->width + at;
            const vreal delta = v_load(m->delta + from), d_input = v_load(m->d_input + from);
            vreal u = LOCAL(stage_load)(call->u, row * z->u_row + now * z->u_time + at, x->count, z->u_bf16);
            vreal dy = v_load(m->dy + from), d_delta = v_load(m->d_delta + from);
            if (z->is_complex) dy *= (real)0.5;
            if (call->gate) {
                const int64_t gate_at = row * z->gate_row + now * z->gate_time + at;
                vreal gate = LOCAL(stage_load)(call->gate, gate_at, x->count, z->gate_bf16), s = v_sigmoid(gate);
                vreal all = LOCAL(stage_load)(call->dy, row * z->dy_row + now * z->dy_time + at, x->count, z->u_bf16);
                vreal y = v_load(m->y + from);
                if (z->is_complex) y *= 2;
                if (call->D) y += D * u;
                LOCAL(stage_store)(call->d_gate, to, all * y * s * (1 + gate * (1 - s)), x->count, z->gate_bf16);
            }
            vreal d_u = z->exact ? d_input : delta * d_input;
            if (!z->exact) d_delta += u * d_input;
            if (call->D) d_u += dy * D;
            if (z->softplus) {
                const int64_t dt_at = row * z->dt_row + now * z->dt_time + at;
                d_delta *= v_sigmoid(LOCAL(stage_load)(call->dt, dt_at, x->count, z->dt_bf16) + bias);
            }
            LOCAL(stage_store)(call->d_u, to, d_u, x->count, z->u_bf16);
            LOCAL(stage_store)(call->d_dt, to, d_delta, x->count, z->dt_bf16);
            d_D += dy * u;
            d_bias += d_delta;
        }
        v_store(m->d_D + SCRATCH(v, 0, 1), v_load(m->d_D + SCRATCH(v, 0, 1)) + d_D);
        v_store(m->d_bias + SCRATCH(v, 0, 1), v_load(m->d_bias + SCRATCH(v, 0, 1)) + d_bias);
    }
}

/* The sums of dB or dC of some states over the vectors of a group: from vectors to numbers. */
static void LOCAL(write_sums)(const scan_sizes *z, const real *sums, int64_t steps, int64_t n, real *to) {
    for (int64_t t = 0; t < steps; t++)
        for (int64_t i = 0; i < n; i++)
            to[t * z->groups * z->states * (1 + z->is_complex) + i] = v_sum(v_load(sums + (t * n + i) * REAL_LANES));
}

/* The same where the lanes of a vector belong to several groups, some of which began in the vector before. */
static void LOCAL(add_lanes)(const scan_sizes *z, const scan_vector *vector, const real *sums, int64_t steps,
                             int64_t n, real *to) {
    const int64_t parts = 1 + z->is_complex, each = z->width / z->groups;
    for (int64_t lane = 0; lane < vector->count; lane++) {
        const int64_t channel = vector->channel + lane;
        real *group = to + channel / each * z->states * parts;
        for (int64_t t = 0; t < steps; t++)
            for (int64_t i = 0; i < n; i++) {
                real *sum = group + t * z->groups * z->states * parts + i;
                const real value = sums[(t * n + i) * REAL_LANES + lane];
                *sum = channel % each ? *sum + value : value;
            }
    }
}

/* What this chunk will write, and what the next one, the one before it in time, reads. */
static void LOCAL(backward_ahead)(const LOCAL(backward_call) * call, const scan_block *block, int64_t row, int64_t start,
                                  int64_t steps, ahead *a) {
    const scan_sizes *z = call->sizes;
    const int64_t next = start - z->chunk, rows = next < 0 ? 0 : z->chunk;
    const int64_t now = (row * z->length + start) * z->width;
    *a = (ahead){0};
    LOCAL(stage_ahead)(a, block, call->d_u, z->u_bf16, now, z->width, steps);
    LOCAL(stage_ahead)(a, block, call->d_dt, z->dt_bf16, now, z->width, steps);
    LOCAL(stage_ahead)(a, block, call->d_gate, z->gate_bf16, now, z->width, steps);
    LOCAL(stage_ahead)(a, block, call->u, z->u_bf16, row * z->u_row + next * z->u_time, z->u_time, rows);
    LOCAL(stage_ahead)(a, block, call->dt, z->dt_bf16, row * z->dt_row + next * z->dt_time, z->dt_time, rows);
    LOCAL(stage_ahead)(a, block, call->dy, z->u_bf16, row * z->dy_row + next * z->dy_time, z->dy_time, rows);
    LOCAL(stage_ahead)(a, block, call->gate, z->gate_bf16, row * z->gate_row + next * z->gate_time, z->gate_time,
                       rows);
    ahead_share(a, block->n_vectors * ((z->states + WIDTH - 1) / WIDTH) * steps);
}

/* Some states of all vectors over one chunk. */
static void LOCAL(backward_states)(const LOCAL(backward_call) * call, const scan_block *block, int64_t row,
                                   int64_t start, const unsigned char *resets, int64_t steps, int64_t n, int64_t width,
                                   LOCAL(backward_memory) * m, ahead *a) {
    const scan_sizes *z = call->sizes;
    const int64_t parts = 1 + z->is_complex, each = width * parts;
    int begins = 1;
    for (int64_t v = 0; v < block->n_vectors; v++) {
        const scan_vector *x = &block->vectors[v];
        const int64_t group = block->per_lane ? 0 : x->group;
        const int64_t b_at = (((row * z->length + start) * z->groups + group) * z->states + n) * parts;
        const int64_t out = block->split * z->rows * z->length * z->groups * z->states * parts + b_at;
        const int64_t by_time = SCRATCH(v, 0, z->chunk), by_state = SCRATCH(v, n, z->states) * parts;
        LOCAL(adjoint_part) part = {
            steps, resets, m->delta + by_time, m->input + by_time, m->dy + by_time, m->y + by_time,
            m->d_input + by_time, m->d_delta + by_time, m->A + by_state, m->rates + 2 * by_state, m->h + by_state,
            m->d_A + by_state, m->d_h + by_state, call->B + b_at, call->C + b_at, z->groups * z->states * parts,
            m->d_B, m->d_C, m->a, m->ah, m->step, m->slope, a};
        if (block->per_lane) {
            LOCAL(stage_lanes)(z, x, part.B, steps, width, m->B);
            LOCAL(stage_lanes)(z, x, part.C, steps, width, m->C);
            part.B = m->B;
            part.C = m->C;
            part.b_step = each * REAL_LANES;
        }
        if (begins) {
            memset(m->d_B, 0, sizeof(real) * (size_t)(steps * each * REAL_LANES));
            memset(m->d_C, 0, sizeof(real) * (size_t)(steps * each * REAL_LANES));
        }
        LOCAL(adjoint_states)(&part, width, z->is_complex, z->exact, block->per_lane);
        if (block->per_lane) {
            LOCAL(add_lanes)(z, x, m->d_B, steps, each, call->d_B + out);
            LOCAL(add_lanes)(z, x, m->d_C, steps, each, call->d_C + out);
        } else if (x->last) {
            LOCAL(write_sums)(z, m->d_B, steps, each, call->d_B + out);
            LOCAL(write_sums)(z, m->d_C, steps, each, call->d_C + out);
        }
        begins = block->per_lane || x->last;
    }
}

/* The states at the start of a chunk, kept as ([2,] states, width). */
static void LOCAL(take_states)(const scan_sizes *z, const scan_block *block, const real *kept, real *to) {
    const int64_t parts = 1 + z->is_complex;
    for (int64_t v = 0; v < block->n_vectors; v++) {
        const scan_vector *vector = &block->vectors[v];
        for (int64_t part = 0; part < parts; part++)
            for (int64_t n = 0; n < z->states; n++)
                v_store(to + SCRATCH(v, n * parts + part, z->states * parts),
                        LOCAL(stage_load)(kept, (part * z->states + n) * z->width + vector->channel, vector->count, 0));
    }
}

static void LOCAL(backward_row)(const LOCAL(backward_call) * call, const scan_block *block, int64_t row,
                                LOCAL(backward_memory) * m) {
    const scan_sizes *z = call->sizes;
    const int64_t chunks = (z->length + z->chunk - 1) / z->chunk;
    const int64_t row_states = z->width * z->states * (1 + z->is_complex);
    const int64_t *segments = call->segments ? call->segments + row * z->length : NULL;
    LOCAL(stage_states)(z, block, call->d_state + row * row_states, m->d_h);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        const int64_t start = c * z->chunk, steps = z->length - start < z->chunk ? z->length - start : z->chunk;
        const unsigned char *resets = LOCAL(stage_resets)(segments, start, steps, m->resets);
        LOCAL(take_states)(z, block, call->kept + (row * chunks + c) * row_states, m->h);
        LOCAL(backward_stage)(call, block, row, start, steps, m);
        ahead a;
        LOCAL(backward_ahead)(call, block, row, start, steps, &a);
        for (int64_t n = 0, width; n < z->states; n += width) {
            width = z->states - n >= WIDTH ? WIDTH : 1;
            LOCAL(backward_states)(call, block, row, start, resets, steps, n, width, m, &a);
        }
        LOCAL(backward_finish)(call, block, row, start, steps, m);
    }
    LOCAL(unstage_states)(z, block, m->d_h, call->d_h0 + row * row_states);
}

static void LOCAL(backward_item)(void *context, int64_t item, int64_t thread) {
    const LOCAL(backward_call) *call = context;
    const scan_sizes *z = call->sizes;
    const int64_t n_blocks = scan_blocks(z), share = item / n_blocks, parts = 1 + z->is_complex;
    scan_block block;
    LOCAL(backward_memory) m;
    scan_make_block(z, item % n_blocks, REAL_LANES, &block);
    LOCAL(backward_carve)(z, &block, call->scratch + thread * z->scratch, &m);
    LOCAL(stage_states)(z, &block, call->A, m.A);
    LOCAL(stage_rates)(z, &block, m.A, m.rates);
    const size_t by_vector = sizeof(real) * (size_t)(block.n_vectors * REAL_LANES);
    memset(m.d_A, 0, by_vector * (size_t)(z->states * parts));
    memset(m.d_D, 0, by_vector);
    memset(m.d_bias, 0, by_vector);
    for (int64_t row = z->rows * share / z->row_shares; row < z->rows * (share + 1) / z->row_shares; row++)
        LOCAL(backward_row)(call, &block, row, &m);
    LOCAL(unstage_states)(z, &block, m.d_A, call->d_A + share * z->width * z->states * parts);
    for (int64_t v = 0; v < block.n_vectors; v++) {
        const scan_vector *x = &block.vectors[v];
        const int64_t to = share * z->width + x->channel;
        if (call->D) v_store_some(call->d_D + to, v_load(m.d_D + SCRATCH(v, 0, 1)), x->count);
        if (call->dt_bias) v_store_some(call->d_bias + to, v_load(m.d_bias + SCRATCH(v, 0, 1)), x->count);
    }
}

void EXPORT(selective_scan_backward)(const void *dy, const real *d_state, const void *u, const void *dt, const real *A,
                                     const real *B, const real *C, const real *D, const void *gate,
                                     const real *dt_bias, const int64_t *segments, const real *kept, void *d_u,
                                     void *d_dt, real *d_A, real *d_B, real *d_C, real *d_h0, real *d_D, void *d_gate,
                                     real *d_bias, real *scratch, const int64_t *sizes) {
    const scan_sizes *z = (const scan_sizes *)sizes;
    LOCAL(backward_call) call = {d_state, dy, u, dt, gate, A, B, C, D, dt_bias, kept, segments, d_u, d_dt, d_gate, d_A,
                                 d_D, d_bias, d_B, d_C, d_h0, scratch, z};
    parallel_for(z->row_shares * scan_blocks(z), z->n_threads, LOCAL(backward_item), &call);
}
#undef WIDTH
