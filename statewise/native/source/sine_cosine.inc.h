/* Sine and cosine of x (high + low) quarter turns, for one `real`: a rest of at most half a quarter, taken as in
 * exponential.h, then Taylor's series, then the quadrant. They keep their digits up to SHIFT / 3 quarter turns, 6 million
 * radians in float32; beyond that they are at most 1, and of an infinity or a NaN they are NaN.
 */
INLINE void LOCAL(sine_cosine)(vreal x, vreal high, vreal low, vreal *sine, vreal *cosine) {
#if REAL_BITS == 32
    const real shift = SHIFT_F32;
    enum { terms = 5 };
    const real first_low = -4.3711390001862426e-8f; /* what sines[0] lost as a float */
#else
    const real shift = SHIFT_F64;
    enum { terms = 9 };
    const real first_low = 6.123233995736766e-17;
#endif
    /* (pi/2)^(2k+1) / (2k+1)! and (pi/2)^(2k) / (2k)!, with their signs */
    static const double sines[9] = {
        1.5707963267948966, -0.6459640975062462, 0.07969262624616703, -0.004681754135318687,
        0.00016044118478735975, -3.598843235212084e-06, 5.692172921967924e-08, -6.688035109811464e-10,
        6.066935731106192e-12};
    static const double cosines[10] = {
        1.0, -1.2337005501361697, 0.253669507901048, -0.020863480763352957,
        0.0009192602748394263, -2.5202042373060596e-05, 4.710874778818169e-07, -6.386603083791849e-09,
        6.565963114979468e-11, -5.294400200734619e-13};
    vreal shifted = x * high + shift;
    vreal rest = LOCAL(rest)(x, high, low, shifted - shift);
    /* beyond that range it may be anything */
#if defined(__AVX512F__) && REAL_BITS == 32
    rest = (vreal)_mm512_max_ps(_mm512_set1_ps(-0.75f), _mm512_min_ps(_mm512_set1_ps(0.75f), (__m512)rest)); /* NaN stays */
#else
    rest = (vreal)((vmask)rest & ~(vmask)(rest * rest > 1));
#endif
    vreal square = rest * rest;
    vreal s = v_broadcast((real)sines[terms - 1]), c = v_broadcast((real)cosines[terms]);
#pragma GCC unroll 9
    for (int k = terms - 2; k >= 1; k--) s = s * square + (real)sines[k];
#pragma GCC unroll 9
    for (int k = terms - 1; k >= 0; k--) c = c * square + (real)cosines[k];
    s = rest * (real)sines[0] + rest * (s * square + first_low);
    /* the quadrant: which of them it is, and two bits of signs */
    vmask quarter = (vmask)shifted, odd = -(quarter & 1);
    const vmask sign = (vmask)v_broadcast((real)-0.0);
    *sine = (vreal)((vmask)v_select(odd, c, s) ^ ((quarter << (REAL_BITS - 2)) & sign));
    *cosine = (vreal)((vmask)v_select(odd, s, c) ^ (((quarter + 1) << (REAL_BITS - 2)) & sign));
}
