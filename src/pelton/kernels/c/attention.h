// What the forms of attention share: which keys a query reads, and rows of scores turned into exponentials.
#pragma once
#include "vec.h"

// Lanes c … of a row that reads the keys before `limit`: the others become minus infinity.
AI vf32 hide(vf32 x, long c, long limit) {
    const vi32 lane = {LANES};
    return lane + (int)c < (int)limit ? x : (vf32)-INFINITY;
}

// A row of `vectors` score vectors becomes e^(score - top), `top` at least as large as before. Returns the sum. Comparisons may drop NaN: the sum keeps it.
AI float exponentials(float *s, long vectors, float *top) {
    vf32 most[2] = {bc_f32(*top), bc_f32(*top)}, sum[2] = {bc_f32(0), bc_f32(0)};
    long v = 0;
    for (; v + 2 <= vectors; v += 2)
        unroll (int j = 0; j < 2; j++) {
            const vf32 x = ld_f32(s + (v + j) * VL);
            most[j] = x > most[j] ? x : most[j];
        }
    if (v < vectors) {
        const vf32 x = ld_f32(s + v * VL);
        most[0] = x > most[0] ? x : most[0];
    }
    *top = hmax_f32(most[0] > most[1] ? most[0] : most[1]);
    const vf32 t = bc_f32(*top);
    for (v = 0; v + 2 <= vectors; v += 2)
        unroll (int j = 0; j < 2; j++) {
            const vf32 e = f32_exp(ld_f32(s + (v + j) * VL) - t);
            st_f32(s + (v + j) * VL, e);
            sum[j] += e;
        }
    if (v < vectors) {
        const vf32 e = f32_exp(ld_f32(s + v * VL) - t);
        st_f32(s + v * VL, e);
        sum[0] += e;
    }
    return hsum_f32(sum[0] + sum[1]);
}
