/* The square-root Kalman filter, and the adjoint of its means, innovations and likelihood.
 *
 * A step is one linear map from x_{t-1} to (y_t, x_t), mu = G m + offset, with a noise whose square root N is lower
 * triangular (k = p + n rows). The triangular form of [G L, N] is [[F, 0], [U, L']]: the innovation's factor, the gain
 * times it, and the factor of x_t given y_t (kalman_forward.inc.h). One item is one row, in plain numbers, or as many
 * rows as a vector has lanes; what rows share is read once for all of them. Where all rows have the same covariances,
 * these are computed once, and then only means.
 */
typedef struct {
    const real *at;
    int64_t row, step; /* how far from row to row and from step to step; 0 where all have the same */
} LOCAL(operand);

typedef struct {
    int64_t rows, length, n, p, shared;
    LOCAL(operand) G, N, offset, y, mean, factor, prior_mean, prior_factor;
    const uint8_t *observed, *starts; /* (rows, length, p) and (rows, length), or NULL */
    const int64_t *lengths;           /* (rows), or NULL */
    real *scratch;
    int64_t numbers; /* of the scratch of a thread */
    /* (rows, length, n), (rows or 1, length, n, n), (rows, length, p), (rows or 1, length, p, p), (rows, length) */
    real *means, *factors, *innovations, *innovation_factors, *densities;
    real *gains, *constants; /* where covariances are shared: U (length, n, p), and the densities' constants (length) */
} LOCAL(kalman);

typedef struct {
    LOCAL(kalman) of;
    LOCAL(operand) W; /* N N^T */
    const real *grad_means, *grad_innovations, *grad_densities; /* or NULL */
    /* of each row: y; G, W and the offset for each step or summed; mean and covariance of the state and the prior */
    real *to_y, *to_G, *to_W, *to_offset, *to_mean, *to_P, *to_prior_mean, *to_prior_P;
} LOCAL(kalman_adjoint);

#define KALMAN_ONE 1
#include "kalman_lanes.inc.h"
#include "kalman_forward.inc.h"
#include "kalman_backward.inc.h"
#undef KALMAN_ONE
#define KALMAN_ONE 0
#include "kalman_lanes.inc.h"
#include "kalman_forward.inc.h"
#include "kalman_backward.inc.h"
#undef KALMAN_ONE

void EXPORT(kalman_forward)(const real *G, const real *N, const real *offset, const real *y, const real *mean,
                            const real *factor, const real *prior_mean, const real *prior_factor,
                            const uint8_t *observed, const int64_t *lengths, const uint8_t *starts, real *means,
                            real *factors, real *innovations, real *innovation_factors, real *densities, real *gains,
                            real *constants, real *scratch, int64_t numbers, int64_t rows, int64_t length, int64_t n,
                            int64_t p, int64_t shared, int64_t G_row, int64_t G_step, int64_t N_row, int64_t N_step,
                            int64_t offset_row, int64_t offset_step, int64_t mean_row, int64_t factor_row,
                            int64_t prior_mean_row, int64_t prior_factor_row, int64_t n_threads) {
    LOCAL(kalman) call = {
        .rows = rows, .length = length, .n = n, .p = p, .shared = shared, .G = {G, G_row, G_step},
        .N = {N, N_row, N_step}, .offset = {offset, offset_row, offset_step}, .y = {y, length * p, p},
        .mean = {mean, mean_row, 0}, .factor = {factor, factor_row, 0}, .prior_mean = {prior_mean, prior_mean_row, 0},
        .prior_factor = {prior_factor, prior_factor_row, 0}, .observed = observed, .starts = starts,
        .lengths = lengths, .scratch = scratch, .numbers = numbers, .means = means, .factors = factors,
        .innovations = innovations, .innovation_factors = innovation_factors, .densities = densities, .gains = gains,
        .constants = constants};
    if (rows == 1) parallel_for(1, n_threads, JOIN2(LOCAL(kalman_item), one), &call);
    else {
        if (shared) parallel_for(1, n_threads, JOIN2(LOCAL(kalman_covariances_item), one), &call);
        int64_t n_items = (rows + REAL_LANES - 1) / REAL_LANES;
        parallel_for(n_items, n_threads, JOIN2(LOCAL(kalman_item), lanes), &call);
    }
}

void EXPORT(kalman_backward)(const real *G, const real *W, const real *offset, const real *mean, const real *factor,
                             const real *prior_mean, const real *prior_factor, const uint8_t *observed,
                             const int64_t *lengths, const uint8_t *starts, real *means, real *factors,
                             real *innovations, real *innovation_factors, const real *grad_means,
                             const real *grad_innovations, const real *grad_densities, real *to_y, real *to_G,
                             real *to_W, real *to_offset, real *to_mean, real *to_P, real *to_prior_mean,
                             real *to_prior_P, real *scratch, int64_t numbers, int64_t rows, int64_t length, int64_t n,
                             int64_t p, int64_t shared, int64_t G_row, int64_t G_step, int64_t W_row, int64_t W_step,
                             int64_t offset_row, int64_t offset_step, int64_t mean_row, int64_t factor_row,
                             int64_t prior_mean_row, int64_t prior_factor_row, int64_t n_threads) {
    LOCAL(kalman_adjoint) call = {
        .of = {.rows = rows, .length = length, .n = n, .p = p, .shared = shared, .G = {G, G_row, G_step},
               .offset = {offset, offset_row, offset_step}, .mean = {mean, mean_row, 0},
               .factor = {factor, factor_row, 0}, .prior_mean = {prior_mean, prior_mean_row, 0},
               .prior_factor = {prior_factor, prior_factor_row, 0}, .observed = observed, .starts = starts,
               .lengths = lengths, .scratch = scratch, .numbers = numbers, .means = means, .factors = factors,
               .innovations = innovations, .innovation_factors = innovation_factors},
        .W = {W, W_row, W_step}, .grad_means = grad_means, .grad_innovations = grad_innovations,
        .grad_densities = grad_densities, .to_y = to_y, .to_G = to_G, .to_W = to_W, .to_offset = to_offset,
        .to_mean = to_mean, .to_P = to_P, .to_prior_mean = to_prior_mean, .to_prior_P = to_prior_P};
    if (rows == 1) parallel_for(1, n_threads, JOIN2(LOCAL(kalman_adjoint_item), one), &call);
    else {
        int64_t n_items = (rows + REAL_LANES - 1) / REAL_LANES;
        parallel_for(n_items, n_threads, JOIN2(LOCAL(kalman_adjoint_item), lanes), &call);
    }
}
