/* Between the tensors and the scratch memory of a block, for one `real`.
 *
 * Scratch is vectors of lanes = channels: of the vector v and the step t at [v * steps + t], of the state n at
 * [v * states + n], twice as wide where numbers are complex (real parts, imaginary parts).
 */
#define SCRATCH(v, i, count) (((v) * (count) + (i)) * REAL_LANES)

INLINE vreal LOCAL(stage_load)(const void *from, int64_t at, int64_t count, int64_t bf16) {
#if REAL_BITS == 32
    if (bf16) {
        const uint16_t *half = (const uint16_t *)from + at;
        return count == REAL_LANES ? load_bf16(half) : load_some_bf16(half, count);
    }
#endif
    (void)bf16;
    const real *whole = (const real *)from + at;
    return count == REAL_LANES ? v_load(whole) : v_load_some(whole, count);
}

INLINE void LOCAL(stage_store)(void *to, int64_t at, vreal value, int64_t count, int64_t bf16) {
#if REAL_BITS == 32
    if (bf16) {
        uint16_t *half = (uint16_t *)to + at;
        if (count == REAL_LANES) store_bf16(half, value);
        else store_some_bf16(half, value, count);
        return;
    }
#endif
    (void)bf16;
    real *whole = (real *)to + at;
    if (count == REAL_LANES) v_store(whole, value);
    else v_store_some(whole, value, count);
}

/* Asks ahead for a block's channels of some steps. `at` is where the first step begins, `step` how far the next is. */
static void LOCAL(stage_ahead)(ahead *a, const scan_block *block, const void *from, int64_t bf16, int64_t at,
                               int64_t step, int64_t steps) {
    const scan_vector *first = block->vectors, *last = first + block->n_vectors - 1;
    const int64_t size = bf16 ? 2 : sizeof(real), channels = last->channel + last->count - first->channel;
    ahead_add(a, from, (at + first->channel) * size, step * size, channels * size, steps);
}

/* the bias or skip of each channel, zero where there is none */
INLINE vreal LOCAL(stage_channels)(const real *from, const scan_vector *v) {
    return from ? LOCAL(stage_load)(from, v->channel, v->count, 0) : v_broadcast(0);
}

/* (width, states[, 2]) of one row into scratch, lanes that are not in use zero; and back */
static void LOCAL(stage_states)(const scan_sizes *z, const scan_block *block, const real *from, real *to) {
    const int64_t parts = 1 + z->is_complex, each = z->states * parts;
    for (int64_t v = 0; v < block->n_vectors; v++) {
        const scan_vector *vector = &block->vectors[v];
        real *lanes = to + SCRATCH(v, 0, each);
        if (vector->count < REAL_LANES) memset(lanes, 0, sizeof(real) * (size_t)(each * REAL_LANES));
        for (int64_t lane = 0; lane < vector->count; lane++)
            for (int64_t i = 0; i < each; i++)
                lanes[i * REAL_LANES + lane] = from[(vector->channel + lane) * each + i];
    }
}

static void LOCAL(unstage_states)(const scan_sizes *z, const scan_block *block, const real *from, real *to) {
    const int64_t parts = 1 + z->is_complex, each = z->states * parts;
    for (int64_t v = 0; v < block->n_vectors; v++) {
        const scan_vector *vector = &block->vectors[v];
        const real *lanes = from + SCRATCH(v, 0, each);
        for (int64_t lane = 0; lane < vector->count; lane++)
            for (int64_t i = 0; i < each; i++)
                to[(vector->channel + lane) * each + i] = lanes[i * REAL_LANES + lane];
    }
}

/* A in the factors that its exponential needs, beside A itself */
static void LOCAL(stage_rates)(const scan_sizes *z, const scan_block *block, const real *A, real *rates) {
    const int64_t parts = 1 + z->is_complex;
    for (int64_t i = 0; i < block->n_vectors * z->states * parts; i++)
        for (int64_t lane = 0; lane < REAL_LANES; lane++)
            LOCAL(split_rate)(A[i * REAL_LANES + lane], i % parts != 0, rates + 2 * i * REAL_LANES + lane);
}

/* B or C of one chunk where the lanes of a vector belong to several groups: vectors [t * n_states + n], complex ones
 * twice as wide. `from` is (length, groups, states[, 2]) of the row, from the first step and state on. */
static void LOCAL(stage_lanes)(const scan_sizes *z, const scan_vector *vector, const real *from, int64_t steps,
                               int64_t n_states, real *to) {
    const int64_t parts = 1 + z->is_complex, each = z->width / z->groups;
    if (vector->count < REAL_LANES) memset(to, 0, sizeof(real) * (size_t)(steps * n_states * parts * REAL_LANES));
    for (int64_t lane = 0; lane < vector->count; lane++) {
        const real *group = from + (vector->channel + lane) / each * z->states * parts;
        for (int64_t t = 0; t < steps; t++)
            for (int64_t i = 0; i < n_states * parts; i++)
                to[(t * n_states * parts + i) * REAL_LANES + lane] = group[t * z->groups * z->states * parts + i];
    }
}

/* whether the state before each step of the chunk is another segment's; what comes in from outside is segment 0 */
static const unsigned char *LOCAL(stage_resets)(const int64_t *segments, int64_t start, int64_t steps,
                                                unsigned char *resets) {
    if (!segments) return NULL;
    for (int64_t t = 0; t < steps; t++)
        resets[t] = segments[start + t] != (start + t ? segments[start + t - 1] : 0);
    return resets;
}
