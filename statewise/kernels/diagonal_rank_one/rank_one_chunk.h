/* A transition that is diagonal plus rank one, by chunks: what forward and backward share.
 *
 *     S_t = S_{t-1} (diag(a_t) - read_t erase_t^T) + v_t k_t^T        y_t = S_t q_t        a_t = exp(log_a_t)
 *
 * v and y (b, l, h, p); q, k, read, erase (b, l, h, n); log_a (b, l, h, n) or (b, l, h, 1); S0 (b, h, p, n);
 * beta (b, l, h). erase may be NULL, and is then k. With a beta read is NULL as well: the delta rule, read = a k, and
 * beta k for k. Inside, S is transposed, (n, p), n and p are padded with zeros to whole vectors, and `read` has the
 * opposite sign, so that everything is added.
 *
 * With d_t = v_t - S_{t-1} read_t (without v_t where there is an erase), and P(s, t] the decays of s + 1 .. t,
 *     d_t = v_t + S_0 (P(0, t-1] read_t) + sum over s < t of A_ts d_s        A_ts = read_t P(s, t-1] key_s
 *     y_t = S_0 (P(0, t] q_t) + sum over s <= t of Q_ts d_s                  Q_ts = q_t P(s, t] key_s
 * Pairs of steps in one block of 16 are taken one by one. All others cross one of the cuts at 16, 32 and 48: a row of
 * A and Q is then a product of vectors decayed from and to the cut. Decays are products of a_t, and never divided.
 */
#ifndef STATEWISE_RANK_ONE_CHUNK_H
#define STATEWISE_RANK_ONE_CHUNK_H

#define CHUNK 64
#define BLOCK 16
#define MULTIPLE (REAL_LANES > TILE_ROWS ? REAL_LANES : TILE_ROWS)

typedef struct {
    const real *v, *q, *k, *log_a, *S0, *read, *erase, *beta;
    int64_t batch, length, n_heads, width, n_keys, n_decays;
} problem;

/* A chunk of one head: rows of n numbers. `rows` is the number of steps, rounded up to whole blocks. */
typedef struct {
    int64_t n, p, rows; /* n and p padded */
    real *read, *q, *a, *keys[2]; /* keys[0] is what d is written along; keys[1] what v is, or k without beta */
    real *A[2], *Q[2], *to_end[2];
    real *read_late, *q_late, *early, *turned; /* decayed from or to a cut; `turned` is early, transposed */
    real *read_start, *q_start;                /* decayed from the chunk's start */
    real *across, *decay;                      /* over the chunk; the running decay of a loop */
    real *d, *values, *y;
} chunk;

static int64_t round_up(int64_t number, int64_t multiple) { return (number + multiple - 1) / multiple * multiple; }

typedef struct {
    real **where;
    int64_t size;
} buffer;

static int64_t lay(const buffer *buffers, size_t count, real *memory, int64_t at) {
    for (size_t i = 0; i < count; i++) {
        *buffers[i].where = memory ? memory + at : NULL;
        at += round_up(buffers[i].size, 64);
    }
    return at;
}

/* Lays the buffers of a chunk into memory, or only measures them where memory is NULL. */
static int64_t lay_chunk(const problem *all, real *memory, chunk *s) {
    int64_t n = s->n = round_up(all->n_keys, MULTIPLE), p = s->p = round_up(all->width, MULTIPLE);
    int64_t keys = CHUNK * n, square = CHUNK * CHUNK, values = CHUNK * p;
    buffer buffers[] = {{&s->read, keys},      {&s->q, keys},           {&s->a, keys},         {&s->keys[0], keys},
                        {&s->keys[1], keys},   {&s->A[0], square},      {&s->A[1], square},    {&s->Q[0], square},
                        {&s->Q[1], square},    {&s->to_end[0], keys},   {&s->to_end[1], keys}, {&s->read_late, keys},
                        {&s->q_late, keys},    {&s->early, keys},       {&s->turned, keys},    {&s->read_start, keys},
                        {&s->q_start, keys},   {&s->across, n},         {&s->decay, n},        {&s->d, values},
                        {&s->values, values},  {&s->y, values}};
    return lay(buffers, sizeof buffers / sizeof *buffers, memory, 0);
}

/* A decay below the smallest normal number is zero: sums with such numbers are slow. */
INLINE vreal normal(vreal x) {
    const real least = REAL_BITS == 32 ? (real)1.17549435e-38 : (real)2.2250738585072014e-308;
    return v_select((x < least) & (x > -least), v_broadcast(0), x);
}

/* The rows of one head lie a page apart or more, which no processor foresees: those of the next chunk are asked for
 * now. Asking beyond the end of memory does no harm. */
INLINE void foresee(const real *from, int64_t stride, int64_t width) {
    const char *next = (const char *)((uintptr_t)from + sizeof(real) * (uintptr_t)(CHUNK * stride));
    for (int64_t at = 0; at < (int64_t)sizeof(real) * width; at += 64) __builtin_prefetch(next + at, 0, 2);
}

/* `steps` rows of `width` numbers, `stride` apart, times a sign -> rows of padded ones, zeros around */
static void pack(int64_t steps, int64_t rows, int64_t width, const real *from, int64_t stride, real sign, real *to,
                 int64_t padded) {
    for (int64_t t = 0; t < steps; t++) {
        foresee(from + t * stride, stride, width);
        for (int64_t j = 0; j < padded; j += REAL_LANES) {
            const real *at = from + t * stride + j;
            v_store(to + t * padded + j, sign * (j + REAL_LANES <= width ? v_load(at) : v_load_some(at, width - j)));
        }
    }
    if (rows > steps) memset(to + steps * padded, 0, sizeof(real) * (size_t)((rows - steps) * padded));
}

static void pack_decays(const problem *all, int64_t first, int64_t steps, chunk *s) {
    int64_t n = s->n, d = all->n_decays;
    for (int64_t t = 0; t < s->rows; t++) {
        const real *log_a = all->log_a + (first + t * all->n_heads) * d;
        if (t < steps) foresee(log_a, all->n_heads * d, d);
        vreal a = v_broadcast(t < steps && d == 1 ? (real)exp((double)log_a[0]) : 1);
        for (int64_t j = 0; j < n; j += REAL_LANES) {
            if (t < steps && d > 1)
                a = v_exp(j + REAL_LANES <= d ? v_load(log_a + j) : v_load_some(log_a + j, d - j));
            v_store(s->a + t * n + j, normal(a));
        }
    }
}

/* read and the key of the delta rule, from k in keys[1] */
static void set_delta(const problem *all, int64_t first, int64_t steps, chunk *s) {
    int64_t n = s->n;
    for (int64_t t = 0; t < s->rows; t++) {
        real beta = t < steps ? all->beta[first + t * all->n_heads] : 0;
        for (int64_t j = t * n; j < t * n + n; j += REAL_LANES) {
            vreal k = v_load(s->keys[1] + j);
            v_store(s->read + j, -v_load(s->a + j) * k);
            v_store(s->keys[0] + j, beta * k);
        }
    }
}

/* read and q of the steps begin .. end, decayed from `begin` on; leaves the decay of all of them in s->decay */
static void decay_late(chunk *s, int64_t begin, int64_t end, real *read, real *q) {
    int64_t n = s->n;
    for (int64_t j = 0; j < n; j++) s->decay[j] = 1;
    for (int64_t t = begin; t < end; t++)
        for (int64_t j = 0; j < n; j += REAL_LANES) {
            vreal decay = v_load(s->decay + j);
            v_store(read + t * n + j, decay * v_load(s->read + t * n + j));
            decay = normal(decay * v_load(s->a + t * n + j));
            v_store(q + t * n + j, decay * v_load(s->q + t * n + j));
            v_store(s->decay + j, decay);
        }
}

/* keys of the steps begin .. end, decayed to `end` */
static void decay_early(chunk *s, const real *keys, int64_t begin, int64_t end, real *early) {
    int64_t n = s->n;
    for (int64_t j = 0; j < n; j++) s->decay[j] = 1;
    for (int64_t t = end - 1; t >= begin; t--)
        for (int64_t j = 0; j < n; j += REAL_LANES) {
            vreal decay = v_load(s->decay + j);
            v_store(early + t * n + j, decay * v_load(keys + t * n + j));
            v_store(s->decay + j, normal(decay * v_load(s->a + t * n + j)));
        }
}

/* The pairs of steps within a block, one by one: s, and t behind it. */
static void set_block(chunk *s, int64_t begin, const real *keys, real *A, real *Q) {
    int64_t n = s->n;
    real *decayed = s->decay;
    for (int64_t from = begin; from < begin + BLOCK; from++) {
        memcpy(decayed, keys + from * n, sizeof(real) * (size_t)n);
        for (int64_t t = from; t < begin + BLOCK; t++) {
            vreal read = v_broadcast(0), query = v_broadcast(0);
            for (int64_t j = 0; j < n; j += REAL_LANES) {
                vreal key = v_load(decayed + j);
                if (t > from) {
                    read += key * v_load(s->read + t * n + j);
                    key = normal(key * v_load(s->a + t * n + j));
                    v_store(decayed + j, key);
                }
                query += key * v_load(s->q + t * n + j);
            }
            if (t > from) A[t * CHUNK + from] = v_sum(read);
            Q[t * CHUNK + from] = v_sum(query);
        }
    }
}

/* The pairs of a step in begin .. middle and one in middle .. end. */
static void set_cut(chunk *s, int64_t begin, int64_t middle, int64_t end, int64_t n_kinds) {
    int64_t n = s->n, vectors = (middle - begin) / REAL_LANES, below = middle * CHUNK + begin;
    decay_late(s, middle, end, s->read_late, s->q_late);
    for (int64_t i = 0; i < n_kinds; i++) {
        decay_early(s, s->keys[i], begin, middle, s->early);
        transpose(middle - begin, n, s->early + begin * n, n, s->turned, CHUNK);
        multiply(end - middle, vectors, n, (factor){s->read_late + middle * n, n, 1}, s->turned, CHUNK,
                 (scales){&FRESH, 0}, s->A[i] + below, CHUNK);
        multiply(end - middle, vectors, n, (factor){s->q_late + middle * n, n, 1}, s->turned, CHUNK,
                 (scales){&FRESH, 0}, s->Q[i] + below, CHUNK);
    }
}

/* The three cuts, as far as there are steps behind them. */
static const int64_t CUTS[3][3] = {{0, 16, 32}, {32, 48, 64}, {0, 32, 64}};

/* Everything of a chunk that does not depend on the state: its rows, A, Q, and what decays from and to its ends. */
static void prepare_chunk(const problem *all, int64_t row, int64_t head, int64_t start, chunk *s) {
    int64_t left = all->length - start, steps = left < CHUNK ? left : CHUNK, n = s->n, keys = all->n_keys;
    int64_t first = (row * all->length + start) * all->n_heads + head, stride = all->n_heads * keys;
    int64_t n_kinds = all->erase ? 2 : 1;
    s->rows = round_up(steps, BLOCK);
    pack_decays(all, first, steps, s);
    pack(steps, s->rows, keys, all->q + first * keys, stride, 1, s->q, n);
    pack(steps, s->rows, all->width, all->v + first * all->width, all->n_heads * all->width, 1, s->values, s->p);
    pack(steps, s->rows, keys, all->k + first * keys, stride, 1, s->keys[all->erase || all->beta ? 1 : 0], n);
    if (all->beta)
        set_delta(all, first, steps, s);
    else
        pack(steps, s->rows, keys, all->read + first * keys, stride, -1, s->read, n);
    if (all->erase) pack(steps, s->rows, keys, all->erase + first * keys, stride, 1, s->keys[0], n);
    for (int64_t i = 0; i < n_kinds; i++) {
        for (int64_t begin = 0; begin < s->rows; begin += BLOCK) set_block(s, begin, s->keys[i], s->A[i], s->Q[i]);
        decay_early(s, s->keys[i], 0, s->rows, s->to_end[i]);
    }
    for (int i = 0; i < 3; i++)
        if (CUTS[i][1] < s->rows)
            set_cut(s, CUTS[i][0], CUTS[i][1], CUTS[i][2] < s->rows ? CUTS[i][2] : s->rows, n_kinds);
    decay_late(s, 0, s->rows, s->read_start, s->q_start);
    memcpy(s->across, s->decay, sizeof(real) * (size_t)n);
}

/* out += M values, M (CHUNK, CHUNK) lower triangular; or with its transpose */
static void add_lower(const chunk *s, const real *M, const real *values, real *out) {
    for (int64_t t = 0; t < s->rows; t += TILE_ROWS)
        multiply(TILE_ROWS, s->p / REAL_LANES, t + TILE_ROWS, (factor){M + t * CHUNK, CHUNK, 1}, values, s->p,
                 (scales){&ONE, 0}, out + t * s->p, s->p);
}
static void add_lower_turned(const chunk *s, const real *M, const real *values, real *out) {
    for (int64_t t = 0; t < s->rows; t += TILE_ROWS)
        multiply(TILE_ROWS, s->p / REAL_LANES, s->rows - t, (factor){M + t * CHUNK + t, 1, CHUNK}, values + t * s->p,
                 s->p, (scales){&ONE, 0}, out + t * s->p, s->p);
}

INLINE void add_row(int64_t p, real weight, const real *from, real *to) {
    for (int64_t j = 0; j < p; j += REAL_LANES) v_store(to + j, v_load(to + j) + weight * v_load(from + j));
}

/* d for the state S (n, p) at the chunk's start, by substitution from the first row on */
static void solve(const problem *all, const real *S, chunk *s) {
    int64_t n = s->n, p = s->p, vectors = p / REAL_LANES;
    if (all->erase) {
        memset(s->d, 0, sizeof(real) * (size_t)(s->rows * p));
        add_lower(s, s->A[1], s->values, s->d);
    } else
        memcpy(s->d, s->values, sizeof(real) * (size_t)(s->rows * p));
    multiply(s->rows, vectors, n, (factor){s->read_start, n, 1}, S, p, (scales){&ONE, 0}, s->d, p);
    for (int64_t t = 0; t < s->rows; t += TILE_ROWS) {
        multiply(TILE_ROWS, vectors, t, (factor){s->A[0] + t * CHUNK, CHUNK, 1}, s->d, p, (scales){&ONE, 0},
                 s->d + t * p, p);
        for (int64_t i = t + 1; i < t + TILE_ROWS; i++)
            for (int64_t k = t; k < i; k++) add_row(p, s->A[0][i * CHUNK + k], s->d + k * p, s->d + i * p);
    }
}

/* S at the start of the next chunk, where d is known; `next` may be S */
static void next_state(const problem *all, const real *S, const chunk *s, real *next) {
    int64_t n = s->n, p = s->p, vectors = p / REAL_LANES;
    if (next != S) memcpy(next, S, sizeof(real) * (size_t)(n * p));
    multiply(n, vectors, s->rows, (factor){s->to_end[0], 1, n}, s->d, p, (scales){s->across, 1}, next, p);
    if (all->erase)
        multiply(n, vectors, s->rows, (factor){s->to_end[1], 1, n}, s->values, p, (scales){&ONE, 0}, next, p);
}

/* a state (width, n_keys) of the caller's -> (n, p), or back */
static void turn_state(const problem *all, const real *from, real *S, const chunk *s) {
    memset(S, 0, sizeof(real) * (size_t)(s->n * s->p));
    transpose(all->width, all->n_keys, from, all->n_keys, S, s->p);
}
static void turn_back(const problem *all, const real *S, real *to, const chunk *s) {
    transpose(all->n_keys, all->width, S, s->p, to, all->n_keys);
}

/* `steps` packed rows, times a sign -> where the caller has them */
static void unpack(int64_t steps, int64_t width, const real *from, int64_t padded, real sign, real *to,
                   int64_t stride) {
    for (int64_t t = 0; t < steps; t++)
        for (int64_t j = 0; j < width; j += REAL_LANES) {
            vreal x = sign * v_load(from + t * padded + j);
            if (j + REAL_LANES <= width)
                v_store(to + t * stride + j, x);
            else
                v_store_some(to + t * stride + j, x, width - j);
        }
}

#endif
