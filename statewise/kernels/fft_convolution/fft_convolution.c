#include "parallel.h"

#define REAL_BITS 32
#include "real.h"
#include "fft_passes.inc.h"
#include "fft_ends.inc.h"
#include "fft_convolution.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "fft_passes.inc.h"
#include "fft_ends.inc.h"
#include "fft_convolution.inc.h"
