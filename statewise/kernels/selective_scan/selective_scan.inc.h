/* The selective scan, forward: h_t = exp(Delta_t A) h_{t-1} + Delta_t B_t u_t, y_t = (C_t h_t + D u_t) SiLU(gate_t).
 *
 * u, dt, gate, y: (rows, length, width); A: (width, states); B, C: (rows, length, groups, states); h: (rows, width,
 * states); complex numbers as a last axis of 2. Lanes are channels. For each row and block of channels, for each chunk
 * of time: Delta and Delta u of all its vectors into scratch memory; then, for each vector, WIDTH states at a time stay
 * in registers over the whole chunk; then D, gate and y. One exponential for each state, channel and step.
 */
#define WIDTH 8

typedef struct {
    const void *u, *dt, *gate;
    const real *A, *B, *C, *h0, *D, *dt_bias;
    const int64_t *segments;
    void *y;
    real *state, *kept, *scratch;
    const scan_sizes *sizes;
} LOCAL(forward_call);

/* One vector of channels, one chunk, some states. */
typedef struct {
    int64_t steps;
    const unsigned char *resets; /* or NULL */
    const real *delta, *input;   /* vectors by step; input: Delta u, or u for the exact hold */
    real *y;                     /* C h is added to it */
    const real *A, *rates;       /* vectors by state, of rates two */
    real *h;
    const real *B, *C; /* numbers, or with per_lane vectors; a step further is b_step reals further */
    int64_t b_step;
    ahead *ahead; /* asked at each step */
} LOCAL(forward_part);

INLINE void LOCAL(forward_states)(const LOCAL(forward_part) * p, const int n, const int is_complex, const int exact,
                                  const int per_lane) {
    const int parts = 1 + is_complex;
    pair h[WIDTH], A[WIDTH], inverse[WIDTH];
    rate rates[WIDTH];
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        h[j] = LOCAL(pair_load)(p->h + j * parts * REAL_LANES, is_complex);
        rates[j] = LOCAL(rate_load)(p->rates + j * 2 * parts * REAL_LANES, is_complex);
        if (exact) {
            A[j] = LOCAL(pair_load)(p->A + j * parts * REAL_LANES, is_complex);
            inverse[j] = LOCAL(inverse)(A[j], is_complex);
        }
    }
    for (int64_t t = 0; t < p->steps; t++) {
        if (p->resets && p->resets[t]) {
#pragma GCC unroll 8
            for (int j = 0; j < n; j++) h[j] = LOCAL(pair_zero)();
        }
        ask(p->ahead);
        const vreal delta = v_load(p->delta + t * REAL_LANES), input = v_load(p->input + t * REAL_LANES);
        vreal y = v_load(p->y + t * REAL_LANES), y_odd = v_broadcast(0);
        const real *B = p->B + t * p->b_step, *C = p->C + t * p->b_step;
#pragma GCC unroll 8
        for (int j = 0; j < n; j++) {
            pair a = LOCAL(transition)(delta, rates[j], is_complex);
            pair b = LOCAL(coefficient)(B, j, is_complex, per_lane), c = LOCAL(coefficient)(C, j, is_complex, per_lane);
            pair ah = LOCAL(moved)(a, h[j], is_complex);
            if (exact) {
                pair step = LOCAL(exact_step)(delta, A[j], a, inverse[j], is_complex);
                h[j] = LOCAL(with_held)(ah, step, b, input, is_complex);
            } else {
                h[j] = LOCAL(with_input)(ah, b, input, is_complex);
            }
            c.im = -c.im; /* Re(C h) */
            if (j & 1) y_odd = LOCAL(add_real)(y_odd, c, h[j], is_complex);
            else y = LOCAL(add_real)(y, c, h[j], is_complex);
        }
        v_store(p->y + t * REAL_LANES, y + y_odd);
    }
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) LOCAL(pair_store)(p->h + j * parts * REAL_LANES, h[j], is_complex);
}

/* The same with its constants, for n of 8, 4 or 1. */
#define VARIANT(n, is_complex, exact, per_lane) LOCAL(forward_states)(p, n, is_complex, exact, per_lane)
#define WIDTHS(is_complex, exact, per_lane)                                                                     \
    (n == 8 ? VARIANT(8, is_complex, exact, per_lane)                                                           \
            : n == 4 ? VARIANT(4, is_complex, exact, per_lane) : VARIANT(1, is_complex, exact, per_lane))
#define NARROW(is_complex, exact, per_lane)                                                                     \
    (n == 4 ? VARIANT(4, is_complex, exact, per_lane) : VARIANT(1, is_complex, exact, per_lane))

static __attribute__((noinline)) void LOCAL(forward_dispatch)(const LOCAL(forward_part) * p, int n, int64_t is_complex,
                                                              int64_t exact, int64_t per_lane) {
    if (!is_complex && !exact && !per_lane) WIDTHS(0, 0, 0);
    else if (!is_complex && !exact) WIDTHS(0, 0, 1);
    else if (!is_complex && !per_lane) NARROW(0, 1, 0);
    else if (!is_complex) NARROW(0, 1, 1);
    else if (!exact && !per_lane) NARROW(1, 0, 0);
    else if (!exact) NARROW(1, 0, 1);
    else if (!per_lane) NARROW(1, 1, 0);
    else NARROW(1, 1, 1);
}

/* how many states go together; complex numbers and the exact hold need more registers */
INLINE int LOCAL(forward_width)(const scan_sizes *z, int64_t left) {
    if (left >= 8 && !z->is_complex && !z->exact) return 8;
    return left >= 4 ? 4 : 1;
}

typedef struct {
    real *delta, *input, *y, *A, *rates, *h, *B, *C;
    unsigned char resets[SCAN_MAX_CHUNK];
} LOCAL(forward_memory);

static void LOCAL(forward_carve)(const scan_sizes *z, const scan_block *block, real *scratch,
                                 LOCAL(forward_memory) * m) {
    const int64_t by_step = block->n_vectors * z->chunk * REAL_LANES, parts = 1 + z->is_complex;
    const int64_t by_state = block->n_vectors * z->states * parts * REAL_LANES;
    m->delta = scratch;
    m->input = m->delta + by_step;
    m->y = m->input + by_step;
    m->A = m->y + by_step;
    m->rates = m->A + by_state;
    m->h = m->rates + 2 * by_state;
    m->B = m->h + by_state;
    m->C = m->B + z->chunk * WIDTH * parts * REAL_LANES; /* one vector of channels at a time, where per lane */
}

/* Delta, and Delta u or u, of the chunk; y starts at zero. */
static void LOCAL(forward_stage)(const LOCAL(forward_call) * call, const scan_block *block, int64_t row, int64_t start,
                                 int64_t steps, LOCAL(forward_memory) * m) {
    const scan_sizes *z = call->sizes;
    for (int64_t t = 0; t < steps; t++) {
        const int64_t u_at = row * z->u_row + (start + t) * z->u_time;
        const int64_t dt_at = row * z->dt_row + (start + t) * z->dt_time;
        for (int64_t v = 0; v < block->n_vectors; v++) {
            const scan_vector *vector = &block->vectors[v];
            const int64_t to = SCRATCH(v, t, z->chunk);
            vreal delta = LOCAL(stage_load)(call->dt, dt_at + vector->channel, vector->count, z->dt_bf16);
            vreal u = LOCAL(stage_load)(call->u, u_at + vector->channel, vector->count, z->u_bf16);
            delta += LOCAL(stage_channels)(call->dt_bias, vector);
            if (z->softplus) delta = v_softplus(delta);
            v_store(m->delta + to, delta);
            v_store(m->input + to, z->exact ? u : delta * u);
            v_store(m->y + to, v_broadcast(0));
        }
    }
}

static void LOCAL(forward_finish)(const LOCAL(forward_call) * call, const scan_block *block, int64_t row,
                                  int64_t start, int64_t steps, const LOCAL(forward_memory) * m) {
    const scan_sizes *z = call->sizes;
    for (int64_t t = 0; t < steps; t++) {
        const int64_t u_at = row * z->u_row + (start + t) * z->u_time;
        const int64_t gate_at = row * z->gate_row + (start + t) * z->gate_time;
        for (int64_t v = 0; v < block->n_vectors; v++) {
            const scan_vector *vector = &block->vectors[v];
            vreal y = v_load(m->y + SCRATCH(v, t, z->chunk));
            if (z->is_complex) y *= 2;
            if (call->D)
                y += LOCAL(stage_channels)(call->D, vector) *
                     LOCAL(stage_load)(call->u, u_at + vector->channel, vector->count, z->u_bf16);
            if (call->gate) {
                vreal gate = LOCAL(stage_load)(call->gate, gate_at + vector->channel, vector->count, z->gate_bf16);
                y *= gate * v_sigmoid(gate);
            }
            LOCAL(stage_store)(call->y, (row * z->length + start + t) * z->width + vector->channel, y, vector->count,
                               z->u_bf16);
        }
    }
}

/* What this chunk will write, and what the next one reads. */
static void LOCAL(forward_ahead)(const LOCAL(forward_call) * call, const scan_block *block, int64_t row, int64_t start,
                                 int64_t steps, ahead *a) {
    const scan_sizes *z = call->sizes;
    const int64_t next = start + steps, left = z->length - next, rows = left < z->chunk ? left : z->chunk;
    *a = (ahead){0};
    LOCAL(stage_ahead)(a, block, call->y, z->u_bf16, (row * z->length + start) * z->width, z->width, steps);
    LOCAL(stage_ahead)(a, block, call->u, z->u_bf16, row * z->u_row + next * z->u_time, z->u_time, rows);
    LOCAL(stage_ahead)(a, block, call->dt, z->dt_bf16, row * z->dt_row + next * z->dt_time, z->dt_time, rows);
    LOCAL(stage_ahead)(a, block, call->gate, z->gate_bf16, row * z->gate_row + next * z->gate_time, z->gate_time, rows);
    ahead_share(a, block->n_vectors * ((z->states + WIDTH - 1) / WIDTH) * steps);
}

/* All states of one vector of channels over the chunk. */
static void LOCAL(forward_vector)(const LOCAL(forward_call) * call, const scan_block *block, int64_t v, int64_t row,
                                  int64_t start, const unsigned char *resets, int64_t steps,
                                  const LOCAL(forward_memory) * m, ahead *a) {
    const scan_sizes *z = call->sizes;
    const int64_t parts = 1 + z->is_complex, group = block->per_lane ? 0 : block->vectors[v].group;
    const int64_t by_time = SCRATCH(v, 0, z->chunk);
    for (int64_t n = 0, width; n < z->states; n += width) {
        width = LOCAL(forward_width)(z, z->states - n);
        const int64_t b_at = (((row * z->length + start) * z->groups + group) * z->states + n) * parts;
        const int64_t by_state = SCRATCH(v, n, z->states) * parts;
        LOCAL(forward_part) part = {steps, resets, m->delta + by_time, m->input + by_time, m->y + by_time,
                                    m->A + by_state, m->rates + 2 * by_state, m->h + by_state, call->B + b_at,
                                    call->C + b_at, z->groups * z->states * parts, a};
        if (block->per_lane) {
            LOCAL(stage_lanes)(z, &block->vectors[v], part.B, steps, width, m->B);
            LOCAL(stage_lanes)(z, &block->vectors[v], part.C, steps, width, m->C);
            part.B = m->B;
            part.C = m->C;
            part.b_step = width * parts * REAL_LANES;
        }
        LOCAL(forward_dispatch)(&part, (int)width, z->is_complex, z->exact, block->per_lane);
    }
}

/* The states at the start of a chunk, kept for the backward pass as ([2,] states, width). */
static void LOCAL(keep_states)(const scan_sizes *z, const scan_block *block, const real *from, real *kept) {
    const int64_t parts = 1 + z->is_complex;
    for (int64_t v = 0; v < block->n_vectors; v++) {
        const scan_vector *vector = &block->vectors[v];
        for (int64_t part = 0; part < parts; part++)
            for (int64_t n = 0; n < z->states; n++)
                LOCAL(stage_store)(kept, (part * z->states + n) * z->width + vector->channel,
                                   v_load(from + SCRATCH(v, n * parts + part, z->states * parts)), vector->count, 0);
    }
}

static void LOCAL(forward_item)(void *context, int64_t item, int64_t thread) {
    const LOCAL(forward_call) *call = context;
    const scan_sizes *z = call->sizes;
    const int64_t n_blocks = scan_blocks(z), row = item / n_blocks, parts = 1 + z->is_complex;
    const int64_t chunks = (z->length + z->chunk - 1) / z->chunk, row_states = z->width * z->states * parts;
    scan_block block;
    LOCAL(forward_memory) m;
    scan_make_block(z, item % n_blocks, REAL_LANES, &block);
    LOCAL(forward_carve)(z, &block, call->scratch + thread * z->scratch, &m);
    LOCAL(stage_states)(z, &block, call->A, m.A);
    LOCAL(stage_rates)(z, &block, m.A, m.rates);
    LOCAL(stage_states)(z, &block, call->h0 + row * row_states, m.h);
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t start = c * z->chunk, steps = z->length - start < z->chunk ? z->length - start : z->chunk;
        const int64_t *segments = call->segments ? call->segments + row * z->length : NULL;
        const unsigned char *resets = LOCAL(stage_resets)(segments, start, steps, m.resets);
        if (call->kept) LOCAL(keep_states)(z, &block, m.h, call->kept + (row * chunks + c) * row_states);
        LOCAL(forward_stage)(call, &block, row, start, steps, &m);
        ahead a;
        LOCAL(forward_ahead)(call, &block, row, start, steps, &a);
        for (int64_t v = 0; v < block.n_vectors; v++)
            LOCAL(forward_vector)(call, &block, v, row, start, resets, steps, &m, &a);
        LOCAL(forward_finish)(call, &block, row, start, steps, &m);
    }
    LOCAL(unstage_states)(z, &block, m.h, call->state + row * row_states);
}

void EXPORT(selective_scan_forward)(const void *u, const void *dt, const real *A, const real *B, const real *C,
                                    const real *h0, const real *D, const void *gate, const real *dt_bias,
                                    const int64_t *segments, void *y, real *state, real *kept, real *scratch,
                                    const int64_t *sizes) {
    const scan_sizes *z = (const scan_sizes *)sizes;
    LOCAL(forward_call) call = {u, dt, gate, A, B, C, h0, D, dt_bias, segments, y, state, kept, scratch, z};
    parallel_for(z->rows * scan_blocks(z), z->n_threads, LOCAL(forward_item), &call);
}

#undef WIDTH
#undef VARIANT
#undef WIDTHS
#undef NARROW
