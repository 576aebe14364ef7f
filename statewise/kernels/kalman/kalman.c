/* -O3 takes the compiler twice as long here, makes twice the code, and saves a fifth of the time of a single series. */
#pragma GCC optimize("O2")
#include "parallel.h"

enum { KALMAN_ALL, KALMAN_COVARIANCES, KALMAN_MEANS };

#define REAL_BITS 32
#include "real.h"
#include "kalman.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "kalman.inc.h"
