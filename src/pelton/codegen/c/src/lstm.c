// LSTM over a whole sequence, given the input's part of all gates. Recurrent weights are packed in the order in which
// they are read: by blocks of units, in a block by units of the old state, then gates. They are read once per time step
// at 64 GB/s from Zen 3's L3. Prefetching 2 KiB ahead was 2 % faster at 512 units and 6 % slower at 128. Weights of
// a byte are multiplied by states of two i16, each row in steps of its own; a block of them begins with their scales.
// QUADS: states that are rounded are bytes, four of which VNNI multiplies at once; behind the scales are then the sums
// of all weights of a unit. On 2 cores of a Sapphire Rapids a step over 2.4 MB of weights takes 32 µs by pairs, and 13
// to 17 µs by quads; of two rows, 65 and 21 µs.
#include "dot.h"
#include "recurrent.h"

// <region>
enum : idx { TIME = 5, DIRECTIONS = 1, BATCH = 4, H = 19, REVERSE = 0, PACKED = 1, R_D = 1444, R_R = 19, PEEPHOLES = 1,
             INPUT_FORGET = 0, ROUND = 0, QUADS = 0, GATES_T = 608, GATES_B = 152, H_D = 76, H_B = 19, C_D = 76,
             C_B = 19, P_D = 57, Y_T = 152, Y_D = 76, Y_B = 19, LAST_H_D = 76, LAST_H_B = 19, LAST_C_D = 76,
             LAST_C_B = 19 };
#define CLIP 0.f
#define BYTES 0
#define MOST 32767
typedef float weight;
enum : idx { HALF = 0 };
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
// Weights of a block: of a byte, pairs or quads of old units for every column, and scales and sums before them.
enum : idx { OLD = QUADS ? 4 : 2, BEFORE = QUADS ? 8 * NV * VL : 4 * NV * VL };
enum : idx { BLOCK = BYTES ? (H + OLD - 1) / OLD * OLD * NV * VL + BEFORE : H * NV * VL };
// ROUND: products read each row of the states as DynamicQuantizeLinear rounds it: one i16 for each, or a copy in f32,
// of which each part has its own.
enum : idx { COPY = ROUND && !BYTES ? BB * HP : 0, FEW = ROUND ? 1 : 2 };
#define BBS ((BATCH + BB - 1) / BB)
#define PHASES (1 + TIME)

// 255 steps from the least to the largest of a row of states, zero among them: their size, and how many are below zero.
typedef struct { float step, below; } range;

// A row of states as whole numbers of steps of `own`; behind all such rows, the remainders in 2¹⁵ths of a step.
// Elements behind the last state in its vector are zero.
AI void split(i16 *to, range *own, const float *h) {
    vf32 most = bc_f32(0);
    for (idx u = 0; u < H; u += VL) most = f32_maximum(most, f32_abs(ld_f32(h + u)));
    const float top = hmax_f32(most), times = top < 1e-30f ? 0 : MOST / top;
    own->step = top / MOST;
    for (idx u = 0; u < H; u += VL) {
        const vf32 x = ld_f32(h + u) * bc_f32(times), whole = f32_rint(x);
        *(vi16_in_memory *)(to + u) = cast_f32_i16(whole);
        *(vi16_in_memory *)(to + BB * HP + u) = cast_f32_i16(f32_rint((x - whole) * bc_f32(0x1p15f)));
    }
}

AI range range_of(const float *h) {
    vf32 low = bc_f32(0), high = bc_f32(0);
    for (idx u = 0; u < H; u += VL) low = f32_minimum(low, ld_f32(h + u)), high = f32_maximum(high, ld_f32(h + u));
    const float least = hmin_f32(low), width = hmax_f32(high) - least;
    const float step = (width < 1e-30f ? 1 : width) / 255; // a step below would be subnormal, which counts as zero
    return (range){ .step = step, .below = f32_rint(bc_f32(-least / step))[0] };
}

AI vf32 in_steps(range of, vf32 x) {
    x = f32_rint(x / bc_f32(of.step));
    return f32_minimum(f32_maximum(x, bc_f32(-of.below)), bc_f32(255 - of.below));
}

// A row of states, rounded: in steps of `own`, or as they are.
AI void round_in_steps(i16 *to, range *own, const float *h) {
    const range of = *own = range_of(h);
    for (idx u = 0; u < H; u += VL) *(vi16_in_memory *)(to + u) = cast_f32_i16(in_steps(of, ld_f32(h + u)));
}

// A row of states, rounded to steps above the least state: bytes from 0 to 255.
AI void round_to_bytes(u8 *to, range *own, const float *h) {
    const range of = *own = range_of(h);
    for (idx u = 0; u < H; u += VL)
        *(vu8_in_memory *)(to + u) = cast_f32_u8(in_steps(of, ld_f32(h + u)) + bc_f32(of.below));
}

AI void round_copy(float *to, const float *h) {
    const range of = range_of(h);
    for (idx u = 0; u < H; u += VL) st_f32(to + u, in_steps(of, ld_f32(h + u)) * bc_f32(of.step));
}

AI vi32 pair_at(const i16 *p) {
    i32 pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return bc_i32(pair);
}

// As product_of for weights of a byte and states that are split or rounded.
AI void product_of_bytes(int rows, const i16 *a, const range *own, const weight *block, vf32 *acc) {
    const i8 *w = (const i8 *)block + 4 * NV * VL;
    vi32 whole[MR][NV], rest[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) whole[i][j] = rest[i][j] = bc_i32(0);
    fourfold for (idx k = 0; k < H; k += 2, w += 2 * NV * VL)
        unroll (int i = 0; i < rows; i++) {
            const vi32 x = pair_at(a + i * HP + k), r = ROUND ? x : pair_at(a + (BB + i) * HP + k);
            unroll (int j = 0; j < NV; j++) {
                whole[i][j] = dot_pair(whole[i][j], x, w + 2 * j * VL);
                if (!ROUND) rest[i][j] = dot_pair(rest[i][j], r, w + 2 * j * VL);
            }
        }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const vf32 sum = vec_fma(cast_i32_f32(rest[i][j]), bc_f32(0x1p-15f), cast_i32_f32(whole[i][j]));
            acc[i * NV + j] += sum * (ld_f32((const float *)block + j * VL) * bc_f32(own[i].step));
        }
}

AI void product_of_quads(int rows, const u8 *a, const range *own, const weight *block, vf32 *acc) {
    const i8 *w = (const i8 *)block + BEFORE;
    vi32 whole[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) whole[i][j] = bc_i32(0);
    for (idx k = 0; k < H; k += 4, w += 4 * NV * VL)
        unroll (int i = 0; i < rows; i++) {
            const vi32 x = bc_bytes(a + i * HP + k, 4);
            unroll (int j = 0; j < NV; j++) whole[i][j] = dot(AT_ONCE, false, whole[i][j], x, w + 4 * j * VL);
        }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const vi32 below = bc_i32((i32)own[i].below) * ld_i32((const i32 *)block + NV * VL + j * VL);
            const vf32 scale = ld_f32((const float *)block + j * VL) * bc_f32(own[i].step);
            acc[i * NV + j] += cast_i32_f32(whole[i][j] - below) * scale;
        }
}

// One step of `rows` of the batch for the units from u on, `width` of them: operands point to the first row of this
// direction, rows of states are HP apart.
AI void step(const args *a, int rows, int width, const operands *o, const weight *w, const float *h, const i16 *few,
             const range *own, float *next, float *c, idx u) {
    vf32 acc[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int g = 0; g < 4; g++)
            unroll (int j = 0; j < UV; j++)
                acc[i][g * UV + j] = piece(o->gates + i * GATES_B + g * H + u + j * VL, width - j * VL);
    if (QUADS) product_of_quads(rows, (const u8 *)few, own, w, &acc[0][0]);
    else if (BYTES) product_of_bytes(rows, few, own, w, &acc[0][0]);
    else product_of(HALF, rows, NV, h, HP, w, H, &acc[0][0], 0, 0);
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

// Row m of the states in whole numbers, which are bytes in QUADS and i16 otherwise.
AI const i16 *row_of(const i16 *few, idx m) { return QUADS ? (const i16 *)((const u8 *)few + m * HP) : few + m * HP; }

AI void steps(const args *a, int width, idx rows, operands o, const weight *w, const float *h, const i16 *few,
              const range *own, float *next, float *c, idx u) {
    idx m = 0;
    for (; m + MR <= rows; m += MR, o.gates += MR * GATES_B, o.y += o.y ? MR * Y_B : 0)
        step(a, MR, width, &o, w, h + m * HP, row_of(few, m), own + m, next + m * HP, c + m * HP, u);
    if (m < rows)
        COUNTED(BATCH % MR, MR,
                step(a, COUNT, width, &o, w, h + m * HP, row_of(few, m), own + m, next + m * HP, c + m * HP, u));
}

// One part of a phase: of loading the initial states, or of the units at a time step.
AI void run(const args *a, const operands *all, idx d, idx b, float *states, idx phase, idx part) {
    const idx rows = b + BB < BATCH ? BB : BATCH - b, first = share(BLOCKS, part, SPLIT),
              last = share(BLOCKS, part + 1, SPLIT);
    float *c = states + 2 * BB * HP, *copy = c + BB * HP + part * COPY, *own = c + BB * HP + SPLIT * COPY;
    const weight *w = PACKED ? all->r + d * BLOCKS * BLOCK : (const weight *)own;
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
    i16 few[BYTES ? FEW * BB * HP : 1];
    range steps_of[BYTES ? BB : 1];
    for (idx m = 0; m < rows; m++) {
        if (QUADS) round_to_bytes((u8 *)few + m * HP, steps_of + m, h + m * HP);
        else if (BYTES && ROUND) round_in_steps(few + m * HP, steps_of + m, h + m * HP);
        else if (BYTES) split(few + m * HP, steps_of + m, h + m * HP);
        else if (ROUND) round_copy(copy + m * HP, h + m * HP);
    }
    const float *read = COPY ? copy : h;
    for (idx k = first; k < last; k++) {
        const idx block = s & 1 ? first + last - 1 - k : k; // back and forth: L2 still holds the last reads
        if (H % UNITS && block == BLOCKS - 1)
            steps(a, H % UNITS, rows, o, w + block * BLOCK, read, few, steps_of, next, c, block * UNITS);
        else steps(a, UNITS, rows, o, w + block * BLOCK, read, few, steps_of, next, c, block * UNITS);
    }
    if (phase < PHASES - 1) return;
    if (all->last_h)
        save_state(all->last_h + d * LAST_H_D + b * LAST_H_B, LAST_H_B, next, HP, rows, H, first * UNITS, last * UNITS);
    if (all->last_c)
        save_state(all->last_c + d * LAST_C_D + b * LAST_C_B, LAST_C_B, c, HP, rows, H, first * UNITS, last * UNITS);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    RUN_TILES(3 * BB * HP + SPLIT * COPY + (PACKED ? 0 : BLOCKS * H * NV * VL))
}
