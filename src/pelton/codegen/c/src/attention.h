// Shared by the kernels of attention: masking the keys that a query does not read, and exponentials of rows of scores.
#pragma once
#include "product.h"

// A vector of scores of keys from c on; those of keys from `limit` on become minus infinity.
AI vf32 mask_from(vf32 x, idx c, idx limit) {
    const vi32 lane = {LANES};
    return lane + (int)c < (int)limit ? x : (vf32)-INFINITY;
}

// Replaces a row of `vectors` score vectors by e^(score - top), after raising `top` to the row's maximum. Returns their
// sum. The maximum may drop a NaN; the sum keeps it.
AI float exponentials(float *s, idx vectors, float *top) {
    vf32 maxima[2] = {bc_f32(*top), bc_f32(*top)}, sum = bc_f32(0);
    for (idx v = 0; v < vectors; v++) {
        const vf32 x = ld_f32(s + v * VL);
        maxima[v & 1] = x > maxima[v & 1] ? x : maxima[v & 1];
    }
    const vf32 t = bc_f32(*top = hmax_f32(maxima[0] > maxima[1] ? maxima[0] : maxima[1]));
    for (idx v0 = 0; v0 < vectors; v0 += CHAIN) {
        vf32 part = bc_f32(0);
        // one at a time: the constants of exp fill the registers
        for (idx v = v0; v < (v0 + CHAIN < vectors ? v0 + CHAIN : vectors); v++) {
            const vf32 e = f32_exp(ld_f32(s + v * VL) - t);
            st_f32(s + v * VL, e);
            part += e;
        }
        sum += part;
    }
    return hsum_f32(sum);
}
