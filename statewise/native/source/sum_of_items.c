#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#include "sum_of_items.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "sum_of_items.inc.h"
