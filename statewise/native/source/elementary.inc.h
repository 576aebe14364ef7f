/* y = f(x) for the elementary functions, so that tests can hold each of them to its definition. */

INLINE vreal LOCAL(sine)(vreal x) {
    vreal sine, cosine;
    LOCAL(sine_cosine)(x, v_broadcast(V_QUARTERS), v_broadcast(V_QUARTERS_LOW), &sine, &cosine);
    return sine;
}
INLINE vreal LOCAL(cosine)(vreal x) {
    vreal sine, cosine;
    LOCAL(sine_cosine)(x, v_broadcast(V_QUARTERS), v_broadcast(V_QUARTERS_LOW), &sine, &cosine);
    return cosine;
}

#define ELEMENTARY(name)                                                                                   \
    void EXPORT(elementary_##name)(const real *x, real *y, int64_t length) {                                \
        int64_t i = 0;                                                                                      \
        for (; i + REAL_LANES <= length; i += REAL_LANES) v_store(y + i, LOCAL(name)(v_load(x + i)));       \
        if (i < length) v_store_some(y + i, LOCAL(name)(v_load_some(x + i, length - i)), length - i);       \
    }

ELEMENTARY(exp2)
ELEMENTARY(exp)
ELEMENTARY(sigmoid)
ELEMENTARY(softplus)
ELEMENTARY(sine)
ELEMENTARY(cosine)
#undef ELEMENTARY
