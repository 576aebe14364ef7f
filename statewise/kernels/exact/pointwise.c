/* y = f(x), number by number: what a number becomes depends on nothing but itself, wherever it lies in memory.
 *
 * PyTorch's own functions go over the last numbers of an array, and of every thread's share, with other code than over
 * the rest.
 */
#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#include "pointwise.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "pointwise.inc.h"
