#include "parallel.h"
#include "powers.h"

#define REAL_BITS 32
#include "real.h"
#include "small_product.inc.h"
#include "vandermonde.inc.h"
#include "vandermonde_backward.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "small_product.inc.h"
#include "vandermonde.inc.h"
#include "vandermonde_backward.inc.h"
