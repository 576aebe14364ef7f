/* y = f(x) for the elementary functions of vector.h, so that tests can hold each of them to its definition. */

#define ELEMENTARY(name)                                                          \
    void EXPORT(elementary_##name)(const real *x, real *y, int64_t length) {       \
        int64_t i = 0;                                                             \
        for (; i + REAL_LANES <= length; i += REAL_LANES) v_store(y + i, v_##name(v_load(x + i))); \
        if (i < length) v_store_some(y + i, v_##name(v_load_some(x + i, length - i)), length - i); \
    }

ELEMENTARY(exp2)
ELEMENTARY(sigmoid)
ELEMENTARY(softplus)
#undef ELEMENTARY
