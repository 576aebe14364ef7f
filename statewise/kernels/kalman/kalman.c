#include "parallel.h"

enum { KALMAN_ALL, KALMAN_COVARIANCES, KALMAN_MEANS };

#define REAL_BITS 32
#include "real.h"
#include "kalman.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "kalman.inc.h"
