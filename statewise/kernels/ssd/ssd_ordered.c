/* SSD step by step over any length, and its adjoint: a step depends on nothing but the state before it and its inputs.
 *
 *     h = exp(log_a_t) h + (dt_t x_t) B_t        y_t = h . C_t + D x_t        h (n) for each row, head and number of x
 *
 * Where a sequence is cut, and what lies beside it, does not change a bit, nor of a gradient along time: the adjoint
 * walks back with g_t = dh + dy_t C_t, dh = a_t g_t, and computes the states of a block of steps again, from one kept
 * at its start, by the same operations. Sums over the numbers of a head, and over heads, have one order; heads are
 * added in blocks of HEADS. Which product and which sum become one operation is written here, by `v_fused`: the compiler
 * is left none to choose, who may choose otherwise for an iteration that it takes out of a loop.
 *
 * All tensors contiguous, as in ssd_chunk.h. An item is a row of the batch and a head, or in the adjoint a block of heads
 * of a group. Steps are taken STEPS at a time, for B and C to be in the first cache for all of a head's numbers.
 */
#define REAL_BITS 32
#include "real.h"

#include "parallel.h"

#define STEPS 32
#define HEADS 8
#define MOST (128 / REAL_LANES) /* vectors of a state at most; with AVX-512 they stay in registers */

typedef struct {
    const real *x, *dt, *log_a, *B, *C, *h0, *D;
    const int64_t *segments;
    const real *dy, *d_state;
    real *y, *state, *dx, *d_dt, *d_log_a, *dB, *dC, *dh0, *dD, *scratch;
    int64_t batch, length, heads, width, groups, states, vectors, n_blocks, scratch_size;
} ordered;

/* Of STEPS steps of one head: B and C filled up to whole vectors, a, and which begin a segment. */
typedef struct {
    real *B, *C;
    real a[STEPS], dt[STEPS];
    int resets[STEPS];
    int64_t first, count;
} steps;

INLINE vreal next_state(real a, vreal before, real value, vreal B) { return v_fused(v_broadcast(a), before, value * B); }

static void stage(const ordered *o, int64_t row, int64_t head, int64_t first, steps *s) {
    int64_t size = o->vectors * REAL_LANES, group = head / (o->heads / o->groups);
    s->first = first;
    s->count = o->length - first < STEPS ? o->length - first : STEPS;
    for (int64_t t = 0; t < s->count; t++) {
        int64_t now = row * o->length + first + t, from = (now * o->groups + group) * o->states;
        for (int64_t j = 0; j < size; j += REAL_LANES) {
            int64_t left = o->states - j;
            v_store(s->B + t * size + j, left >= REAL_LANES ? v_load(o->B + from + j) : v_load_some(o->B + from + j, left));
            v_store(s->C + t * size + j, left >= REAL_LANES ? v_load(o->C + from + j) : v_load_some(o->C + from + j, left));
        }
        s->a[t] = (real)exp((double)o->log_a[now * o->heads + head]);
        s->dt[t] = o->dt ? o->dt[now * o->heads + head] : 1;
        int64_t before = first + t && o->segments ? o->segments[now - 1] : 0;
        s->resets[t] = o->segments && o->segments[now] != before;
    }
}

/* One number of x over the steps: h (vectors) is carried; y may be NULL, and so may `states`, where each h goes */
INLINE void walk(const int vectors, const steps *s, const real *x, int64_t x_step, real D, int skips, real *carried, real *y,
                 real *states) {
    vreal h[MOST];
    for (int j = 0; j < vectors; j++) h[j] = v_load(carried + j * REAL_LANES);
    for (int64_t t = 0; t < s->count; t++) {
        const real *B = s->B + t * vectors * REAL_LANES, *C = s->C + t * vectors * REAL_LANES;
        real value = s->dt[t] * x[t * x_step];
        vreal sum = {0};
        if (s->resets[t])
            for (int j = 0; j < vectors; j++) h[j] = (vreal){0};
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            h[j] = next_state(s->a[t], h[j], value, v_load(B + j * REAL_LANES));
            if (states) v_store(states + (t * vectors + j) * REAL_LANES, h[j]);
            if (y) sum = v_fused(h[j], v_load(C + j * REAL_LANES), sum);
        }
        if (y) y[t * x_step] = skips ? fused_one(D, x[t * x_step], v_sum(sum)) : v_sum(sum);
    }
    for (int j = 0; j < vectors; j++) v_store(carried + j * REAL_LANES, h[j]);
}

/* The same back: H holds the states, dh (vectors) is carried; what is added up over the numbers of x goes on. */
INLINE void walk_back(const int vectors, const steps *s, const real *x, const real *dy, int64_t x_step, real D, const real *begin,
                      const real *H, real *carried, real *dx, real *d_dt, real *da, real *dB, real *dC, real *dD) {
    vreal dh[MOST];
    for (int j = 0; j < vectors; j++) dh[j] = v_load(carried + j * REAL_LANES);
    for (int64_t t = s->count - 1; t >= 0; t--) {
        const real *B = s->B + t * vectors * REAL_LANES, *C = s->C + t * vectors * REAL_LANES;
        const real *now = H + t * vectors * REAL_LANES, *before = t ? now - vectors * REAL_LANES : begin;
        real x_t = x[t * x_step], slope = dy[t * x_step], value = s->dt[t] * x_t, a = s->a[t];
        vreal d_value = {0}, d_a = {0};
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            int64_t at = (t * vectors + j) * REAL_LANES;
            vreal g = v_fused(v_broadcast(slope), v_load(C + j * REAL_LANES), dh[j]);
            v_store(dC + at, v_fused(v_broadcast(slope), v_load(now + j * REAL_LANES), v_load(dC + at)));
            v_store(dB + at, v_fused(v_broadcast(value), g, v_load(dB + at)));
            d_value = v_fused(g, v_load(B + j * REAL_LANES), d_value);
            d_a = v_fused(g, v_load(before + j * REAL_LANES), d_a);
            dh[j] = a * g;
        }
        if (s->resets[t])
            for (int j = 0; j < vectors; j++) dh[j] = (vreal){0};
        else
            da[t] += v_sum(d_a);
        real slope_of_value = v_sum(d_value);
        dx[t * x_step] = fused_one(D, slope, s->dt[t] * slope_of_value);
        d_dt[t] = fused_one(x_t, slope_of_value, d_dt[t]);
        *dD = fused_one(slope, x_t, *dD);
    }
    for (int j = 0; j < vectors; j++) v_store(carried + j * REAL_LANES, dh[j]);
}

/* with the usual numbers of vectors as constants */
#define EACH_COUNT(CALL)            \
    switch (o->vectors) {           \
        case 1: CALL(1); break;     \
        case 2: CALL(2); break;     \
        case 4: CALL(4); break;     \
        case 8: CALL(8); break;     \
        default: CALL((int)o->vectors); \
    }

/* A state of `from` into whole vectors */
static void widen_state(const ordered *o, const real *from, real *to) {
    for (int64_t i = 0; i < o->width; i++)
        for (int64_t j = 0; j < o->vectors * REAL_LANES; j++)
            to[i * o->vectors * REAL_LANES + j] = j < o->states ? from[i * o->states + j] : 0;
}

static void narrow_state(const ordered *o, const real *from, real *to) {
    for (int64_t i = 0; i < o->width; i++)
        memcpy(to + i * o->states, from + i * o->vectors * REAL_LANES, sizeof(real) * (size_t)o->states);
}

static void forward_item(void *context, int64_t item, int64_t thread) {
    const ordered *o = context;
    int64_t row = item / o->heads, head = item % o->heads, size = o->vectors * REAL_LANES, x_step = o->heads * o->width;
    real *scratch = o->scratch + thread * o->scratch_size, D = o->D ? o->D[head] : 0;
    steps s = {.B = scratch, .C = scratch + STEPS * size};
    real *h = scratch + 2 * STEPS * size;
    widen_state(o, o->h0 + item * o->width * o->states, h);
    for (int64_t first = 0; first < o->length; first += STEPS) {
        stage(o, row, head, first, &s);
        int64_t at = ((row * o->length + first) * o->heads + head) * o->width;
        for (int64_t i = 0; i < o->width; i++) {
#define CALL(n) \
    walk(n, &s, o->x + at + i, x_step, D, o->D != NULL, h + i * size, o->y + at + i, NULL)
            EACH_COUNT(CALL)
#undef CALL
        }
    }
    narrow_state(o, h, o->state + item * o->width * o->states);
}

/* Adds, or writes if these are the first, the sums of a block of steps */
static void leave(const ordered *o, const steps *s, int64_t place, const real *from, real *to) {
    for (int64_t t = 0; t < s->count; t++)
        memcpy(to + (place + t * o->groups) * o->states, from + t * o->vectors * REAL_LANES, sizeof(real) * (size_t)o->states);
}

static void take(const ordered *o, const steps *s, int64_t place, int is_first, const real *from, real *to) {
    memset(to, 0, sizeof(real) * (size_t)(STEPS * o->vectors * REAL_LANES));
    for (int64_t t = 0; t < s->count && !is_first; t++)
        memcpy(to + t * o->vectors * REAL_LANES, from + (place + t * o->groups) * o->states, sizeof(real) * (size_t)o->states);
}

static void head_back(const ordered *o, int64_t row, int64_t head, int64_t block, int is_first, real *scratch) {
    int64_t size = o->vectors * REAL_LANES, x_step = o->heads * o->width, chunks = (o->length + STEPS - 1) / STEPS;
    int64_t group = head / (o->heads / o->groups), state = (row * o->heads + head) * o->width * o->states;
    real D = o->D ? o->D[head] : 0, dD = 0;
    real *B = scratch, *C = B + STEPS * size, *H = C + STEPS * size, *dB = H + STEPS * size, *dC = dB + STEPS * size;
    real *dh = dC + STEPS * size, *h = dh + o->width * size, *kept = h + o->width * size;
    steps s = {.B = B, .C = C};
    widen_state(o, o->h0 + state, h);
    for (int64_t c = 0; c < chunks; c++) {
        memcpy(kept + c * o->width * size, h, sizeof(real) * (size_t)(o->width * size));
        if (c == chunks - 1) break;
        stage(o, row, head, c * STEPS, &s);
        int64_t at = ((row * o->length + s.first) * o->heads + head) * o->width;
        for (int64_t i = 0; i < o->width; i++) {
#define CALL(n) \
    walk(n, &s, o->x + at + i, x_step, 0, 0, h + i * size, NULL, NULL)
            EACH_COUNT(CALL)
#undef CALL
        }
    }
    widen_state(o, o->d_state + state, dh);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        stage(o, row, head, c * STEPS, &s);
        int64_t now = row * o->length + s.first, at = (now * o->heads + head) * o->width;
        int64_t place = block * o->batch * o->length * o->groups + now * o->groups + group;
        real d_dt[STEPS] = {0}, da[STEPS] = {0};
        take(o, &s, place, is_first, o->dB, dB);
        take(o, &s, place, is_first, o->dC, dC);
        for (int64_t i = 0; i < o->width; i++) {
            real *begin = kept + (c * o->width + i) * size;
            memcpy(h, begin, sizeof(real) * (size_t)size);
#define CALL(n)                                                                                                            \
    walk(n, &s, o->x + at + i, x_step, 0, 0, h, NULL, H);                                                                  \
    walk_back(n, &s, o->x + at + i, o->dy + at + i, x_step, D, begin, H, dh + i * size, o->dx + at + i, d_dt, da, dB, dC, &dD)
            EACH_COUNT(CALL)
#undef CALL
        }
        leave(o, &s, place, dB, o->dB);
        leave(o, &s, place, dC, o->dC);
        for (int64_t t = 0; t < s.count; t++) {
            o->d_log_a[(now + t) * o->heads + head] = da[t] * s.a[t];
            if (o->d_dt) o->d_dt[(now + t) * o->heads + head] = d_dt[t];
        }
    }
    narrow_state(o, dh, o->dh0 + state);
    if (o->dD) o->dD[row * o->heads + head] = dD;
}

static void backward_item(void *context, int64_t item, int64_t thread) {
    const ordered *o = context;
    int64_t block = item % o->n_blocks, pair = item / o->n_blocks, group = pair % o->groups, row = pair / o->groups;
    int64_t each = o->heads / o->groups, end = (block + 1) * HEADS < each ? (block + 1) * HEADS : each;
    for (int64_t h = block * HEADS; h < end; h++)
        head_back(o, row, group * each + h, block, h == block * HEADS, o->scratch + thread * o->scratch_size);
}

/* Sizes: (most numbers of a state, heads of a block, scratch of a thread forward, and backward without the kept states, and
 * of these for each block of steps), of a width and a number of states */
void EXPORT(ssd_ordered_sizes)(int64_t *sizes, int64_t width, int64_t states) {
    int64_t size = (states + REAL_LANES - 1) / REAL_LANES * REAL_LANES;
    sizes[0] = MOST * REAL_LANES;
    sizes[1] = HEADS;
    sizes[2] = 2 * STEPS * size + width * size;
    sizes[3] = 5 * STEPS * size + 2 * width * size;
    sizes[4] = width * size;
    sizes[5] = STEPS;
}

void EXPORT(ssd_ordered)(const real *x, const real *dt, const real *log_a, const real *B, const real *C, const real *h0,
                         const real *D, const int64_t *segments, real *y, real *state, real *scratch, int64_t batch,
                         int64_t length, int64_t heads, int64_t width, int64_t groups, int64_t states, int64_t scratch_size,
                         int64_t n_threads) {
    ordered o = {.x = x, .dt = dt, .log_a = log_a, .B = B, .C = C, .h0 = h0, .D = D, .segments = segments, .y = y,
                 .state = state, .scratch = scratch, .batch = batch, .length = length, .heads = heads, .width = width,
                 .groups = groups, .states = states, .vectors = (states + REAL_LANES - 1) / REAL_LANES,
                 .scratch_size = scratch_size};
    parallel_for(batch * heads, n_threads, forward_item, &o);
}

/* dB and dC: (blocks, batch, length, groups, states); dD: (batch, heads) */
void EXPORT(ssd_ordered_backward)(const real *dy, const real *d_state, const real *x, const real *dt, const real *log_a,
                                  const real *B, const real *C, const real *h0, const real *D, const int64_t *segments,
                                  real *dx, real *d_dt, real *d_log_a, real *dB, real *dC, real *dh0, real *dD, real *scratch,
                                  int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t groups, int64_t states,
                                  int64_t n_blocks, int64_t scratch_size, int64_t n_threads) {
    ordered o = {.x = x, .dt = dt, .log_a = log_a, .B = B, .C = C, .h0 = h0, .D = D, .segments = segments, .dy = dy,
                 .d_state = d_state, .dx = dx, .d_dt = d_dt, .d_log_a = d_log_a, .dB = dB, .dC = dC, .dh0 = dh0, .dD = dD,
                 .scratch = scratch, .batch = batch, .length = length, .heads = heads, .width = width, .groups = groups,
                 .states = states, .vectors = (states + REAL_LANES - 1) / REAL_LANES, .n_blocks = n_blocks,
                 .scratch_size = scratch_size};
    parallel_for(batch * groups * n_blocks, n_threads, backward_item, &o);
}
