// LSTM over a whole sequence, given the input's part of all gates. Recurrent weights are packed in the order in which
// they are read: by blocks of units, in a block by units of the old state, then gates. They are read once per time step
// at 64 GB/s from Zen 3's L3. Prefetching 2 KiB ahead was 2 % faster at 512 units and 6 % slower at 128.
#include "recurrent.h"

// <region>
enum : idx { TIME = 5, DIRECTIONS = 1, BATCH = 4, H = 19, REVERSE = 0, PACKED = 1, R_D = 1444, R_R = 19, PEEPHOLES = 1,
             INPUT_FORGET = 0, GATES_T = 608, GATES_B = 152, H_D = 76, H_B = 19, C_D = 76, C_B = 19, P_D = 57,
             Y_T = 152, Y_D = 76, Y_B = 19, LAST_H_D = 76, LAST_H_B = 19, LAST_C_D = 76, LAST_C_B = 19 };
#define CLIP 0.f
#define HALF 0
typedef float weight;
typedef struct { const weight *r; const float *gates, *h, *c, *p; float *y, *last_h, *last_c, *own; } operands;
AI operands open(const args *a) {
    return (operands){ .r = a[0].p, .gates = a[1].p, .h = a[2].p, .c = a[3].p, .p = a[4].p,
                       .y = a[5].p, .last_h = a[6].p, .last_c = a[7].p };
}
// </region>
// <tactic>
enum : idx { MR = 1, UV = 2, BB = 4, SPLIT = 1 };
// </tactic>

enum : idx { UNITS = UV * VL, BLOCKS = (H + UNITS - 1) / UNITS, HP = BLOCKS * UNITS, NV = 4 * UV };
#define BBS ((BATCH + BB - 1) / BB)
#define PHASES (1 + TIME)

// One step of `rows` of the batch for the units from u on, `width` of them: operands point to the first row of this
// direction, rows of states are HP apart.
AI void step(const args *a, int rows, int width, const operands *o, const weight *w, const float *h, float *next,
             float *c, idx u) {
    vf32 acc[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int g = 0; g < 4; g++)
            unroll (int j = 0; j < UV; j++)
                acc[i][g * UV + j] = piece(o->gates + i * GATES_B + g * H + u + j * VL, width - j * VL);
    product_of(HALF, rows, NV, h, HP, w, H, &acc[0][0], 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) {
            const int left = width - j * VL;
            if (left <= 0) continue;
            const float *p = o->p + u + j * VL;
            float *at = c + i * HP + u + j * VL;
            const vf32 old = ld_f32(at);
            vf32 in = acc[i][j], out = acc[i][UV + j], forget = acc[i][2 * UV + j], cell = acc[i][3 * UV + j];
            if (PEEPHOLES) in = vec_fma(piece(p, left), old, in), forget = vec_fma(piece(p + 2 * H, left), old, forget);
            in = f32_sigmoid(clip(in, CLIP));
            forget = INPUT_FORGET ? 1 - in : f32_sigmoid(clip(forget, CLIP));
            cell = vec_fma(forget, old, in * f32_tanh(clip(cell, CLIP)));
            if (PEEPHOLES) out = vec_fma(piece(p + H, left), cell, out);
            const vf32 now = f32_sigmoid(clip(out, CLIP)) * f32_tanh(cell);
            st_f32(at, cell);
            st_f32(next + i * HP + u + j * VL, now);
            if (o->y) stn_f32(o->y + i * Y_B + u + j * VL, now, left < VL ? left : VL);
        }
}

AI void steps(const args *a, int width, idx rows, operands o, const weight *w, const float *h, float *next, float *c,
              idx u) {
    idx m = 0;
    for (; m + MR <= rows; m += MR, o.gates += MR * GATES_B, o.y += o.y ? MR * Y_B : 0)
        step(a, MR, width, &o, w, h + m * HP, next + m * HP, c + m * HP, u);
    if (m < rows) COUNTED(BATCH % MR, MR, step(a, COUNT, width, &o, w, h + m * HP, next + m * HP, c + m * HP, u));
}

// One part of a phase: of loading the initial states, or of the units at a time step.
AI void run(const args *a, const operands *all, idx d, idx b, float *states, idx phase, idx part) {
    const idx rows = b + BB < BATCH ? BB : BATCH - b, first = share(BLOCKS, part, SPLIT),
              last = share(BLOCKS, part + 1, SPLIT);
    float *c = states + 2 * BB * HP, *own = c + BB * HP;
    const weight *w = PACKED ? all->r + d * BLOCKS * H * NV * VL : (const weight *)own;
    if (phase == 0) {
        if (!PACKED) pack_weights(own, (const float *)all->r + d * R_D, R_R, 4, H, UNITS, first, last);
        load_state(states, HP, all->h + d * H_D + b * H_B, H_B, rows, H, first * UNITS, last * UNITS);
        load_state(c, HP, all->c + d * C_D + b * C_B, C_B, rows, H, first * UNITS, last * UNITS);
        if (PHASES > 1) return;
        if (all->last_h)
            save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, states, HP, rows, H, first * UNITS,
                       last * UNITS);
        if (all->last_c)
            save_state(all->last_c + d * LAST_C_D + b * LAST_C_B, LAST_C_B, c, HP, rows, H, first * UNITS,
                       last * UNITS);
        return;
    }
    const idx s = phase - 1, at = d == 1 || REVERSE ? TIME - 1 - s : s;
    float *h = states + (s & 1) * BB * HP, *next = states + (~s & 1) * BB * HP;
    const operands o = { .gates = all->gates + at * GATES_T + b * GATES_B + d * 4 * H, .p = all->p + d * P_D,
                         .y = all->y ? all->y + at * Y_T + d * Y_D + b * Y_B : 0 };
    for (idx k = first; k < last; k++) {
        const idx block = s & 1 ? first + last - 1 - k : k; // back and forth: what was read last is still in L2
        if (H % UNITS && block == BLOCKS - 1)
            steps(a, H % UNITS, rows, o, w + block * H * NV * VL, h, next, c, block * UNITS);
        else steps(a, UNITS, rows, o, w + block * H * NV * VL, h, next, c, block * UNITS);
    }
    if (phase < PHASES - 1) return;
    if (all->last_h)
        save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, next, HP, rows, H, first * UNITS, last * UNITS);
    if (all->last_c)
        save_state(all->last_c + d * LAST_C_D + b * LAST_C_B, LAST_C_B, c, HP, rows, H, first * UNITS, last * UNITS);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    RUN_TILES(3 * BB * HP + (PACKED ? 0 : BLOCKS * H * NV * VL))
}
