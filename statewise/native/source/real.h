/* One kernel, two precisions: define REAL_BITS as 32 or 64 and include this, then the kernel's NAME.inc.h; then again.
 *
 * `real` is the number, `vreal` a vector of REAL_LANES of them, and EXPORT(name) the symbol of a public function:
 * name_f32_avx512 and so on, which `statewise.native.function(name, dtype, ...)` finds.
 */
#include "vector.h"

#undef real
#undef vreal
#undef vmask
#undef REAL_LANES
#undef v_load
#undef v_store
#undef v_load_some
#undef v_store_some
#undef v_broadcast
#undef v_select
#undef v_sum
#undef v_alone
#undef v_fused
#undef fused_one
#undef v_exp
#undef v_exp2
#undef v_exp2_product
#undef v_exp2_difference
#undef V_QUARTERS
#undef V_QUARTERS_LOW
#undef v_sigmoid
#undef v_softplus
#undef PRECISION

#if REAL_BITS == 32
#define real float
#define vreal vf32
#define vmask vi32
#define REAL_LANES LANES
#define PRECISION f32
#define v_load load_f32
#define v_store store_f32
#define v_load_some load_some_f32
#define v_store_some store_some_f32
#define v_broadcast broadcast_f32
#define v_select select_f32
#define v_sum sum_f32
#define v_alone alone_f32
#define v_fused fused_f32
#define fused_one fused_one_f32
#define v_exp exp_f32
#define v_exp2 exp2_f32
#define v_exp2_product exp2_product_f32
#define v_exp2_difference exp2_difference_f32
#define V_QUARTERS QUARTERS_F32
#define V_QUARTERS_LOW QUARTERS_F32_LOW
#define v_sigmoid sigmoid_f32
#define v_softplus softplus_f32
#elif REAL_BITS == 64
#define real double
#define vreal vf64
#define vmask vi64
#define REAL_LANES LANES_F64
#define PRECISION f64
#define v_load load_f64
#define v_store store_f64
#define v_load_some load_some_f64
#define v_store_some store_some_f64
#define v_broadcast broadcast_f64
#define v_select select_f64
#define v_sum sum_f64
#define v_alone alone_f64
#define v_exp exp_f64
#define v_exp2 exp2_f64
#define v_exp2_product exp2_product_f64
#define v_exp2_difference exp2_difference_f64
#define V_QUARTERS QUARTERS
#define V_QUARTERS_LOW QUARTERS_LOW
#define v_sigmoid sigmoid_f64
#define v_softplus softplus_f64
#else
#error "REAL_BITS must be 32 or 64"
#endif
