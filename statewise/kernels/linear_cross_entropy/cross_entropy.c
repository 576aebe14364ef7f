#include "parallel.h"

#define BODY "cross_entropy.inc.h"
#include "every_stored.inc.h"
