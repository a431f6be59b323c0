// Measures the bandwidth of this CPU's caches: as bandwidth.c, but tile after tile reads the same few blocks again.
#include "vec.h"

enum : idx { RUNS = 8, TURNS = 16, REPEATS = 32 }; // a tile reads REPEATS blocks of RUNS · VL · TURNS numbers

// a[2].d: the number of blocks
void KERNEL(const args *a, idx begin, idx end, void *scratch) {
    const idx blocks = a[2].d;
    for (idx t = begin; t < end; t++) {
        vf32 acc[RUNS] = {0}, sum = bc_f32(0);
        for (idx r = 0; r < REPEATS; r++) {
            const f32 *from = (const f32 *)a[0].p + (t * REPEATS + r) % blocks * RUNS * VL * TURNS;
            for (idx k = 0; k < TURNS; k++)
                unroll (int i = 0; i < RUNS; i++) acc[i] += ld_f32(from + (i * TURNS + k) * VL);
        }
        unroll (int i = 0; i < RUNS; i++) sum += acc[i];
        st_f32((f32 *)a[1].p + t * VL, sum);
    }
}
