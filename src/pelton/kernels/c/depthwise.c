// Depthwise convolution, channels-last: TW output pixels of one row × VL channels in registers; a tap is one multiply-add per pixel.
#include "vec.h"

// <region>
enum : long { BATCH = 1, H = 9, W = 17, C = 13, OH = 9, OW = 17, KH = 3, KW = 3, SH = 1, SW = 1, PT = 1, PL = 1, DH = 1, DW = 1, XN = 1989, XH = 221, XW = 13 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, long b, long r, long c, int n) { stn_f32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : long { TW = 6, RB = 1 };
// </tactic>

enum : long { CP = (C + VL - 1) / VL * VL };
#define RBS ((OH + RB - 1) / RB)

// Pixels q … q + count of row p, whose taps all lie inside of the row's width.
AI void inner(int count, const args *a, const tail *t, const float *x, const float *w, long b, long p, long q, long c, int lanes) {
    vf32 acc[TW];
    unroll (int i = 0; i < count; i++) acc[i] = bc_f32(0);
    const long top = p * SH - PT;
    const float *row = x + top * XH + (q * SW - PL) * XW + c;
    unroll (int kh = 0; kh < KH; kh++) {
        if ((unsigned long)(top + kh * DH) >= H) continue;
        unroll (int kw = 0; kw < KW; kw++) {
            const vf32 k = ld_f32(w + (kh * KW + kw) * CP + c);
            unroll (int i = 0; i < count; i++) acc[i] = vec_fma(ldn_f32(row + kh * DH * XH + (i * SW + kw * DW) * XW, lanes), k, acc[i]);
        }
    }
    unroll (int i = 0; i < count; i++) finish(t, acc[i], b, p * OW + q + i, c, lanes);
}

// One pixel, its taps clipped to the picture.
AI void border(const args *a, const tail *t, const float *x, const float *w, long b, long p, long q, long c, int lanes) {
    vf32 acc = bc_f32(0);
    const long top = p * SH - PT, left = q * SW - PL;
    for (long kh = 0; kh < KH; kh++) {
        if ((unsigned long)(top + kh * DH) >= H) continue;
        for (long kw = 0; kw < KW; kw++) {
            const long z = left + kw * DW;
            if ((unsigned long)z < W) acc = vec_fma(ldn_f32(x + (top + kh * DH) * XH + z * XW + c, lanes), ld_f32(w + (kh * KW + kw) * CP + c), acc);
        }
    }
    finish(t, acc, b, p * OW + q, c, lanes);
}

#define Q0 ((PL + SW - 1) / SW < OW ? (PL + SW - 1) / SW : OW)             // first pixel that reads nothing left of the picture
#define LAST (W - 1 - (KW - 1) * DW + PL)
#define Q2 (LAST < 0 ? 0 : LAST / SW + 1)
#define Q1 (Q2 < Q0 ? Q0 : Q2 < OW ? Q2 : OW)                             // first that reads past the right edge

AI void row(const args *a, const tail *t, const float *x, const float *w, long b, long p, long c, int lanes) {
    const long q0 = Q0, q1 = Q1;
    for (long q = 0; q < q0; q++) border(a, t, x, w, b, p, q, c, lanes);
    long q = q0;
    for (; q + TW <= q1; q += TW) inner(TW, a, t, x, w, b, p, q, c, lanes);
    COUNTED((Q1 - Q0) % TW, TW, inner(COUNT, a, t, x, w, b, p, q, c, lanes));
    for (q += (Q1 - Q0) % TW; q < OW; q++) border(a, t, x, w, b, p, q, c, lanes);
}

void KERNEL(const args *table, long begin, long end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (long t = begin; t < end; t++) {
        const long b = t / RBS, p0 = t % RBS * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        const float *x = (const float *)a[0].p + b * XN, *w = a[1].p;
        for (long p = p0; p < p1; p++) {
            long c = 0;
            for (; c + VL <= C; c += VL) row(a, &T, x, w, b, p, c, VL);
            if (C % VL) row(a, &T, x, w, b, p, c, C % VL);
        }
    }
}
