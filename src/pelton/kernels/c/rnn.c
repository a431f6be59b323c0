// The plain recurrent network over a whole sequence, given the input's part of all units: tiles and weights as in lstm.c.
#include "recurrent.h"

// <region>
enum : long { TIME = 5, BATCH = 4, H = 19, REVERSE = 0, PACKED = 1, R_D = 361, R_R = 19, GATES_T = 152, GATES_B = 38, H_D = 76, H_B = 19,
              Y_T = 152, Y_D = 76, Y_B = 19, LAST_H_D = 76, LAST_H_B = 19 };
#define CLIP 0.f
#define ACTIVE f32_tanh
#define HALF 0
typedef float weight;
typedef struct { const weight *r; const float *gates, *h; float *y, *last_h; } operands;
AI operands open(const args *a) { return (operands){ .r = a[0].p, .gates = a[1].p, .h = a[2].p, .y = a[3].p, .last_h = a[4].p }; }
// </region>
// <tactic>
enum : long { MR = 1, UV = 8, BB = 4 };
// </tactic>

enum : long { UNITS = UV * VL, BLOCKS = (H + UNITS - 1) / UNITS, HP = BLOCKS * UNITS };
#define BBS ((BATCH + BB - 1) / BB)

AI vf32 relu(vf32 x) { return f32_maximum(x, bc_f32(0)); }

// One step of `rows` of the batch for the units from u on, `width` of them.
AI void step(const args *a, int rows, int width, const float *given, const weight *w, const float *h, float *next, float *y, long u) {
    vf32 acc[MR][UV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) acc[i][j] = piece(given + i * GATES_B + u + j * VL, width - j * VL);
    product_of(HALF, rows, UV, h, HP, w, H, &acc[0][0], 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) {
            const int left = width - j * VL;
            if (left <= 0) continue;
            const vf32 now = ACTIVE(limited(acc[i][j], CLIP));
            st_f32(next + i * HP + u + j * VL, now);
            if (y) stn_f32(y + i * Y_B + u + j * VL, now, left < VL ? left : VL);
        }
}

AI void steps(const args *a, int width, long rows, const float *given, const weight *w, const float *h, float *next, float *y, long u) {
    long m = 0;
    for (; m + MR <= rows; m += MR) step(a, MR, width, given + m * GATES_B, w, h + m * HP, next + m * HP, y ? y + m * Y_B : 0, u);
    if (m < rows) COUNTED(BATCH % MR, MR, step(a, COUNT, width, given + m * GATES_B, w, h + m * HP, next + m * HP, y ? y + m * Y_B : 0, u));
}

void KERNEL(const args *table, long begin, long end, void *scratch) {
    OWN_ARGS(a, table);
    const operands all = open(a);
    for (long t = begin; t < end; t++) {
        const long d = t / BBS, b = t % BBS * BB, rows = b + BB < BATCH ? BB : BATCH - b;
        float *h = scratch, *next = h + BB * HP;
        const weight *w = all.r + d * (PACKED ? HP * H : R_D);
        if (!PACKED) pack_weights(next + BB * HP, (const float *)w, R_R, 1, H, UNITS), w = (const weight *)(next + BB * HP);
        load_state(h, HP, all.h + d * H_D + b * H_B, H_B, rows, H);
        for (long s = 0; s < TIME; s++) {
            const long at = d == 1 || REVERSE ? TIME - 1 - s : s;
            const float *given = all.gates + at * GATES_T + b * GATES_B + d * H;
            float *y = all.y ? all.y + at * Y_T + d * Y_D + b * Y_B : 0;
            for (long k = 0; k < BLOCKS; k++) {
                const long block = s & 1 ? BLOCKS - 1 - k : k;            // to and fro: what was read last is still in L2
                if (H % UNITS && block == BLOCKS - 1) steps(a, H % UNITS, rows, given, w + block * UNITS * H, h, next, y, block * UNITS);
                else steps(a, UNITS, rows, given, w + block * UNITS * H, h, next, y, block * UNITS);
            }
            float *old = h;
            h = next, next = old;
        }
        if (all.last_h) save_state(all.last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, h, HP, rows, H);
    }
}
