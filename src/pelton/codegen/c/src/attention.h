// What the forms of attention share: which keys a query reads, and rows of scores turned into exponentials.
#pragma once
#include "product.h"

// Lanes c … of a row that reads the keys before `limit`: the others become minus infinity.
AI vf32 hide(vf32 x, idx c, idx limit) {
    const vi32 lane = {LANES};
    return lane + (int)c < (int)limit ? x : (vf32)-INFINITY;
}

// A row of `vectors` score vectors becomes e^(score - top), `top` at least as large as before. Returns the sum. Comparisons may drop a NaN: the sum keeps it.
AI float exponentials(float *s, idx vectors, float *top) {
    vf32 most[2] = {bc_f32(*top), bc_f32(*top)}, sum = bc_f32(0);
    for (idx v = 0; v < vectors; v++) {
        const vf32 x = ld_f32(s + v * VL);
        most[v & 1] = x > most[v & 1] ? x : most[v & 1];
    }
    const vf32 t = bc_f32(*top = hmax_f32(most[0] > most[1] ? most[0] : most[1]));
    for (idx v0 = 0; v0 < vectors; v0 += CHAIN) {
        vf32 part = bc_f32(0);
        for (idx v = v0; v < (v0 + CHAIN < vectors ? v0 + CHAIN : vectors); v++) {       // one at a time: the constants of exp fill the registers
            const vf32 e = f32_exp(ld_f32(s + v * VL) - t);
            st_f32(s + v * VL, e);
            part += e;
        }
        sum += part;
    }
    return hsum_f32(sum);
}
