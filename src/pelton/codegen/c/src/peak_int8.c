// Measures this CPU's peak of INT8: twelve chains of sums of four products of bytes, nothing loaded or stored between
// them. how: the products are added so, as in dot.h.
#include "dot.h"

enum : idx { CHAINS = 12, TURNS = 2048 }; // a tile is 8 · CHAINS · VL · TURNS operations

// The same value, which the compiler must take for another: it would multiply once for all sums.
AI vi32 another(vi32 x) {
#if defined __x86_64__
    __asm__("" : "+v"(x));
#elif defined __aarch64__
    __asm__("" : "+w"(x));
#endif
    return x;
}

AI void sums_of_bytes(int how, const args *a, idx begin, idx end) {
    const i8 *w = a[0].p;
    vi32 x = *(const vi32_in_memory *)(w + 4 * VL);
    for (idx t = begin; t < end; t++) {
        vi32 acc[CHAINS], sum = bc_i32(0);
        unroll (int i = 0; i < CHAINS; i++) acc[i] = bc_i32(i);
        for (idx k = 0; k < TURNS; k++)
            unroll (int i = 0; i < CHAINS; i++) acc[i] = dot(how, false, acc[i], x = another(x), w);
        unroll (int i = 0; i < CHAINS; i++) sum += acc[i];
        *(vi32_in_memory *)((i32 *)a[1].p + t * VL) = sum;
    }
}
