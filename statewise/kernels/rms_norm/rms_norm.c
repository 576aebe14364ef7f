#include "parallel.h"

#define BODY "rms_norm.inc.h"
#include "every_stored.inc.h"
