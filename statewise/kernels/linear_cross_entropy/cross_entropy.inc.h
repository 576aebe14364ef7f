/* For each row of logits (rows, width): the loss log(sum_j e^{l_j}) - l_target, and in place of the logits, where
 * asked, their gradient coefficient * (softmax(l) - one_hot(target)).
 *
 * A row below zero has no target: its loss and gradient are zero. Order: rows are the items; a row is read for its
 * maximum, for the sum of exponentials, and once more for the gradient, for which exponentials are taken anew, since
 * that is cheaper than to store them.
 */
typedef struct {
    stored *logits;
    const int64_t *targets;
    const real *coefficients; /* NULL: losses alone */
    real *losses;
    int64_t width;
} LOCAL(cross_entropy);

static stored LOCAL(rounded)(real value) {
    stored one[1];
    s_store_some(one, v_broadcast(value), 1);
    return one[0];
}
INLINE real LOCAL(element)(const stored *from) { return s_load_some(from, 1)[0]; }

static real LOCAL(largest)(const stored *logits, int64_t width) {
    vreal most = v_broadcast(-INFINITY);
    int64_t i = 0;
    for (; i + REAL_LANES <= width; i += REAL_LANES) {
        vreal value = s_load(logits + i);
        most = v_select(value > most, value, most); /* a NaN is met again in the sum */
    }
    real largest = -INFINITY;
    for (int64_t j = 0; j < REAL_LANES; j++) largest = most[j] > largest ? most[j] : largest;
    for (; i < width; i++) {
        real value = LOCAL(element)(logits + i);
        largest = value > largest ? value : largest;
    }
    return largest;
}

static real LOCAL(sum_of_exponentials)(const stored *logits, int64_t width, real largest) {
    vreal sums[2] = {v_broadcast(0), v_broadcast(0)};
    int64_t i = 0;
    for (; i + 2 * REAL_LANES <= width; i += 2 * REAL_LANES)
        for (int k = 0; k < 2; k++) sums[k] += v_exp(s_load(logits + i + k * REAL_LANES) - largest);
    real sum = v_sum(sums[0] + sums[1]);
    for (; i < width; i += REAL_LANES) {
        int64_t lanes = width - i < REAL_LANES ? width - i : REAL_LANES;
        vreal rest = v_exp(s_load_some(logits + i, lanes) - largest);
        for (int64_t j = 0; j < lanes; j++) sum += rest[j];
    }
    return sum;
}

static void LOCAL(gradient_of_row)(stored *logits, int64_t width, int64_t target, real largest, real sum,
                                   real coefficient) {
    real share = coefficient / sum;
    real own = v_exp(v_broadcast(LOCAL(element)(logits + target) - largest))[0];
    int64_t i = 0;
    for (; i + REAL_LANES <= width; i += REAL_LANES)
        s_store(logits + i, v_exp(s_load(logits + i) - largest) * share);
    if (i < width) {
        vreal rest = v_exp(s_load_some(logits + i, width - i) - largest) * share;
        s_store_some(logits + i, rest, width - i);
    }
    logits[target] = LOCAL(rounded)(own * share - coefficient);
}

static void LOCAL(cross_entropy_row)(void *context, int64_t row, int64_t thread) {
    const LOCAL(cross_entropy) *c = context;
    (void)thread;
    stored *logits = c->logits + row * c->width;
    int64_t target = c->targets[row];
    if (target < 0) {
        c->losses[row] = 0;
        if (c->coefficients && c->width > 0) memset(logits, 0, sizeof(stored) * (size_t)c->width);
        return;
    }
    real largest = LOCAL(largest)(logits, c->width);
    real sum = LOCAL(sum_of_exponentials)(logits, c->width, largest);
    c->losses[row] = largest + (real)log((double)sum) - LOCAL(element)(logits + target);
    if (c->coefficients) LOCAL(gradient_of_row)(logits, c->width, target, largest, sum, c->coefficients[row]);
}

/* targets below zero have none; coefficients may be NULL. The caller has checked that targets are below width. */
void EXPORT(cross_entropy)(stored *logits, const int64_t *targets, const real *coefficients, real *losses, int64_t rows,
                           int64_t width, int64_t n_threads) {
    LOCAL(cross_entropy) c = {logits, targets, coefficients, losses, width};
    parallel_for(rows, n_threads, LOCAL(cross_entropy_row), &c);
}
