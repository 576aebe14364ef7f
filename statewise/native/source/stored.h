/* What the long tensors of a kernel are stored as, where that may be narrower than what it computes in.
 *
 * Define STORED_BF16 as 0 or 1 after including real.h and include this: `stored` is the element, s_load and s_store
 * turn it into vectors of `real` and back. With bfloat16 the exported names end in _bf16 instead of _f32.
 */
#ifndef STATEWISE_STORED_H
#define STATEWISE_STORED_H
#include "vector.h"

INLINE vf32 load_some_bf16(const uint16_t *from, int64_t count) {
    uint16_t lanes[LANES] = {0};
    if (count > 0) memcpy(lanes, from, sizeof(uint16_t) * (size_t)count);
    return load_bf16(lanes);
}
INLINE void store_some_bf16(uint16_t *to, vf32 value, int64_t count) {
    uint16_t lanes[LANES];
    store_bf16(lanes, value);
    if (count > 0) memcpy(to, lanes, sizeof(uint16_t) * (size_t)count);
}
#endif

#undef stored
#undef s_load
#undef s_store
#undef s_load_some
#undef s_store_some

#if STORED_BF16
#undef PRECISION
#define PRECISION bf16
#define stored uint16_t
#define s_load load_bf16
#define s_store store_bf16
#define s_load_some load_some_bf16
#define s_store_some store_some_bf16
#else
#define stored real
#define s_load v_load
#define s_store v_store
#define s_load_some v_load_some
#define s_store_some v_store_some
#endif
