/* The functions by number, as pointwise.py counts them; those behind the vectors' go number by number. */
enum { LOCAL(PIECE) = 4096 };

typedef struct {
    const real *x, *grad;
    real *y;
    int64_t function, n;
} LOCAL(pointwise);

INLINE vreal LOCAL(vector_of)(int64_t function, vreal x, vreal grad) {
    switch (function) {
        case 0: return v_exp(x);
        case 1: return v_sigmoid(x);
        case 2: return v_softplus(x);
        case 3: return x * v_sigmoid(x);
        case 4: { /* of x sigmoid(x) */
            vreal s = v_sigmoid(x);
            return grad * (s * (1 + x * (1 - s)));
        }
        default: return x;
    }
}

INLINE real LOCAL(number_of)(int64_t function, real x, real other) {
    switch (function) {
        case 5: return (real)log((double)x);
        case 6: return (real)log1p((double)x);
        case 7: return (real)expm1((double)x);
        case 8: return (real)sin((double)x);
        case 9: return (real)cos((double)x);
        case 10: return (real)tanh((double)x);
        case 11: return (real)erf((double)x);
        case 12: return (real)pow((double)x, (double)other);
        case 13: return (real)exp2((double)x);
        case 14: return (real)log2((double)x);
        default: return x;
    }
}

static void LOCAL(pointwise_piece)(void *context, int64_t item, int64_t thread) {
    const LOCAL(pointwise) *p = context;
    (void)thread;
    int64_t first = item * LOCAL(PIECE), end = first + LOCAL(PIECE) < p->n ? first + LOCAL(PIECE) : p->n;
    if (p->function >= 5) {
        for (int64_t i = first; i < end; i++)
            p->y[i] = LOCAL(number_of)(p->function, p->x[i], p->grad ? p->grad[i] : 0);
        return;
    }
    for (int64_t i = first; i < end; i += REAL_LANES) {
        int64_t left = end - i;
        vreal x = left >= REAL_LANES ? v_load(p->x + i) : v_load_some(p->x + i, left), grad = {0};
        if (p->grad) grad = left >= REAL_LANES ? v_load(p->grad + i) : v_load_some(p->grad + i, left);
        vreal y = LOCAL(vector_of)(p->function, x, grad);
        if (left >= REAL_LANES) v_store(p->y + i, y);
        else v_store_some(p->y + i, y, left);
    }
}

/* grad: what a derivative is multiplied by, or the exponents of powers; else NULL */
void EXPORT(pointwise)(const real *x, const real *grad, real *y, int64_t function, int64_t n, int64_t n_threads) {
    LOCAL(pointwise) p = {x, grad, y, function, n};
    parallel_for((n + LOCAL(PIECE) - 1) / LOCAL(PIECE), n < LOCAL(PIECE) * 4 ? 1 : n_threads, LOCAL(pointwise_piece), &p);
}
