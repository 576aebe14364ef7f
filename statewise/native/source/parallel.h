/* Work on several cores, on the threads that PyTorch has already.
 *
 * No OpenMP runtime is linked: Python finds the one that PyTorch loaded and hands its entry points to
 * `statewise_set_threads` (threads.c). A second pool beside PyTorch's would cost up to twice the time.
 */
#ifndef STATEWISE_PARALLEL_H
#define STATEWISE_PARALLEL_H

#include <stdint.h>

/* Does one item. Results must not depend on `thread`, which is only good for choosing scratch memory: it lies in
 * 0 .. n_threads - 1, and no two items run at once with the same one. */
typedef void (*work)(void *context, int64_t item, int64_t thread);

/* body(context, item, thread) for every item below n_items, in contiguous shares, on up to n_threads threads. */
void parallel_for(int64_t n_items, int64_t n_threads, work body, void *context);

/* body(context, thread, n_started) once on each of the threads that start together, at most n_threads. */
typedef void (*team)(void *context, int64_t thread, int64_t n_started);
void parallel_team(int64_t n_threads, team body, void *context);

/* Waits until all n_threads of a team have come here. Zero-initialise it before the team starts. */
typedef struct {
    _Alignas(64) int32_t arrived;
    _Alignas(64) int32_t generation;
} barrier;
void barrier_wait(barrier *where, int64_t n_threads);

#endif
