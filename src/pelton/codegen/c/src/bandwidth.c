// Measures this CPU's memory bandwidth: eight runs of numbers summed side by side, each number read once, and a vector
// stored for every tile.
#include "vec.h"

// a tile reads RUNS · VL · TURNS numbers; on Zen 3 eight runs at once give 24 GB/s a core, a single one 20
enum : idx { RUNS = 8, TURNS = 2048 };

void KERNEL(const args *a, idx begin, idx end, void *scratch) {
    for (idx t = begin; t < end; t++) {
        const f32 *from = (const f32 *)a[0].p + t * RUNS * VL * TURNS;
        vf32 acc[RUNS] = {0}, sum = bc_f32(0);
        for (idx k = 0; k < TURNS; k++)
            unroll (int i = 0; i < RUNS; i++) acc[i] += ld_f32(from + (i * TURNS + k) * VL);
        unroll (int i = 0; i < RUNS; i++) sum += acc[i];
        st_f32((f32 *)a[1].p + t * VL, sum);
    }
}
