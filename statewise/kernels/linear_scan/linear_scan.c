#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#include "complex_lanes.inc.h"
#include "linear_scan.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "complex_lanes.inc.h"
#include "linear_scan.inc.h"
