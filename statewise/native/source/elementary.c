#define REAL_BITS 32
#include "real.h"
#include "sine_cosine.inc.h"
#include "elementary.inc.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "real.h"
#include "sine_cosine.inc.h"
#include "elementary.inc.h"

/* says that the library holds this instruction set */
__attribute__((visibility("default"))) const int JOIN2(statewise_built, ISA) = 1;

/* there and back through bfloat16, vectors and single numbers */
void EXPORT_PLAIN(elementary_bf16)(const float *x, uint16_t *y, float *back, int64_t length) {
    int64_t i = 0;
    for (; i + LANES <= length; i += LANES) store_bf16(y + i, load_f32(x + i));
    for (; i < length; i++) y[i] = bf16_of_float(x[i]);
    for (i = 0; i + LANES <= length; i += LANES) store_f32(back + i, load_bf16(y + i));
    for (; i < length; i++) back[i] = float_of_bf16(y[i]);
}
