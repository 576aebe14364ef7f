/* What the forward and the backward pass of the selective scan share: sizes, and who computes which channels.
 *
 * A block of channels is the work of one thread for one row (of the batch). Its vectors never hold channels of two
 * groups of B and C, so that these are one number for all lanes; only where a group has fewer channels than a vector
 * has lanes does a vector hold several, and B and C are then a vector each.
 */
#ifndef STATEWISE_SELECTIVE_SCAN_H
#define STATEWISE_SELECTIVE_SCAN_H

#include <stdint.h>

#include "ahead.h"

#define BLOCK_CHANNELS 128
#define MAX_VECTORS 128 /* of a block: 2 BLOCK_CHANNELS / lanes, of which there are two or more */
#define SCAN_MAX_CHUNK 64

/* The numbers that Python hands over, in this order (kernels/selective_scan/native.py). Strides count numbers. */
typedef struct {
    int64_t rows, length, width, groups, states;
    int64_t is_complex, exact, softplus;
    int64_t chunk;      /* steps between kept states */
    int64_t row_shares; /* the backward pass sums the gradients of A, D and dt_bias over the rows of a share */
    int64_t scratch;    /* reals that each thread has */
    int64_t n_threads;
    int64_t u_bf16, dt_bf16, gate_bf16; /* 1: bfloat16, 0: the kernel's own precision; y and its gradient are as u */
    int64_t u_row, u_time, dt_row, dt_time, gate_row, gate_time, dy_row, dy_time;
} scan_sizes;

typedef struct {
    int64_t channel; /* the first */
    int64_t count;   /* lanes in use */
    int64_t group;   /* of B and C */
    int64_t last;    /* whether it is the last vector of its group in the block */
} scan_vector;

typedef struct {
    int64_t n_vectors;
    int64_t split;                /* which of the blocks of its group this is */
    int64_t per_lane;             /* lanes of several groups */
    int64_t first_group, n_groups; /* that the block reads */
    scan_vector vectors[MAX_VECTORS];
} scan_block;

/* how many blocks share a group; 1 where a block holds whole groups */
static inline int64_t scan_splits(const scan_sizes *sizes) {
    return (sizes->width / sizes->groups + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;
}

static inline int64_t scan_groups_per_block(const scan_sizes *sizes) {
    int64_t each = sizes->width / sizes->groups;
    return each > BLOCK_CHANNELS ? 1 : BLOCK_CHANNELS / each;
}

static inline int64_t scan_blocks(const scan_sizes *sizes) {
    int64_t per_block = scan_groups_per_block(sizes);
    return (sizes->groups + per_block - 1) / per_block * scan_splits(sizes);
}

/* channels first .. end - 1 as vectors; `each` channels are a group */
static inline void scan_add_vectors(scan_block *block, int64_t first, int64_t end, int64_t each, int64_t lanes) {
    for (int64_t channel = first; channel < end; channel += lanes) {
        int64_t count = end - channel < lanes ? end - channel : lanes;
        block->vectors[block->n_vectors++] = (scan_vector){channel, count, channel / each, channel + lanes >= end};
    }
}

static inline void scan_make_block(const scan_sizes *sizes, int64_t index, int64_t lanes, scan_block *block) {
    int64_t each = sizes->width / sizes->groups, splits = scan_splits(sizes), per_block = scan_groups_per_block(sizes);
    int64_t first = index / splits * per_block;
    block->n_vectors = 0;
    block->split = index % splits;
    block->per_lane = each < lanes && sizes->groups > 1;
    block->first_group = first;
    block->n_groups = sizes->groups - first < per_block ? sizes->groups - first : per_block;
    if (splits > 1) {
        int64_t from = block->split * BLOCK_CHANNELS;
        int64_t to = each - from < BLOCK_CHANNELS ? each : from + BLOCK_CHANNELS;
        scan_add_vectors(block, first * each + from, first * each + to, each, lanes);
    } else if (block->per_lane) {
        scan_add_vectors(block, first * each, (first + block->n_groups) * each, each, lanes);
    } else {
        for (int64_t group = first; group < first + block->n_groups; group++)
            scan_add_vectors(block, group * each, (group + 1) * each, each, lanes);
    }
}

#endif
