/* out_j = sum_i partial_ij, (n_items, size) -> (size,): what a kernel's items have each summed up for themselves.
 *
 * The items are added in their order, so that the bits do not depend on which thread did which; blocks of columns are
 * shared out to threads.
 */
enum { LOCAL(COLUMNS) = 1024 };

typedef struct {
    const real *partial;
    real *out;
    int64_t n_items, size;
} LOCAL(summation);

static void LOCAL(sum_columns)(void *context, int64_t item, int64_t thread) {
    const LOCAL(summation) *s = context;
    (void)thread;
    int64_t begin = item * LOCAL(COLUMNS);
    int64_t end = begin + LOCAL(COLUMNS) < s->size ? begin + LOCAL(COLUMNS) : s->size;
    for (int64_t j = begin; j < end; j++) s->out[j] = 0;
    for (int64_t i = 0; i < s->n_items; i++)
        for (int64_t j = begin; j < end; j++) s->out[j] += s->partial[i * s->size + j];
}

void EXPORT(sum_of_items)(const real *partial, real *out, int64_t n_items, int64_t size, int64_t n_threads) {
    LOCAL(summation) s = {partial, out, n_items, size};
    parallel_for((size + LOCAL(COLUMNS) - 1) / LOCAL(COLUMNS), n_threads, LOCAL(sum_columns), &s);
}
