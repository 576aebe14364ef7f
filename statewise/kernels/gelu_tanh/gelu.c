#include "parallel.h"

#define BODY "gelu.inc.h"
#include "every_stored.inc.h"
