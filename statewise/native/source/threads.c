/* The threads of parallel.h, and what this processor can do. Compiled once, for every processor. */
#include "parallel.h"

#include <sched.h>
#include <stddef.h>

#define PUBLIC __attribute__((visibility("default")))

/* What the library was built from: the digest of build.py. */
PUBLIC const char statewise_sources[] = SOURCES;

typedef void (*parallel_region)(void (*body)(void *), void *data, unsigned n_threads, unsigned flags);
typedef int (*number)(void);

/* GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the runtime that PyTorch uses; NULL: one thread */
static parallel_region start_region = NULL;
static number get_thread = NULL;
static number get_started = NULL;

PUBLIC void statewise_set_threads(void *region, void *thread, void *started) {
    start_region = (parallel_region)region;
    get_thread = (number)thread;
    get_started = (number)started;
}

/* 2: AVX-512 as x86-64-v4 has it; 1: AVX2 as x86-64-v3 has it; 0: anything else */
PUBLIC int statewise_cpu_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512cd");
    return v4 ? 2 : v3 ? 1 : 0;
#else
    return 0;
#endif
}

typedef struct {
    team body;
    void *context;
} region;

/* Subnormal numbers, below 1.2e-38 in float32 and 2.2e-308 in float64, are zero in all kernels: what a system still has
 * of a long past ends in them, and where a product or sum has one, some processors take a hundred cycles for it. The mode
 * is a thread's, and is as it was when the kernel is done. */
#if defined(__x86_64__)
typedef unsigned mode;
static mode without_subnormals(void) {
    mode before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040u); /* flush to zero what comes out, take for zero what goes in */
    return before;
}
static void put_back(mode before) { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
typedef uint64_t mode;
static mode without_subnormals(void) {
    mode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | (UINT64_C(1) << 24)));
    return before;
}
static void put_back(mode before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
typedef int mode;
static mode without_subnormals(void) { return 0; }
static void put_back(mode before) { (void)before; }
#endif

static void run(team body, void *context, int64_t thread, int64_t n_started) {
    mode before = without_subnormals();
    body(context, thread, n_started);
    put_back(before);
}

static void enter(void *data) {
    const region *job = data;
    run(job->body, job->context, get_thread(), get_started());
}

void parallel_team(int64_t n_threads, team body, void *context) {
    if (n_threads <= 1 || start_region == NULL) {
        run(body, context, 0, 1);
        return;
    }
    region job = {body, context};
    start_region(enter, &job, (unsigned)n_threads, 0);
}

typedef struct {
    work body;
    void *context;
    int64_t n_items;
} loop;

static void share(void *context, int64_t thread, int64_t n_started) {
    const loop *all = context;
    int64_t first = all->n_items * thread / n_started, end = all->n_items * (thread + 1) / n_started;
    for (int64_t item = first; item < end; item++) all->body(all->context, item, thread);
}

void parallel_for(int64_t n_items, int64_t n_threads, work body, void *context) {
    loop all = {body, context, n_items};
    parallel_team(n_threads < n_items ? n_threads : n_items, share, &all);
}

void barrier_wait(barrier *where, int64_t n_threads) {
    if (n_threads <= 1) return;
    int32_t now = __atomic_load_n(&where->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&where->arrived, 1, __ATOMIC_ACQ_REL) == n_threads) {
        __atomic_store_n(&where->arrived, 0, __ATOMIC_RELAXED);
        __atomic_add_fetch(&where->generation, 1, __ATOMIC_RELEASE);
        return;
    }
    int spins = 0;
    while (__atomic_load_n(&where->generation, __ATOMIC_ACQUIRE) == now) {
        if (spins < 1000) { /* about ten microseconds */
            spins++;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        } else { /* another thread has the core that we wait for */
            sched_yield();
        }
    }
}
