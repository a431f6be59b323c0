// The plain recurrent network over a whole sequence, given the input's part of all units: tiles and weights as in
// lstm.c.
#include "recurrent.h"

// <region>
enum : idx { TIME = 5, DIRECTIONS = 1, BATCH = 4, H = 19, REVERSE = 0, PACKED = 1, R_D = 361, R_R = 19, GATES_T = 152,
             GATES_B = 38, H_D = 76, H_B = 19, Y_T = 152, Y_D = 76, Y_B = 19, LAST_H_D = 76, LAST_H_B = 19 };
#define CLIP 0.f
#define ACTIVE f32_tanh
typedef float weight;
enum : idx { HALF = 0 };
typedef struct { const weight *r; const float *gates, *h; float *y, *last_h, *own; } operands;
AI operands open(const args *a) {
    return (operands){ .r = a[0].p, .gates = a[1].p, .h = a[2].p, .y = a[3].p, .last_h = a[4].p };
}
// </region>
// <tactic>
enum : idx { MR = 1, UV = 8, BB = 4, SPLIT = 1 };
// </tactic>

enum : idx { UNITS = UV * VL, BLOCKS = (H + UNITS - 1) / UNITS, HP = BLOCKS * UNITS };
#define BBS ((BATCH + BB - 1) / BB)
#define PHASES (1 + TIME)

AI vf32 relu(vf32 x) { return f32_maximum(x, bc_f32(0)); }

// One step of `rows` of the batch for the units from u on, `width` of them.
AI void step(const args *a, int rows, int width, const float *gates, const weight *w, const float *h, float *next,
             float *y, idx u) {
    vf32 acc[MR][UV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) acc[i][j] = piece(gates + i * GATES_B + u + j * VL, width - j * VL);
    product_of(HALF, rows, UV, h, HP, w, H, &acc[0][0], 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) {
            const int left = width - j * VL;
            if (left <= 0) continue;
            const vf32 now = ACTIVE(clip(acc[i][j], CLIP));
            st_f32(next + i * HP + u + j * VL, now);
            if (y) stn_f32(y + i * Y_B + u + j * VL, now, left < VL ? left : VL);
        }
}

AI void steps(const args *a, int width, idx rows, const float *gates, const weight *w, const float *h, float *next,
              float *y, idx u) {
    idx m = 0;
    for (; m + MR <= rows; m += MR)
        step(a, MR, width, gates + m * GATES_B, w, h + m * HP, next + m * HP, y ? y + m * Y_B : 0, u);
    if (m < rows)
        COUNTED(BATCH % MR, MR,
                step(a, COUNT, width, gates + m * GATES_B, w, h + m * HP, next + m * HP, y ? y + m * Y_B : 0, u));
}

// One part of a phase: of loading the initial states, or of the units at a time step.
AI void run(const args *a, const operands *all, idx d, idx b, float *states, idx phase, idx part) {
    const idx rows = b + BB < BATCH ? BB : BATCH - b, first = share(BLOCKS, part, SPLIT),
              last = share(BLOCKS, part + 1, SPLIT);
    float *own = states + 2 * BB * HP;
    const weight *w = PACKED ? all->r + d * HP * H : (const weight *)own;
    if (phase == 0) {
        if (!PACKED) pack_weights(own, (const float *)all->r + d * R_D, R_R, 1, H, UNITS, first, last);
        load_state(states, HP, all->h + d * H_D + b * H_B, H_B, rows, H, first * UNITS, last * UNITS);
        if (PHASES == 1 && all->last_h)
            save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, states, HP, rows, H, first * UNITS,
                       last * UNITS);
        return;
    }
    const idx s = phase - 1, at = d == 1 || REVERSE ? TIME - 1 - s : s;
    float *h = states + (s & 1) * BB * HP, *next = states + (~s & 1) * BB * HP;
    const float *gates = all->gates + at * GATES_T + b * GATES_B + d * H;
    float *y = all->y ? all->y + at * Y_T + d * Y_D + b * Y_B : 0;
    for (idx k = first; k < last; k++) {
        const idx block = s & 1 ? first + last - 1 - k : k; // back and forth: L2 still holds the last reads
        if (H % UNITS && block == BLOCKS - 1)
            steps(a, H % UNITS, rows, gates, w + block * UNITS * H, h, next, y, block * UNITS);
        else steps(a, UNITS, rows, gates, w + block * UNITS * H, h, next, y, block * UNITS);
    }
    if (phase == PHASES - 1 && all->last_h)
        save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, next, HP, rows, H, first * UNITS, last * UNITS);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    RUN_TILES(2 * BB * HP + (PACKED ? 0 : HP * H))
}
