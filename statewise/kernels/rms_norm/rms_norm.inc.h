/* RMSNorm over groups of a row's features, alone or with a SiLU gate before or after it, and the adjoint.
 *
 *   u = x, or x SiLU(z) with the gate first;   r = 1 / sqrt(mean(u^2) + eps);   y = u r w, or u r w SiLU(z)
 *   with a = w dy (times SiLU(z) where the gate comes after):   du = r a - u r^3 mean(u a)
 *
 * Layout: x, z and dy rows of any stride, y, dx and dz contiguous, weight (width). Order: blocks of rows are
 * the items; a group is read once for its sums and once more, from the cache, for its outputs. u, a, SiLU(z) and
 * SiLU'(z) of a group wait in a thread's scratch.
 */
enum { LOCAL(NO_GATE), LOCAL(GATE_FIRST), LOCAL(GATE_LAST) };

typedef struct {
    const stored *x, *z, *grad;
    const real *weight;
    stored *y, *grad_z; /* y: the output, or the gradient of x */
    real *partial, *scratch;
    int64_t rows, width, n_groups, x_stride, z_stride, grad_stride, gate, rows_per_item;
    double eps;
} LOCAL(norm);

/* body for each vector of a group, at i; the rest of it, zero-filled, has fewer lanes */
#define EACH_VECTOR(size, ...)                                                                      \
    {                                                                                               \
        const int64_t lanes = REAL_LANES;                                                           \
        int64_t i = 0;                                                                              \
        for (; i + REAL_LANES <= (size); i += REAL_LANES) __VA_ARGS__                               \
    }                                                                                               \
    if ((size) % REAL_LANES) {                                                                      \
        const int64_t i = (size) - (size) % REAL_LANES, lanes = (size) % REAL_LANES;                \
        __VA_ARGS__                                                                                 \
    }
#define GET(from) (lanes == REAL_LANES ? s_load(from) : s_load_some(from, lanes))
#define GET_REAL(from) (lanes == REAL_LANES ? v_load(from) : v_load_some(from, lanes))
#define PUT(to, value) (lanes == REAL_LANES ? s_store(to, value) : s_store_some(to, value, lanes))
#define PUT_REAL(to, value) (lanes == REAL_LANES ? v_store(to, value) : v_store_some(to, value, lanes))

INLINE real LOCAL(root)(real value) {
    return sizeof(real) == 4 ? (real)sqrtf((float)value) : (real)sqrt((double)value);
}

/* u and SiLU(z) of a group into scratch; 1 / sqrt(mean(u^2) + eps) */
INLINE real LOCAL(measure)(const stored *x, const stored *z, real *u, real *silu, real *slope, int64_t size,
                           int64_t gate, double eps) {
    vreal squares = v_broadcast(0);
    EACH_VECTOR(size, {
        vreal value = GET(x + i);
        if (gate != LOCAL(NO_GATE)) {
            vreal gate_in = GET(z + i), s = v_sigmoid(gate_in);
            PUT_REAL(silu + i, gate_in * s);
            if (slope) PUT_REAL(slope + i, s * (1 + gate_in * (1 - s)));
            if (gate == LOCAL(GATE_FIRST)) value *= gate_in * s;
        }
        PUT_REAL(u + i, value);
        squares += value * value;
    })
    return 1 / LOCAL(root)(v_sum(squares) / (real)size + (real)eps);
}

INLINE void LOCAL(forward_group)(const LOCAL(norm) * n, int64_t row, int64_t group, int64_t gate, const real *weight,
                                 real *scratch) {
    int64_t size = n->width / n->n_groups, at = group * size;
    real *u = scratch, *silu = u + size;
    real r = LOCAL(measure)(n->x + row * n->x_stride + at, gate ? n->z + row * n->z_stride + at : NULL, u, silu, NULL,
                            size, gate, n->eps);
    stored *y = n->y + row * n->width + at;
    weight += at;
    EACH_VECTOR(size, {
        vreal value = GET_REAL(u + i) * r * GET_REAL(weight + i);
        PUT(y + i, gate == LOCAL(GATE_LAST) ? value * GET_REAL(silu + i) : value);
    })
}

INLINE void LOCAL(backward_group)(const LOCAL(norm) * n, int64_t row, int64_t group, int64_t gate, const real *weight,
                                  real *grad_weight, real *scratch) {
    int64_t size = n->width / n->n_groups, at = group * size;
    real *u = scratch, *a = u + size, *silu = a + size, *slope = silu + size;
    const stored *x = n->x + row * n->x_stride + at, *grad = n->grad + row * n->grad_stride + at;
    real r = LOCAL(measure)(x, gate ? n->z + row * n->z_stride + at : NULL, u, silu, slope, size, gate, n->eps);
    vreal products = v_broadcast(0);
    weight += at, grad_weight += at;
    EACH_VECTOR(size, {
        vreal value = GET(grad + i), normed = GET_REAL(u + i) * r;
        vreal outer = gate == LOCAL(GATE_LAST) ? value * GET_REAL(silu + i) : value;
        vreal inner = outer * GET_REAL(weight + i);
        PUT_REAL(grad_weight + i, GET_REAL(grad_weight + i) + outer * normed);
        PUT_REAL(a + i, inner);
        products += inner * GET_REAL(u + i);
    })
    real c = r * r * r * (v_sum(products) / (real)size);
    stored *grad_x = n->y + row * n->width + at, *grad_z = gate ? n->grad_z + row * n->width + at : NULL;
    EACH_VECTOR(size, {
        vreal value = GET_REAL(u + i), grad_u = r * GET_REAL(a + i) - c * value;
        if (gate == LOCAL(GATE_FIRST)) {
            PUT(grad_z + i, grad_u * GET(x + i) * GET_REAL(slope + i));
            grad_u *= GET_REAL(silu + i);
        } else if (gate == LOCAL(GATE_LAST))
            PUT(grad_z + i, GET(grad + i) * (value * r * GET_REAL(weight + i)) * GET_REAL(slope + i));
        PUT(grad_x + i, grad_u);
    })
}

static int64_t LOCAL(n_items)(const LOCAL(norm) * n) {
    return (n->rows + n->rows_per_item - 1) / n->rows_per_item;
}

static int64_t LOCAL(end_of)(const LOCAL(norm) * n, int64_t item) {
    int64_t end = (item + 1) * n->rows_per_item;
    return end < n->rows ? end : n->rows;
}

#define EACH_GATE(call)                                                                             \
    switch (n->gate) {                                                                              \
    case LOCAL(NO_GATE): call(LOCAL(NO_GATE)); break;                                               \
    case LOCAL(GATE_FIRST): call(LOCAL(GATE_FIRST)); break;                                         \
    default: call(LOCAL(GATE_LAST));                                                                \
    }

static void LOCAL(norm_rows)(void *context, int64_t item, int64_t thread) {
    const LOCAL(norm) *n = context;
    real *scratch = n->scratch + thread * 4 * n->width;
#define CALL(gate) LOCAL(forward_group)(n, row, group, gate, n->weight, scratch)
    for (int64_t row = item * n->rows_per_item; row < LOCAL(end_of)(n, item); row++)
        for (int64_t group = 0; group < n->n_groups; group++) EACH_GATE(CALL)
#undef CALL
}

static void LOCAL(adjoint_rows)(void *context, int64_t item, int64_t thread) {
    const LOCAL(norm) *n = context;
    real *scratch = n->scratch + thread * 4 * n->width, *partial = n->partial + item * n->width;
    if (n->width > 0) memset(partial, 0, sizeof(real) * (size_t)n->width);  /* of no width there is no memory */
#define CALL(gate) LOCAL(backward_group)(n, row, group, gate, n->weight, partial, scratch)
    for (int64_t row = item * n->rows_per_item; row < LOCAL(end_of)(n, item); row++)
        for (int64_t group = 0; group < n->n_groups; group++) EACH_GATE(CALL)
#undef CALL
}

/* scratch: n_threads * 4 width. gate: 0 none, 1 before the norm, 2 after it. */
void EXPORT(rms_norm)(const stored *x, const stored *z, const real *weight, stored *y, real *scratch, int64_t rows,
                      int64_t width, int64_t n_groups, int64_t x_stride, int64_t z_stride, int64_t gate, double eps,
                      int64_t rows_per_item, int64_t n_threads) {
    LOCAL(norm) n = {.x = x, .z = z, .weight = weight, .y = y, .scratch = scratch, .rows = rows, .width = width,
                     .n_groups = n_groups, .x_stride = x_stride, .z_stride = z_stride, .gate = gate,
                     .rows_per_item = rows_per_item, .eps = eps};
    parallel_for(LOCAL(n_items)(&n), n_threads, LOCAL(norm_rows), &n);
}

/* partial: (items, width), the gradients of the weight that the rows of each item give */
void EXPORT(rms_norm_backward)(const stored *grad, const stored *x, const stored *z, const real *weight, stored *grad_x,
                               stored *grad_z, real *partial, real *scratch, int64_t rows, int64_t width,
                               int64_t n_groups, int64_t grad_stride, int64_t x_stride, int64_t z_stride, int64_t gate,
                               double eps, int64_t rows_per_item, int64_t n_threads) {
    LOCAL(norm) n = {.x = x, .z = z, .grad = grad, .weight = weight, .y = grad_x, .grad_z = grad_z, .partial = partial,
                     .scratch = scratch, .rows = rows, .width = width, .n_groups = n_groups, .x_stride = x_stride,
                     .z_stride = z_stride, .grad_stride = grad_stride, .gate = gate, .rows_per_item = rows_per_item,
                     .eps = eps};
    parallel_for(LOCAL(n_items)(&n), n_threads, LOCAL(adjoint_rows), &n);
}
#undef EACH_VECTOR
#undef EACH_GATE
#undef GET
#undef GET_REAL
#undef PUT
#undef PUT_REAL
