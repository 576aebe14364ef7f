/* One kernel for all that tensors are stored as: define BODY as its "NAME.inc.h" and include this, in NAME.c.
 *
 * BODY is read three times: for float32, for bfloat16 that is computed in float32, and for float64.
 */
#define REAL_BITS 32
#include "real.h"
#define STORED_BF16 0
#include "stored.h"
#include BODY
#undef STORED_BF16

#include "real.h"
#define STORED_BF16 1
#include "stored.h"
#include BODY
#undef STORED_BF16
#undef REAL_BITS

#define REAL_BITS 64
#include "real.h"
#define STORED_BF16 0
#include "stored.h"
#include BODY
