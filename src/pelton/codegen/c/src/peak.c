// Measures this CPU's peak arithmetic: twelve chains of fused multiply-adds in registers, nothing loaded or stored
// between them.
#include "vec.h"

enum : idx { CHAINS = 12, TURNS = 2048 }; // a tile is 2 · CHAINS · VL · TURNS floating point operations

void KERNEL(const args *a, idx begin, idx end, void *scratch) {
    const f32 *from = a[0].p;
    const vf32 x = bc_f32(from[0]), y = bc_f32(from[1]);
    for (idx t = begin; t < end; t++) {
        vf32 acc[CHAINS], sum = bc_f32(0);
        unroll (int i = 0; i < CHAINS; i++) acc[i] = bc_f32(i);
        for (idx k = 0; k < TURNS; k++)
            unroll (int i = 0; i < CHAINS; i++) acc[i] = vec_fma(acc[i], x, y);
        unroll (int i = 0; i < CHAINS; i++) sum += acc[i];
        st_f32((f32 *)a[1].p + t * VL, sum);
    }
}
