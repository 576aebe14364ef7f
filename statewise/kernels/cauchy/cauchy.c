#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#include "small_product.inc.h"
#include "cauchy.inc.h"
#include "cauchy_backward.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "small_product.inc.h"
#include "cauchy.inc.h"
#include "cauchy_backward.inc.h"
