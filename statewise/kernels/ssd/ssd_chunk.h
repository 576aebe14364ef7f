/* What forward and backward share: the sizes, a chunk of time, its decays and the packing of its rows.
 *
 *     h_t = exp(log_a_t) h_{t-1} + dt_t x_t B_t^T        y_t = h_t C_t + D x_t
 *
 * x (b, l, h, p), dt and log_a (b, l, h), B and C (b, l, g, n), h0 (b, h, p, n), D (h); dt, D and segments (b, l)
 * may be NULL. Chunks have 64 steps, the last one what is left. Inside the kernel p and n are padded with zeros to
 * whole vectors, and rows of a chunk beyond its last step are zero.
 *
 * Segments never fall, so the steps s that step t sees form the range [first[t], t] inside the chunk, the carried state
 * reaches the first `carried` steps, and the steps from `last` on reach the end. Ranges are cut, not multiplied by
 * zero, so that a NaN does not cross them.
 */
#ifndef STATEWISE_SSD_CHUNK_H
#define STATEWISE_SSD_CHUNK_H

#define CHUNK 64
#define MULTIPLE (REAL_LANES > TILE_ROWS ? REAL_LANES : TILE_ROWS)

typedef struct {
    const real *x, *dt, *log_a, *B, *C, *h0, *D;
    const int64_t *segments;
    int64_t batch, length, n_heads, width, n_groups, n_states;
    int64_t x_row, x_step, B_row, B_step, C_row, C_step; /* strides along batch and time */
    int64_t n_blocks;                                    /* of the heads of a group */
} problem;

/* One item of parallel work: a row of the batch and some consecutive heads of one group. */
typedef struct {
    int64_t row, group, block, first_head, n_heads;
} item;

typedef struct {
    int64_t start, steps, carried, last;
    int64_t first[CHUNK];
} chunk;

/* A log_a below this counts as this: its exponential is 0 in float64 either way, and sums over a chunk stay small. */
#define LEAST_LOG_A -1000.0

/* cumulative = high + low: log2 of the decay from the segment's first step in the chunk, or the chunk's first. */
typedef struct {
    real high[CHUNK], low[CHUNK];
    real from_start[CHUNK]; /* decay of the carried state at t; FRESH where it does not reach */
    real to_end[CHUNK];     /* decay from s to the end of the chunk; 0 for what does not reach it */
    real across;            /* decay of the carried state over the chunk; FRESH where it does not pass */
} decays;

static int64_t round_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

/* memcpy, but of no numbers from nowhere too */
INLINE void copy_numbers(real *to, const real *from, int64_t count) {
    if (count > 0) memcpy(to, from, sizeof(real) * (size_t)count);
}

static item item_of(const problem *all, int64_t index) {
    int64_t per_group = all->n_heads / all->n_groups;
    item one;
    one.block = index % all->n_blocks;
    one.group = index / all->n_blocks % all->n_groups;
    one.row = index / all->n_blocks / all->n_groups;
    int64_t begin = per_group * one.block / all->n_blocks, end = per_group * (one.block + 1) / all->n_blocks;
    one.first_head = one.group * per_group + begin;
    one.n_heads = end - begin;
    return one;
}

static chunk chunk_at(const problem *all, int64_t row, int64_t start) {
    chunk part;
    int64_t left = all->length - start;
    part.start = start;
    part.steps = part.carried = left < CHUNK ? left : CHUNK;
    part.last = 0;
    for (int64_t t = 0; t < CHUNK; t++) part.first[t] = 0;
    if (all->segments == NULL) return part;
    const int64_t *ids = all->segments + row * all->length + start;
    int64_t before = start ? ids[-1] : 0; /* what comes in from outside is segment 0 */
    part.carried = 0;
    for (int64_t t = 0; t < part.steps; t++) {
        if (t && ids[t] != ids[t - 1]) part.last = t;
        if (ids[t] == before && part.last == 0) part.carried = t + 1;
        part.first[t] = part.last;
    }
    for (int64_t t = part.steps; t < CHUNK; t++) part.first[t] = part.last;
    return part;
}

/* Of x, or what is laid out as it is, the rows that the block takes after those of a head: its next head's, or its
 * first one's in the chunk that begins at `next`. `at` is where the row of the batch begins, `stride` the numbers
 * between steps. */
static void ahead_of_head(const problem *all, const item *one, int64_t head, const chunk *part, int64_t next,
                          const real *from, int64_t at, int64_t stride, ahead *a) {
    const int is_last = head + 1 == one->first_head + one->n_heads;
    const int64_t start = is_last ? next : part->start, left = all->length - start, size = sizeof(real);
    const int64_t first = is_last ? one->first_head : head + 1, rows = left < CHUNK ? left : CHUNK;
    ahead_add(a, from, (at + start * stride + first * all->width) * size, stride * size, all->width * size,
              start < 0 ? 0 : rows);
}

/* Sums in float64 and what their roundings lost, kept as two numbers: the difference of two sums is then right to the
 * precision of the difference, so that a mild decay after a strong one is as exact as it would be alone. */
static void set_decays(const problem *all, int64_t row, int64_t head, const chunk *part, decays *of) {
    const real *log_a = all->log_a + (row * all->length + part->start) * all->n_heads + head;
    double sum = 0, lost = 0;
    for (int64_t t = 0; t < CHUNK; t++) {
        if (t < part->steps) {
            double now = (double)log_a[t * all->n_heads];
            double term = LOG2_E * (now < LEAST_LOG_A ? LEAST_LOG_A : now); /* NaN stays */
            if (t == part->first[t]) sum = lost = 0;
            double next = sum + term, added = next - sum;
            lost += (sum - (next - added)) + (term - added);
            sum = next;
        }
        of->high[t] = (real)sum;
        of->low[t] = (real)((sum - (double)of->high[t]) + lost);
    }
    vreal high = v_broadcast(of->high[CHUNK - 1]), low = v_broadcast(of->low[CHUNK - 1]);
    for (int64_t t = 0; t < CHUNK; t += REAL_LANES) {
        vreal high_t = v_load(of->high + t), low_t = v_load(of->low + t);
        v_store(of->from_start + t, v_exp2_difference(high_t, v_broadcast(0), low_t));
        v_store(of->to_end + t, v_exp2_difference(high, high_t, low - low_t));
    }
    of->across = part->carried == part->steps ? of->from_start[part->steps - 1] : FRESH;
    for (int64_t t = part->carried; t < CHUNK; t++) of->from_start[t] = FRESH;
    for (int64_t t = 0; t < part->last; t++) of->to_end[t] = 0;
    for (int64_t t = part->steps; t < CHUNK; t++) of->to_end[t] = 0;
}

static const real STEPS[CHUNK] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Which of the steps s .. s + REAL_LANES step t sees. */
INLINE vmask seen_from(const chunk *part, int64_t t, int64_t s) {
    return (v_load(STEPS + s) >= (real)part->first[t]) & (v_load(STEPS + s) <= (real)t);
}

/* The decays from steps s .. s + REAL_LANES to step t, zero where t does not see them. */
INLINE vreal decay_between(const decays *of, const chunk *part, int64_t t, int64_t s) {
    vreal high = v_broadcast(of->high[t]), high_s = v_load(of->high + s), low = of->low[t] - v_load(of->low + s);
    if (s >= part->first[t] && s + REAL_LANES - 1 <= t) return v_exp2_difference(high, high_s, low);
    vmask seen = seen_from(part, t, s);
    /* outside, the difference may be large: its exponential is not taken */
    vreal among = v_exp2_difference(high, v_select(seen, high_s, high), v_select(seen, low, v_broadcast(0)));
    return v_select(seen, among, v_broadcast(0));
}

/* Rows of numbers, `steps` of them `stride` apart, times scale[t] (NULL: 1) -> CHUNK x padded rows, zeros around.
 * scale_stride is that of scale. Returns 0, or NaN if a number is not finite. */
static real pack(int64_t steps, int64_t width, const real *from, int64_t stride, const real *scale,
                 int64_t scale_stride, real *to, int64_t padded) {
    vreal zeros = v_broadcast(0);
    for (int64_t t = 0; t < CHUNK; t++) {
        real *row = to + t * padded;
        if (t >= steps) {
            memset(row, 0, sizeof(real) * (size_t)padded);
            continue;
        }
        real s = scale ? scale[t * scale_stride] : 1;
        int64_t j = 0;
        for (; j + REAL_LANES <= width; j += REAL_LANES) {
            vreal v = s * v_load(from + t * stride + j);
            zeros += v * 0;
            v_store(row + j, v);
        }
        if (j < width) {
            vreal v = s * v_load_some(from + t * stride + j, width - j);
            zeros += v * 0;
            v_store(row + j, v);
            j += REAL_LANES;
        }
        for (; j < padded; j += REAL_LANES) v_store(row + j, v_broadcast(0));
    }
    return v_sum(zeros);
}

/* to[t] = scale[t] from[t] for t in [begin, end) of packed rows, 0 elsewhere */
static void scale_rows(int64_t begin, int64_t end, const real *scale, const real *from, real *to, int64_t padded) {
    memset(to, 0, sizeof(real) * (size_t)(begin * padded));
    for (int64_t t = begin; t < end; t++)
        for (int64_t j = 0; j < padded; j += REAL_LANES)
            v_store(to + t * padded + j, scale[t] * v_load(from + t * padded + j));
    memset(to + end * padded, 0, sizeof(real) * (size_t)((CHUNK - end) * padded));
}

/* scores[t, s] = C_t . B_s for s up to t (and some beyond), from C (CHUNK, n) and B^T (n, CHUNK) */
static void set_scores(int64_t steps, int64_t n, const real *C, const real *B_turned, real *scores) {
    for (int64_t t = 0; t < steps; t += TILE_ROWS)
        multiply(TILE_ROWS, (t + TILE_ROWS - 1) / REAL_LANES + 1, n, (factor){C + t * n, n, 1}, B_turned, CHUNK,
                 (scales){&FRESH, 0}, scores + t * CHUNK, CHUNK);
}

#endif
