// Transposed convolution, channels-last, gathered: output pixels that are congruent modulo the strides are reached by
// the same taps, which read adjacent pixels. So each such phase is a convolution of stride one: MR pixels × NR output
// channels in registers.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, H = 5, W = 7, C = 3, OH = 11, OW = 15, OC = 19, GROUPS = 1, KH = 3, KW = 3, SH = 2, SW = 2,
             PT = 0, PL = 0, DH = 1, DW = 1, XN = 105, XH = 21, XW = 3, PACKED = 1, WG = 0, WO = 0, WC = 0, WH = 0,
             WW = 0 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, MB = 48, NB = 32 };
// </tactic>

enum : idx { NR = NV * VL, PANELS = (OC + NR - 1) / NR, PHASES = SH * SW, NBS = (PANELS * NR + NB - 1) / NB };
#define MAX_PIXELS (((OH + SH - 1) / SH) * ((OW + SW - 1) / SW)) // of a phase
#define MBS ((MAX_PIXELS + MB - 1) / MB)
static const float zeros[C];
#include "filters.h"

// The pixels of a phase: `rows` from row `top` on, `columns` in each from column `left` on, the strides apart.
typedef struct { idx top, left, rows, columns; } phase;
AI phase phase_of(const args *a, idx k) {
    const idx top = k / SW, left = k % SW;
    return (phase){ top, left, (OH - top + SH - 1) / SH, (OW - left + SW - 1) / SW };
}

AI void tile(bool edge, const args *a, const tail *t, const float *x, const float *w, phase f, idx b, idx p, idx end,
             idx g, idx n) {
    vf32 acc[MR][NV];
    idx row[MR], column[MR];
    unroll (int i = 0; i < MR; i++) {
        row[i] = (p + i) / f.columns;
        column[i] = (p + i) % f.columns;
        unroll (int j = 0; j < NV; j++) acc[i][j] = bc_f32(0);
    }
    for (idx kh = 0; kh < KH; kh++) {
        const idx down = f.top + PT - kh * DH;
        if (down % SH) continue;
        for (idx kw = 0; kw < KW; kw++) {
            const idx right = f.left + PL - kw * DW;
            if (right % SW) continue;
            const float *at[MR], *k = w + (kh * KW + kw) * C * NR;
            unroll (int i = 0; i < MR; i++) {
                const idx y = row[i] + down / SH, z = column[i] + right / SW;
                at[i] = p + i < end && (u64)y < H && (u64)z < W ? x + y * XH + z * XW : zeros;
            }
            for (idx c = 0; c < C; c++) {
                vf32 v[NV];
                unroll (int j = 0; j < NV; j++) v[j] = ld_f32(k + c * NR + j * VL);
                unroll (int i = 0; i < MR; i++) {
                    const vf32 s = bc_f32(at[i][c]);
                    unroll (int j = 0; j < NV; j++) acc[i][j] = vec_fma(s, v[j], acc[i][j]);
                }
            }
        }
    }
    unroll (int i = 0; i < MR; i++) {
        if (p + i >= end) continue;
        const idx r = (f.top + row[i] * SH) * OW + f.left + column[i] * SW;
        unroll (int j = 0; j < NV; j++) {
            const int lanes = !edge ? VL : OC % NR - j * VL;
            if (lanes > 0) finish(t, acc[i][j], b, r, g * OC + n + j * VL, lanes < VL ? lanes : VL);
        }
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    idx packed = -1;
    for (idx t = begin; t < end; t++) {
        const idx mb = t % MBS, nb = t / MBS % NBS, k = t / (MBS * NBS) % PHASES, g = t / (MBS * NBS * PHASES) % GROUPS,
                  b = t / (MBS * NBS * PHASES * GROUPS);
        const phase f = phase_of(a, k);
        const idx pixels = f.rows * f.columns, p0 = mb * MB, p1 = p0 + MB < pixels ? p0 + MB : pixels, n0 = nb * NB,
                  n1 = n0 + NB < OC ? n0 + NB : OC;
        const float *x = (const float *)a[0].p + b * XN + g * C,
                    *filters = (const float *)a[1].p + (g * PANELS * NR + n0) * (KH * KW * C);
        if (!PACKED) {
            if (packed != g * NBS + nb) pack_filters(a, (const float *)a[1].p + g * WG, scratch, n0, n1);
            packed = g * NBS + nb; // consecutive tiles share their filters
            filters = scratch;
        }
        for (idx n = n0; n < n1; n += NR) {
            const float *w = filters + (n - n0) * (KH * KW * C);
            if (OC % NR == 0 || n + NR <= OC)
                for (idx p = p0; p < p1; p += MR) tile(false, a, &T, x, w, f, b, p, p1, g, n);
            else
                for (idx p = p0; p < p1; p += MR) tile(true, a, &T, x, w, f, b, p, p1, g, n);
        }
    }
}
