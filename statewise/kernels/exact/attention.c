/* Softmax attention whose sums go over the keys one by one, and its adjoint; see attention.inc.h. */
#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#include "attention.inc.h"
