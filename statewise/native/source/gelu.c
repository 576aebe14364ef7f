#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#define STORED_BF16 0
#include "stored.h"
#include "gelu.inc.h"
#undef STORED_BF16

#include "real.h"
#define STORED_BF16 1
#include "stored.h"
#include "gelu.inc.h"
#undef STORED_BF16
#undef REAL_BITS

#define REAL_BITS 64
#include "real.h"
#define STORED_BF16 0
#include "stored.h"
#include "gelu.inc.h"
