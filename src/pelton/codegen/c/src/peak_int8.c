// Measures this CPU's peak of INT8: twelve chains of sums of four products of bytes, nothing loaded or stored between
// them. DOT: how the products are added, as in dot.h.
#include "dot.h"

enum : idx { CHAINS = 12, TURNS = 2048 }; // a tile is 8 · CHAINS · VL · TURNS operations

void KERNEL(const args *a, idx begin, idx end, void *scratch) {
    const i8 *w = a[0].p;
    const vi32 x = *(const vi32_in_memory *)(w + 4 * VL);
    for (idx t = begin; t < end; t++) {
        vi32 acc[CHAINS], sum = bc_i32(0);
        unroll (int i = 0; i < CHAINS; i++) acc[i] = bc_i32(i);
        for (idx k = 0; k < TURNS; k++)
            unroll (int i = 0; i < CHAINS; i++) acc[i] = dot(DOT, false, acc[i], x, w);
        unroll (int i = 0; i < CHAINS; i++) sum += acc[i];
        *(vi32_in_memory *)((i32 *)a[1].p + t * VL) = sum;
    }
}
