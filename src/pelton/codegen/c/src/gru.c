// GRU over a whole sequence, given the input's part of the gates z, r, n: tiles and weights as in lstm.c. Where the
// reset comes before the product, z and r of all units go first, then n, whose weights follow theirs in memory.
#include "recurrent.h"

// <region>
enum : idx { TIME = 5, DIRECTIONS = 1, BATCH = 4, H = 19, REVERSE = 0, PACKED = 1, R_D = 1083, R_R = 19,
             LINEAR_BEFORE_RESET = 0, GATES_T = 456, GATES_B = 114, B_D = 19, H_D = 76, H_B = 19, Y_T = 152, Y_D = 76,
             Y_B = 19, LAST_H_D = 76, LAST_H_B = 19 };
#define CLIP 0.f
typedef float weight;
enum : idx { HALF = 0 };
typedef struct { const weight *r; const float *gates, *b, *h; float *y, *last_h, *own; } operands;
AI operands open(const args *a) {
    return (operands){ .r = a[0].p, .gates = a[1].p, .b = a[2].p, .h = a[3].p, .y = a[4].p, .last_h = a[5].p };
}
// </region>
// <tactic>
enum : idx { MR = 1, UV = 2, BB = 4, SPLIT = 1 };
// </tactic>

// A pass computes GATES gates of blocks of UNITS units; the second one takes twice the units for its one gate.
enum : idx {
    LINEAR = LINEAR_BEFORE_RESET,
    GATES = LINEAR ? 3 : 2,
    UNITS = UV * VL,
    BLOCKS = (H + UNITS - 1) / UNITS,
    NEW = 2 * UNITS,
    NEW_BLOCKS = (H + NEW - 1) / NEW,
    HP = NEW_BLOCKS * NEW,
    FIRST = BLOCKS * UNITS * H * GATES,
    WEIGHTS = FIRST + (LINEAR ? 0 : HP * H)
};
#define BBS ((BATCH + BB - 1) / BB)
#define PASSES (LINEAR ? 1 : 2)
#define PHASES (1 + TIME * PASSES)

// of one time step, from a row of the batch on
typedef struct { const float *gates, *b, *h; float *next, *z, *reset, *y; } rows_of;

AI rows_of from(const args *a, rows_of o, idx m) {
    o.gates += m * GATES_B, o.h += m * HP, o.next += m * HP, o.z += m * HP, o.reset += m * HP;
    o.y += o.y ? m * Y_B : 0;
    return o;
}

AI void finish(const args *a, const rows_of *o, idx i, idx u, int left, vf32 z, vf32 fresh) {
    const vf32 old = ld_f32(o->h + i * HP + u), now = vec_fma(z, old - fresh, fresh);
    st_f32(o->next + i * HP + u, now);
    if (o->y) stn_f32(o->y + i * Y_B + u, now, left < VL ? left : VL);
}

// The first pass: z and r; all three gates where the reset comes after the product.
AI void step(const args *a, int rows, int width, rows_of o, const weight *w, idx u) {
    vf32 acc[MR][GATES * UV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) {
            const float *g = o.gates + i * GATES_B + u + j * VL;
            acc[i][j] = piece(g, width - j * VL), acc[i][UV + j] = piece(g + H, width - j * VL);
            if (LINEAR) acc[i][2 * UV + j] = piece(o.b + u + j * VL, width - j * VL);
        }
    product_of(HALF, rows, GATES * UV, o.h, HP, w, H, &acc[0][0], 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < UV; j++) {
            const int left = width - j * VL;
            const idx at = u + j * VL;
            if (left <= 0) continue;
            const vf32 z = f32_sigmoid(clip(acc[i][j], CLIP)), reset = f32_sigmoid(clip(acc[i][UV + j], CLIP));
            if (LINEAR) {
                const vf32 fresh = vec_fma(reset, acc[i][2 * UV + j], piece(o.gates + i * GATES_B + 2 * H + at, left));
                finish(a, &o, i, at, left, z, f32_tanh(clip(fresh, CLIP)));
            } else {
                st_f32(o.z + i * HP + at, z);
                st_f32(o.reset + i * HP + at, reset * ld_f32(o.h + i * HP + at));
            }
        }
}

// The second pass: n from the reset state.
AI void renew(const args *a, int rows, int width, rows_of o, const weight *w, idx u) {
    vf32 acc[MR][2 * UV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < 2 * UV; j++)
            acc[i][j] = piece(o.gates + i * GATES_B + 2 * H + u + j * VL, width - j * VL)
                        + piece(o.b + u + j * VL, width - j * VL);
    product_of(HALF, rows, 2 * UV, o.reset, HP, w, H, &acc[0][0], 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < 2 * UV; j++) {
            const int left = width - j * VL;
            if (left > 0)
                finish(a, &o, i, u + j * VL, left, ld_f32(o.z + i * HP + u + j * VL), f32_tanh(clip(acc[i][j], CLIP)));
        }
}

AI void steps(const args *a, bool second, int width, idx rows, rows_of o, const weight *w, idx u) {
    idx m = 0;
    for (; m + MR <= rows; m += MR)
        second ? renew(a, MR, width, from(a, o, m), w, u) : step(a, MR, width, from(a, o, m), w, u);
    if (m < rows)
        COUNTED(BATCH % MR, MR,
                second ? renew(a, COUNT, width, from(a, o, m), w, u) : step(a, COUNT, width, from(a, o, m), w, u));
}

// One part of a phase: of loading the initial states, or of a pass over the units at a time step.
AI void run(const args *a, const operands *all, idx d, idx b, float *states, idx phase, idx part) {
    const idx rows = b + BB < BATCH ? BB : BATCH - b, first = share(BLOCKS, part, SPLIT),
              last = share(BLOCKS, part + 1, SPLIT);
    const idx first_new = share(NEW_BLOCKS, part, SPLIT), last_new = share(NEW_BLOCKS, part + 1, SPLIT);
    const idx begin = LINEAR ? first * UNITS : first_new * NEW;
    const idx end = part + 1 < SPLIT ? (LINEAR ? last * UNITS : last_new * NEW) : HP;
    float *z = states + 2 * BB * HP, *reset = z + BB * HP, *own = states + (LINEAR ? 2 : 4) * BB * HP;
    const weight *w = PACKED ? all->r + d * WEIGHTS : (const weight *)own;
    if (phase == 0) {
        const float *r = (const float *)all->r + d * R_D;
        if (!PACKED) pack_weights(own, r, R_R, GATES, H, UNITS, first, last);
        if (!PACKED && !LINEAR) pack_weights(own + FIRST, r + 2 * H * R_R, R_R, 1, H, NEW, first_new, last_new);
        load_state(states, HP, all->h + d * H_D + b * H_B, H_B, rows, H, begin, end);
        if (PHASES == 1 && all->last_h)
            save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, states, HP, rows, H, begin, end);
        return;
    }
    const idx s = (phase - 1) / PASSES, at = d == 1 || REVERSE ? TIME - 1 - s : s;
    float *h = states + (s & 1) * BB * HP, *next = states + (~s & 1) * BB * HP;
    const rows_of o = { .gates = all->gates + at * GATES_T + b * GATES_B + d * 3 * H,
                        .b = all->b + d * B_D, .h = h, .next = next, .z = z, .reset = reset,
                        .y = all->y ? all->y + at * Y_T + d * Y_D + b * Y_B : 0 };
    if (LINEAR || (phase - 1) % PASSES == 0)
        for (idx k = first; k < last; k++) {
            const idx block = s & 1 ? first + last - 1 - k : k; // back and forth: L2 still holds the last reads
            if (H % UNITS && block == BLOCKS - 1)
                steps(a, false, H % UNITS, rows, o, w + block * UNITS * H * GATES, block * UNITS);
            else steps(a, false, UNITS, rows, o, w + block * UNITS * H * GATES, block * UNITS);
        }
    else
        for (idx block = first_new; block < last_new; block++) {
            if (H % NEW && block == NEW_BLOCKS - 1)
                steps(a, true, H % NEW, rows, o, w + FIRST + block * NEW * H, block * NEW);
            else steps(a, true, NEW, rows, o, w + FIRST + block * NEW * H, block * NEW);
        }
    if (phase == PHASES - 1 && all->last_h)
        save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, next, HP, rows, H, begin, end);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    RUN_TILES((LINEAR ? 2 : 4) * BB * HP + (PACKED ? 0 : WEIGHTS))
}
