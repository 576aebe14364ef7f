/* y_t = sum_s softmax_s(q_t . k_s) v_s over the keys low_t <= s < high_t, and the adjoint.
 *
 * Lanes are queries, REAL_LANES at a time. A score is summed over the features one by one, a softmax and its output over
 * the keys one by one, the oldest first; a key that is not seen adds 0. The gradient of a key is summed over the queries
 * one by one, the newest first, and begins with what later calls have left. So a query has the same bits whatever lies
 * beside it, and wherever a sequence is cut.
 * Where the values are the keys, one sum is the gradient of both uses.
 * q, y, dy, dq: (batch, length, heads, width); k, v, dk, dv: (batch, n_keys, groups, width); a group is shared by
 * heads / groups heads; low, high: (batch, length).
 */
#define TOGETHER 8 /* keys that a feature of the queries is read once for */
#define ABREAST 4  /* queries, and vectors of features, that a value is read once for */

typedef struct {
    const real *q, *k, *v, *y, *dy;
    const int64_t *low, *high;
    real *out, *dq, *dk, *dv, *scratch;
    int64_t length, n_keys, heads, groups, width, n_blocks, scratch_size;
} attention;

typedef struct {
    int64_t row, head, first, count; /* queries */
    int64_t begin, end;              /* keys that one of them sees */
    int64_t low[LANES], high[LANES];
} query_block;

static void find_keys(const attention *a, query_block *b) {
    b->begin = a->n_keys;
    b->end = 0;
    for (int64_t i = 0; i < LANES; i++) {
        int64_t at = b->row * a->length + b->first + i;
        b->low[i] = i < b->count ? a->low[at] : 0;
        b->high[i] = i < b->count ? a->high[at] : 0;
        if (b->low[i] >= b->high[i]) continue;
        if (b->low[i] < b->begin) b->begin = b->low[i];
        if (b->high[i] > b->end) b->end = b->high[i];
    }
    if (b->begin > b->end) b->begin = b->end;
}

/* (width, LANES) of a block of (batch, length, heads, width) */
static void turn_queries(const attention *a, const query_block *b, const real *from, real *to) {
    for (int64_t i = 0; i < LANES; i++) {
        const real *query = from + ((b->row * a->length + b->first + i) * a->heads + b->head) * a->width;
        for (int64_t e = 0; e < a->width; e++) to[e * LANES + i] = i < b->count ? query[e] : 0;
    }
}

/* to (keys, LANES): products of turned queries with the keys */
static void scores(const attention *a, const query_block *b, const real *turned, const real *keys, real *to) {
    int64_t step = a->groups * a->width;
    const real *from = keys + (b->row * a->n_keys * a->groups + b->head / (a->heads / a->groups)) * a->width;
    for (int64_t j = b->begin; j < b->end;) {
        int64_t n = b->end - j < TOGETHER ? 1 : TOGETHER;
        vreal sums[TOGETHER];
        for (int i = 0; i < TOGETHER; i++) sums[i] = (vreal){0};
        if (n == TOGETHER) {
            for (int64_t e = 0; e < a->width; e++) {
                vreal query = v_load(turned + e * LANES);
#pragma GCC unroll 8
                for (int i = 0; i < TOGETHER; i++) sums[i] += from[(j + i) * step + e] * query;
            }
        } else {
            for (int64_t e = 0; e < a->width; e++) sums[0] += from[j * step + e] * v_load(turned + e * LANES);
        }
        for (int64_t i = 0; i < n; i++) v_store(to + (j + i - b->begin) * LANES, sums[i]);
        j += n;
    }
}

/* Scores become weights, which are not divided yet: their sum is returned. */
static vreal weigh(const query_block *b, real *weights) {
    vreal most = v_broadcast(-INFINITY), sum = {0};
    vi32 low, high;
    for (int i = 0; i < LANES; i++) {
        low[i] = (int32_t)b->low[i];
        high[i] = (int32_t)b->high[i];
    }
    for (int64_t j = b->begin; j < b->end; j++) {
        real *at = weights + (j - b->begin) * LANES;
        vi32 now = (vi32){0} + (int32_t)j;
        vreal score = v_select((now >= low) & (now < high), v_load(at), v_broadcast(-INFINITY));
        v_store(at, score);
        most = v_select(score > most, score, most);
    }
    for (int64_t j = b->begin; j < b->end; j++) {
        real *at = weights + (j - b->begin) * LANES;
        vreal score = v_load(at);
        vreal weight = v_select(score == v_broadcast(-INFINITY), v_broadcast(0), v_exp(score - most));
        v_store(at, weight);
        sum += weight;
    }
    return v_select(sum == v_broadcast(0), v_broadcast(1), sum); /* who sees nothing reads 0 */
}

/* to[i] (width) = sum_j weights_ji rows_j / by_i for some queries i, over the keys in their order */
INLINE void mix_some(const attention *a, const query_block *b, const real *weights, const real *rows, const real *by,
                     int64_t i, const int n, int64_t e, const int vectors, int64_t left, real *to) {
    int64_t step = a->groups * a->width;
    vreal sums[ABREAST][ABREAST];
    for (int r = 0; r < n; r++)
        for (int c = 0; c < vectors; c++) sums[r][c] = (vreal){0};
    for (int64_t j = b->begin; j < b->end; j++) {
        const real *value = rows + j * step + e, *weight = weights + (j - b->begin) * LANES + i;
        for (int c = 0; c < vectors; c++) {
            vreal x = left >= REAL_LANES ? v_load(value + c * REAL_LANES) : v_load_some(value, left);
            for (int r = 0; r < n; r++) sums[r][c] += weight[r] * x;
        }
    }
    for (int r = 0; r < n; r++)
        for (int c = 0; c < vectors; c++) {
            vreal y = by ? sums[r][c] / by[i + r] : sums[r][c];
            real *at = to + (i + r) * a->heads * a->width + e + c * REAL_LANES;
            if (left >= REAL_LANES) v_store(at, y);
            else v_store_some(at, y, left);
        }
}

static void mix(const attention *a, const query_block *b, const real *weights, const real *values, const real *by, real *out) {
    const real *rows = values + (b->row * a->n_keys * a->groups + b->head / (a->heads / a->groups)) * a->width;
    real *to = out + ((b->row * a->length + b->first) * a->heads + b->head) * a->width;
    for (int64_t i = 0; i < b->count;) {
        int n = b->count - i >= ABREAST ? ABREAST : 1;
        int64_t e = 0;
        for (; e + ABREAST * REAL_LANES <= a->width; e += ABREAST * REAL_LANES)
            n == ABREAST ? mix_some(a, b, weights, rows, by, i, ABREAST, e, ABREAST, REAL_LANES, to)
                         : mix_some(a, b, weights, rows, by, i, 1, e, ABREAST, REAL_LANES, to);
        for (; e < a->width; e += REAL_LANES)
            n == ABREAST ? mix_some(a, b, weights, rows, by, i, ABREAST, e, 1, a->width - e, to)
                         : mix_some(a, b, weights, rows, by, i, 1, e, 1, a->width - e, to);
        i += n;
    }
}

static query_block block_of_queries(const attention *a, int64_t row, int64_t head, int64_t block) {
    int64_t first = block * LANES;
    query_block b = {.row = row, .head = head, .first = first, .count = a->length - first < LANES ? a->length - first : LANES};
    find_keys(a, &b);
    return b;
}

static void attend_block(void *context, int64_t item, int64_t thread) {
    const attention *a = context;
    int64_t block = item % a->n_blocks, pair = item / a->n_blocks;
    query_block b = block_of_queries(a, pair / a->heads, pair % a->heads, block);
    real *turned = a->scratch + thread * a->scratch_size, *weights = turned + a->width * LANES, sums[LANES];
    turn_queries(a, &b, a->q, turned);
    scores(a, &b, turned, a->k, weights);
    v_store(sums, weigh(&b, weights));
    mix(a, &b, weights, a->v, sums, a->out);
}

/* What the queries of a block, one of each head of the group, send back to its keys and values. `one`: the values are the
 * keys, and of a query and head the keys' part comes before the values'. */
INLINE void leave_gradients(const attention *a, const query_block *b, int64_t row, int64_t group, const real *memory,
                            const int one) {
    int64_t each = a->heads / a->groups, step = a->groups * a->width, room = a->n_keys * LANES;
    for (int64_t j = b->begin; j < b->end; j++) {
        real *dk = a->dk + row * a->n_keys * step + j * step + group * a->width;
        real *dv = a->dv + row * a->n_keys * step + j * step + group * a->width;
        for (int64_t e = 0; e < a->width; e += REAL_LANES) {
            int64_t left = a->width - e;
            vreal key = left >= REAL_LANES ? v_load(dk + e) : v_load_some(dk + e, left), value = {0};
            if (!one) value = left >= REAL_LANES ? v_load(dv + e) : v_load_some(dv + e, left);
            for (int64_t i = b->count - 1; i >= 0; i--) {
                if (j < b->low[i] || j >= b->high[i]) continue;
                for (int64_t h = 0; h < each; h++) {
                    const real *weights = memory + h * 2 * room + (j - b->begin) * LANES + i;
                    int64_t at = ((row * a->length + b->first + i) * a->heads + group * each + h) * a->width + e;
                    vreal q = left >= REAL_LANES ? v_load(a->q + at) : v_load_some(a->q + at, left);
                    vreal dy = left >= REAL_LANES ? v_load(a->dy + at) : v_load_some(a->dy + at, left);
                    key += weights[room] * q;
                    if (one) key += weights[0] * dy;
                    else value += weights[0] * dy;
                }
            }
            if (left >= REAL_LANES) {
                v_store(dk + e, key);
                if (!one) v_store(dv + e, value);
            } else {
                v_store_some(dk + e, key, left);
                if (!one) v_store_some(dv + e, value, left);
            }
        }
    }
}

/* The gradients of a group's keys and values and of its heads' queries. */
static void attend_back(void *context, int64_t item, int64_t thread) {
    const attention *a = context;
    int64_t row = item / a->groups, group = item % a->groups, each = a->heads / a->groups;
    real *turned = a->scratch + thread * a->scratch_size, *memory = turned + a->width * LANES;
    int64_t room = a->n_keys * LANES;
    for (int64_t block = a->n_blocks - 1; block >= 0; block--) {
        query_block b = {0};
        for (int64_t h = 0; h < each; h++) {
            real *weights = memory + h * 2 * room, *slopes = weights + room;
            b = block_of_queries(a, row, group * each + h, block);
            turn_queries(a, &b, a->q, turned);
            scores(a, &b, turned, a->k, weights);
            vreal sum = weigh(&b, weights), mean = {0};
            turn_queries(a, &b, a->dy, turned);
            scores(a, &b, turned, a->v, slopes);
            for (int64_t i = 0; i < b.count; i++) {
                int64_t at = ((row * a->length + b.first + i) * a->heads + b.head) * a->width;
                real total = 0;
                for (int64_t e = 0; e < a->width; e++) total += a->dy[at + e] * a->y[at + e];
                mean[i] = total;
            }
            for (int64_t j = 0; j < b.end - b.begin; j++) {
                vreal weight = v_load(weights + j * LANES);
                weight = v_select(weight == v_broadcast(0), weight, weight / sum);
                v_store(weights + j * LANES, weight);
                v_store(slopes + j * LANES, weight * (v_load(slopes + j * LANES) - mean));
            }
            if (a->dq) mix(a, &b, slopes, a->k, NULL, a->dq);
        }
        if (!a->dk) continue;
        if (a->dv == a->dk) leave_gradients(a, &b, row, group, memory, 1);
        else leave_gradients(a, &b, row, group, memory, 0);
    }
}

/* Numbers of scratch for a thread: (width + n_keys) LANES forward, (width + 2 n_keys heads / groups) LANES backward. */
void EXPORT(attention_ordered)(const real *q, const real *k, const real *v, const int64_t *low, const int64_t *high, real *out,
                               real *scratch, int64_t batch, int64_t length, int64_t n_keys, int64_t heads, int64_t groups,
                               int64_t width, int64_t scratch_size, int64_t n_threads) {
    attention a = {.q = q, .k = k, .v = v, .low = low, .high = high, .out = out, .scratch = scratch, .length = length,
                   .n_keys = n_keys, .heads = heads, .groups = groups, .width = width,
                   .n_blocks = (length + LANES - 1) / LANES, .scratch_size = scratch_size};
    parallel_for(batch * heads * a.n_blocks, n_threads, attend_block, &a);
}

/* dq, or dk and dv, may be NULL. dk and dv are added to: they hold what later calls have left. They are one where v is k. */
void EXPORT(attention_ordered_backward)(const real *q, const real *k, const real *v, const int64_t *low, const int64_t *high,
                                        const real *y, const real *dy, real *dq, real *dk, real *dv, real *scratch,
                                        int64_t batch, int64_t length, int64_t n_keys, int64_t heads, int64_t groups,
                                        int64_t width, int64_t scratch_size, int64_t n_threads) {
    attention a = {.q = q, .k = k, .v = v, .low = low, .high = high, .y = y, .dy = dy, .dq = dq, .dk = dk, .dv = dv,
                   .scratch = scratch, .length = length, .n_keys = n_keys, .heads = heads, .groups = groups, .width = width,
                   .n_blocks = (length + LANES - 1) / LANES, .scratch_size = scratch_size};
    parallel_for(batch * groups, n_threads, attend_back, &a);
}
#undef TOGETHER
#undef ABREAST
