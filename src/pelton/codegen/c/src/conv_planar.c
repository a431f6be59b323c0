// Direct convolution of a few planes, as the first layer of a network reads them from the caller's memory: the rows
// that RB output rows need are copied into scratch with the padding around them, so that no tile has an edge; then MR
// output pixels (running on over rows) × NR output channels in registers, one pass over (channel, kh, kw). A tap's
// offset from the first one is the same for all pixels.
#include "product.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 7, C = 3, OH = 9, OW = 7, OC = 19, KH = 3, KW = 3, SH = 1, SW = 1, PT = 1, PL = 1,
             DH = 1, DW = 1, XN = 189, XC = 63, XH = 7 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, RB = 2, NB = 32 };
// </tactic>

enum : idx { NR = NV * VL, NBS = (OC + NB - 1) / NB, TAPS = C * KH * KW, ROWS = (RB - 1) * SH + (KH - 1) * DH + 1,
              LONG = TAPS > CHAIN }; // the sum is made of partial sums, one for each plane, or kernel row
#define COLS ((OW - 1) * SW + (KW - 1) * DW + 1)
#define RBS ((OH + RB - 1) / RB)

// A zero-padded row of a plane.
AI void copy_row(const args *a, const float *x, float *to, bool inside) {
    const idx first = PL < COLS ? PL : COLS, end = inside ? (PL + W < COLS ? PL + W : COLS) : first;
    for (idx i = 0; i < first; i++) to[i] = 0;
    for (idx i = first; i < end; i++) to[i] = x[i - PL];
    for (idx i = end; i < COLS; i++) to[i] = 0;
}

// Up to four taps, which are one load for each pixel: it may reach past the last row.
AI void taps_by_lane(int rows, idx count, const float *const *at, idx offset, const float *w, vf32 (*acc)[NV]) {
    vf32 x[MR];
    unroll (int i = 0; i < rows; i++) x[i] = ld_f32(at[i] + offset);
    unroll (idx u = 0; u < 4; u++)
        if (u < count)
            unroll (int j = 0; j < NV; j++) {
                const vf32 v = ld_f32(w + u * NR + j * VL);
                unroll (int i = 0; i < rows; i++) acc[i][j] = vec_fma(bc_f32(x[i][u]), v, acc[i][j]);
            }
}

AI void taps(int rows, idx n, const float *const *at, idx offset, const float *w, vf32 (*acc)[NV]) {
    if (BY_LANE && DW == 1) {
        rolled for (idx k = 0; k + 4 <= n; k += 4) taps_by_lane(rows, 4, at, offset + k, w + k * NR, acc);
        if (n % 4) taps_by_lane(rows, n % 4, at, offset + n / 4 * 4, w + n / 4 * 4 * NR, acc);
    } else for (idx k = 0; k < n; k++) {
        vf32 v[NV];
        unroll (int j = 0; j < NV; j++) v[j] = ld_f32(w + k * NR + j * VL);
        unroll (int i = 0; i < rows; i++) {
            const vf32 x = bc_f32(at[i][offset + k * DW]);
            unroll (int j = 0; j < NV; j++) acc[i][j] = vec_fma(x, v[j], acc[i][j]);
        }
    }
}

// `rows` pixels from the block's pixel p on; q is the image's pixel that the block starts with.
AI void tile(int rows, bool edge, const args *a, const tail *t, const float *x, const float *w, idx b, idx q, idx p,
             idx n) {
    FREE_REGISTERS;
    vf32 acc[MR][NV], total[MR][NV];
    const float *at[MR];
    unroll (int i = 0; i < rows; i++) {
        at[i] = x + (p + i) / OW * SH * COLS + (p + i) % OW * SW;
        unroll (int j = 0; j < NV; j++) total[i][j] = acc[i][j] = bc_f32(0);
    }
    for (idx c = 0; c < C; c++)
        for (idx kh = 0; kh < KH; kh++, w += KW * NR) {
            taps(rows, KW, at, (c * ROWS + kh * DH) * COLS, w, acc);
            if (LONG && (KH * KW > CHAIN || kh == KH - 1)) {
                unroll (int i = 0; i < rows; i++)
                    unroll (int j = 0; j < NV; j++) total[i][j] += acc[i][j], acc[i][j] = bc_f32(0);
            }
        }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const int lanes = !edge ? VL : OC % NR - j * VL;
            if (lanes > 0) finish(t, LONG ? total[i][j] : acc[i][j], b, q + p + i, n + j * VL, lanes < VL ? lanes : VL);
        }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx y0 = t / NBS % RBS * RB, b = t / (NBS * RBS), n0 = t % NBS * NB, n1 = n0 + NB < OC ? n0 + NB : OC;
        const idx rows = y0 + RB < OH ? RB : OH - y0, pixels = rows * OW;
        const float *x = (const float *)a[0].p + b * XN;
        float *image = scratch;
        for (idx c = 0; c < C; c++)
            for (idx r = 0; r < (rows - 1) * SH + (KH - 1) * DH + 1; r++) {
                const idx y = y0 * SH - PT + r;
                copy_row(a, x + c * XC + y * XH, image + (c * ROWS + r) * COLS, (u64)y < H);
            }
        for (idx n = n0; n < n1; n += NR) {
            const float *w = (const float *)a[1].p + n * TAPS;
            if (OW < MR && pixels < MR) {
                if (OC % NR == 0 || n + NR <= OC)
                    COUNTED(pixels, MR, tile(COUNT, false, a, &T, image, w, b, y0 * OW, 0, n))
                else COUNTED(pixels, MR, tile(COUNT, true, a, &T, image, w, b, y0 * OW, 0, n))
            } else for (idx p = 0; p < pixels; p += MR) { // the last tile steps back and computes a few pixels again
                const idx from = p + MR <= pixels ? p : pixels - MR;
                if (OC % NR == 0 || n + NR <= OC) tile(MR, false, a, &T, image, w, b, y0 * OW, from, n);
                else tile(MR, true, a, &T, image, w, b, y0 * OW, from, n);
            }
        }
    }
}
