/* The adjoint of what a chunk is prepared from: from the gradients of A and Q, and of the rows decayed from and to the
 * chunk's ends, to those of read, q, the keys and log_a.
 *
 * log_a_t scales whatever crosses step t. Each pair of steps crosses one cut, or lies in one block, and the flow
 * between them is summed there: over the pairs behind a step in the late part, over those before it in the early one.
 * So nothing is subtracted, and where the decay is strong no noise is left.
 */
#ifndef STATEWISE_RANK_ONE_ADJOINT_H
#define STATEWISE_RANK_ONE_ADJOINT_H

typedef struct {
    chunk at;
    real *dy, *dd, *d_turned, *S_turned, *G_turned;   /* of values: (CHUNK, p), (p, CHUNK), (p, n) */
    real *dv;
    real *dA, *dQ;
    real *d_read_late, *d_q_late, *d_early; /* of decayed rows */
    real *d_read, *d_q, *d_keys[2], *d_log_a, *sum;
    real *G, *states; /* the gradient of the state after the chunk; the states at the starts of all chunks */
} adjoint;

/* The late rows' gradients d_read, d_q are those of `read` and `q`, decayed from `begin`. `sum` holds what flows over
 * all of them, and is spoilt. */
static void late_adjoint(adjoint *to, int64_t begin, int64_t end, const real *read, const real *q, const real *d_read,
                         const real *d_q) {
    chunk *s = &to->at;
    int64_t n = s->n;
    for (int64_t j = 0; j < n; j++) s->decay[j] = 1;
    for (int64_t t = begin; t < end; t++)
        for (int64_t j = t * n; j < t * n + n; j += REAL_LANES) {
            vreal decay = v_load(s->decay + j - t * n);
            v_store(to->d_read + j, v_load(to->d_read + j) + decay * v_load(d_read + j));
            decay = normal(decay * v_load(s->a + j));
            v_store(to->d_q + j, v_load(to->d_q + j) + decay * v_load(d_q + j));
            v_store(s->decay + j - t * n, decay);
        }
    for (int64_t t = end - 1; t >= begin; t--)
        for (int64_t j = t * n; j < t * n + n; j += REAL_LANES) {
            vreal sum = v_load(to->sum + j - t * n) + v_load(q + j) * v_load(d_q + j);
            v_store(to->d_log_a + j, v_load(to->d_log_a + j) + sum);
            v_store(to->sum + j - t * n, sum + v_load(read + j) * v_load(d_read + j));
        }
}

/* The same of keys that are decayed to `end`. */
static void early_adjoint(adjoint *to, int64_t begin, int64_t end, const real *keys, const real *gradient,
                          real *d_keys) {
    chunk *s = &to->at;
    int64_t n = s->n;
    for (int64_t j = 0; j < n; j++) s->decay[j] = 1, to->sum[j] = 0;
    for (int64_t t = end - 1; t >= begin; t--)
        for (int64_t j = t * n; j < t * n + n; j += REAL_LANES) {
            vreal decay = v_load(s->decay + j - t * n);
            v_store(d_keys + j, v_load(d_keys + j) + decay * v_load(gradient + j));
            v_store(s->decay + j - t * n, normal(decay * v_load(s->a + j)));
        }
    for (int64_t t = begin; t < end; t++)
        for (int64_t j = t * n; j < t * n + n; j += REAL_LANES) {
            vreal sum = v_load(to->sum + j - t * n);
            v_store(to->d_log_a + j, v_load(to->d_log_a + j) + sum);
            v_store(to->sum + j - t * n, sum + v_load(keys + j) * v_load(gradient + j));
        }
}

static void cut_adjoint(adjoint *to, int64_t begin, int64_t middle, int64_t end, const real *keys, real *d_keys) {
    chunk *s = &to->at;
    int64_t n = s->n, vectors = n / REAL_LANES, below = middle * CHUNK + begin, late = end - middle;
    decay_late(s, middle, end, s->read_late, s->q_late);
    decay_early(s, keys, begin, middle, s->early);
    const real *read = s->read_late + middle * n, *q = s->q_late + middle * n, *early = s->early + begin * n;
    multiply(late, vectors, middle - begin, (factor){to->dA + below, CHUNK, 1}, early, n, (scales){&FRESH, 0},
             to->d_read_late + middle * n, n);
    multiply(late, vectors, middle - begin, (factor){to->dQ + below, CHUNK, 1}, early, n, (scales){&FRESH, 0},
             to->d_q_late + middle * n, n);
    multiply(middle - begin, vectors, late, (factor){to->dA + below, 1, CHUNK}, read, n, (scales){&FRESH, 0},
             to->d_early + begin * n, n);
    multiply(middle - begin, vectors, late, (factor){to->dQ + below, 1, CHUNK}, q, n, (scales){&ONE, 0},
             to->d_early + begin * n, n);
    memset(to->sum, 0, sizeof(real) * (size_t)n);
    late_adjoint(to, middle, end, s->read_late, s->q_late, to->d_read_late, to->d_q_late);
    early_adjoint(to, begin, middle, s->early, to->d_early, d_keys);
}

/* The pairs within a block, one vector of channels after the other. */
static void block_adjoint(adjoint *to, int64_t begin, const real *keys, real *d_keys) {
    chunk *s = &to->at;
    int64_t n = s->n, end = begin + BLOCK;
    for (int64_t j = 0; j < n; j += REAL_LANES)
        for (int64_t from = begin; from < end; from++) {
            vreal flow_read[BLOCK], flow_q[BLOCK];
            vreal key = v_load(keys + from * n + j), decay = v_broadcast(1), sum = v_broadcast(0);
            real own = to->dQ[from * CHUNK + from];
            vreal d_key = own * v_load(s->q + from * n + j);
            v_store(to->d_q + from * n + j, v_load(to->d_q + from * n + j) + own * key);
            for (int64_t t = from + 1; t < end; t++) {
                int64_t at = t * n + j;
                real dA = to->dA[t * CHUNK + from], dQ = to->dQ[t * CHUNK + from];
                vreal read = dA * v_load(s->read + at), q = dQ * v_load(s->q + at);
                v_store(to->d_read + at, v_load(to->d_read + at) + dA * (decay * key));
                d_key += decay * read;
                flow_read[t - begin] = decay * read * key;
                decay = normal(decay * v_load(s->a + at));
                v_store(to->d_q + at, v_load(to->d_q + at) + dQ * (decay * key));
                d_key += decay * q;
                flow_q[t - begin] = decay * q * key;
            }
            v_store(d_keys + from * n + j, v_load(d_keys + from * n + j) + d_key);
            for (int64_t t = end - 1; t > from; t--) {
                sum += flow_q[t - begin];
                v_store(to->d_log_a + t * n + j, v_load(to->d_log_a + t * n + j) + sum);
                sum += flow_read[t - begin];
            }
        }
}

/* to[t, s] = from_t . values_s for s up to t (and some beyond), values turned (p, CHUNK) */
static void set_lower(const chunk *s, const real *from, const real *turned, real *to) {
    for (int64_t t = 0; t < s->rows; t += TILE_ROWS)
        multiply(TILE_ROWS, (t + TILE_ROWS - 1) / REAL_LANES + 1, s->p, (factor){from + t * s->p, s->p, 1}, turned,
                 CHUNK, (scales){&FRESH, 0}, to + t * CHUNK, CHUNK);
}

/* What one kind of key has written, `written` (CHUNK, p): all that its gradients come from. */
static void key_adjoint(adjoint *to, int kind, const real *written) {
    chunk *s = &to->at;
    int64_t n = s->n;
    transpose(s->rows, s->p, written, s->p, to->d_turned, CHUNK);
    set_lower(s, to->dd, to->d_turned, to->dA);
    set_lower(s, to->dy, to->d_turned, to->dQ);
    multiply(s->rows, n / REAL_LANES, s->p, (factor){written, s->p, 1}, to->G_turned, n, (scales){&FRESH, 0},
             to->d_early, n);
    early_adjoint(to, 0, s->rows, s->to_end[kind], to->d_early, to->d_keys[kind]);
    for (int i = 0; i < 3; i++)
        if (CUTS[i][1] < s->rows)
            cut_adjoint(to, CUTS[i][0], CUTS[i][1], CUTS[i][2] < s->rows ? CUTS[i][2] : s->rows, s->keys[kind],
                        to->d_keys[kind]);
    for (int64_t begin = 0; begin < s->rows; begin += BLOCK) block_adjoint(to, begin, s->keys[kind], to->d_keys[kind]);
}

#endif
