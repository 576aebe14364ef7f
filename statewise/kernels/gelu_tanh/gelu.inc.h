/* GELU with the tanh approximation, and the gradient of its input, one pass over memory each.
 *
 *   y = x (1 + tanh u) / 2 = x s,  s = 1 / (1 + e^-2u),  u = sqrt(2 / pi) (x + k x^3)
 *   dx = dy (s + 2 x s (1 - s) u')
 *
 * Layout: contiguous. Items are blocks of neighbours.
 */
#define ROOT_2_PI 0.79788456080286535588
#define CUBIC 0.044715

typedef struct {
    const stored *x, *grad; /* grad: NULL for the function itself */
    stored *y;
    int64_t length, per_item;
} LOCAL(gelu_call);

INLINE vreal LOCAL(gelu_value)(vreal x) {
    vreal doubled = x * ((real)(2 * ROOT_2_PI) + (real)(2 * ROOT_2_PI * CUBIC) * x * x);
    return x * v_sigmoid(doubled);
}

INLINE vreal LOCAL(gelu_slope)(vreal x) {
    vreal square = x * x;
    vreal s = v_sigmoid(x * ((real)(2 * ROOT_2_PI) + (real)(2 * ROOT_2_PI * CUBIC) * square));
    return s + x * s * (1 - s) * ((real)(2 * ROOT_2_PI) + (real)(6 * ROOT_2_PI * CUBIC) * square);
}

static void LOCAL(gelu_block)(void *context, int64_t item, int64_t thread) {
    const LOCAL(gelu_call) *c = context;
    (void)thread;
    int64_t i = item * c->per_item, end = i + c->per_item < c->length ? i + c->per_item : c->length;
    if (c->grad) {
        for (; i + REAL_LANES <= end; i += REAL_LANES)
            s_store(c->y + i, s_load(c->grad + i) * LOCAL(gelu_slope)(s_load(c->x + i)));
        if (i < end)
            s_store_some(c->y + i, s_load_some(c->grad + i, end - i) * LOCAL(gelu_slope)(s_load_some(c->x + i, end - i)),
                         end - i);
    } else {
        for (; i + REAL_LANES <= end; i += REAL_LANES) s_store(c->y + i, LOCAL(gelu_value)(s_load(c->x + i)));
        if (i < end) s_store_some(c->y + i, LOCAL(gelu_value)(s_load_some(c->x + i, end - i)), end - i);
    }
}

/* y = gelu(x), or with grad the gradient of x */
void EXPORT(gelu)(const stored *x, const stored *grad, stored *y, int64_t length, int64_t per_item, int64_t n_threads) {
    LOCAL(gelu_call) c = {.x = x, .grad = grad, .y = y, .length = length, .per_item = per_item};
    parallel_for((length + per_item - 1) / per_item, n_threads, LOCAL(gelu_block), &c);
}
#undef ROOT_2_PI
#undef CUBIC
