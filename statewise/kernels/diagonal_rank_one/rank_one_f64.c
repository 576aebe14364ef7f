/* The diagonal-plus-rank-one kernel in float64; rank_one_chunk.h has the equation and the layout. */
#define REAL_BITS 64
#include "real.h"

#include "parallel.h"

#include "ssd_products.h"
#include "ssd_transpose.h"

#include "rank_one_chunk.h"

#include "rank_one_forward.h"
#include "rank_one_steps.h"

#include "rank_one_adjoint.h"
#include "rank_one_backward.h"
