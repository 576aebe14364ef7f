/* What the parts of decode.c share: the buffers between instructions, and shares of work.
 *
 * A step of a model is a list of instructions, made once by statewise/decoding/program.py. What each does and what its
 * operands are is declared in statewise/decoding/instructions.py and recurrences.py, of which the build makes instructions.h.
 *
 * A buffer holds one row of floats for each token that the step reads: one of each sequence, or several. It lies in `scratch`, which the caller
 * gives; a local one exists once for each thread, so that a thread can make what it needs itself and nobody waits.
 * Nothing else is written but the states and the logits, and every number of either is written by one thread, in an
 * order that does not depend on how many there are: the bits are the same on any number of threads.
 */
#ifndef STATEWISE_DECODE_PROGRAM_H
#define STATEWISE_DECODE_PROGRAM_H

#include "instructions.h"
#include "parallel.h"
#include "vector.h"

#define PARTS (BLOCK / LANES) /* vectors of a block */

typedef struct {
    const instruction *program;
    const buffer *buffers;
    float *scratch;
    int64_t n_instructions, shared_width, local_width; /* widths: floats of one sequence in all buffers of the kind */
    int64_t n_rows;          /* tokens that are read, those of a sequence one behind the other */
    const int64_t *rows;     /* (n_rows,) which sequence of the batch each is of */
    const int64_t *places;   /* (n_rows,) how many tokens after the old state it is; see state_before */
    const int64_t *tokens;   /* (n_rows,) */
    const uint8_t *restarts; /* (n_rows,) whether a document begins with the token: what came before counts as zero */
    int64_t n_sequences;     /* that take part */
    const int64_t *begins;   /* (n_sequences + 1,) where the tokens of each begin, and n_rows */
    int64_t batch;           /* sequences that the states are of */
    const int64_t *state;    /* addresses and counts; instructions name the first of theirs */
    float *logits;           /* (n_rows, n_logits) */
    int64_t n_logits;
    int64_t prefetch, ahead; /* how many bytes of weights before they are needed */
    int vnni;                /* whether AVX512-VNNI is there and wanted */
    int alike;               /* whether a token's numbers are those that it has alone, bit for bit */
    barrier meeting;
} decoding;

/* One thread of a step. */
typedef struct {
    const decoding *step;
    int64_t thread, n_threads;
} worker;

INLINE float *at(const worker *w, place where, int64_t row) {
    const decoding *step = w->step;
    if (where.buffer == LOGITS) return step->logits + row * step->n_logits + where.column;
    if (where.buffer == NOWHERE) return NULL;
    buffer b = step->buffers[where.buffer];
    int64_t before = b.local ? step->shared_width + w->thread * step->local_width : 0;
    return step->scratch + (before + b.offset) * step->n_rows + row * b.width + where.column;
}

typedef struct {
    int64_t first, end;
} range;

/* A thread's part of n channels, in whole blocks: the same for every instruction with the same n. */
INLINE range share_of(const worker *w, int64_t n) {
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    int64_t first = blocks * w->thread / w->n_threads * BLOCK, end = blocks * (w->thread + 1) / w->n_threads * BLOCK;
    return (range){first < n ? first : n, end < n ? end : n};
}

/* The position of a token in its document, `before` being that of the token before it in this call. */
INLINE int64_t position_of(const decoding *step, const int64_t *position, int64_t b, int64_t before) {
    if (step->restarts[b]) return 0;
    return b && step->rows[b - 1] == step->rows[b] ? before + 1 : position[step->rows[b]];
}

INLINE vf32 load_upto(const float *from, int64_t count) {
    return count >= LANES ? load_f32(from) : load_some_f32(from, count);
}
INLINE void store_upto(float *to, vf32 value, int64_t count) {
    if (count >= LANES)
        store_f32(to, value);
    else
        store_some_f32(to, value, count);
}
INLINE vf32 silu_f32(vf32 x) { return x * sigmoid_f32(x); }

#endif
