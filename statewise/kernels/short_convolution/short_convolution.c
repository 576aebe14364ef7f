#include "parallel.h"

#define BODY "short_convolution.inc.h"
#include "every_stored.inc.h"
