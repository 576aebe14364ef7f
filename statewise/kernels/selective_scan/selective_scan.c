#include "parallel.h"
#include "selective_scan.h"

#define STORED_BF16 0
#define REAL_BITS 32
#include "real.h"
#include "stored.h"
#include "sine_cosine.inc.h"
#include "selective_scan_math.inc.h"
#include "selective_scan_stage.inc.h"
#include "selective_scan.inc.h"
#undef REAL_BITS
#undef SCRATCH
#define REAL_BITS 64
#include "real.h"
#include "stored.h"
#include "sine_cosine.inc.h"
#include "selective_scan_math.inc.h"
#include "selective_scan_stage.inc.h"
#include "selective_scan.inc.h"
