/* The SSD kernel in float32; ssd_chunk.h has the equation and the layout. */
#define REAL_BITS 32
#include "real.h"

#include "parallel.h"

#include "ssd_products.h"
#include "ssd_transpose.h"

#include "ssd_chunk.h"

#include "ssd_forward.h"
#include "ssd_steps.h"

#include "ssd_backward.h"
#include "ssd_gradients.h"
