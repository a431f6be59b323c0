// Depthwise transposed convolution, channels-last, gathered: a pixel's channels a few vectors at a time, over the taps
// that reach it.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, H = 5, W = 7, C = 13, OH = 11, OW = 15, KH = 3, KW = 3, SH = 2, SW = 2, PT = 0, PL = 0, DH = 1,
             DW = 1, XN = 455, XH = 91, XW = 13 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 2, RB = 1 };
// </tactic>

enum : idx { CP = (C + VL - 1) / VL * VL };
#define RBS ((OH + RB - 1) / RB)

AI void channels(int vectors, int lanes, const args *a, const tail *t, const float *x, const float *w, idx b, idx p,
                 idx q, idx c) {
    vf32 acc[NV];
    unroll (int j = 0; j < vectors; j++) acc[j] = bc_f32(0);
    for (idx kh = 0; kh < KH; kh++) {
        const idx down = p + PT - kh * DH;
        if (down % SH || (u64)(down / SH) >= H || down < 0) continue;
        for (idx kw = 0; kw < KW; kw++) {
            const idx right = q + PL - kw * DW;
            if (right % SW || (u64)(right / SW) >= W || right < 0) continue;
            unroll (int j = 0; j < vectors; j++)
                acc[j] = vec_fma(ldn_f32(x + down / SH * XH + right / SW * XW + c + j * VL, lanes),
                                 ld_f32(w + (kh * KW + kw) * CP + c + j * VL), acc[j]);
        }
    }
    unroll (int j = 0; j < vectors; j++) finish(t, acc[j], b, p * OW + q, c + j * VL, lanes);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx b = t / RBS, p0 = t % RBS * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        const float *x = (const float *)a[0].p + b * XN, *w = a[1].p;
        for (idx p = p0; p < p1; p++)
            for (idx q = 0; q < OW; q++) {
                idx c = 0;
                for (; c + NV * VL <= C; c += NV * VL) channels(NV, VL, a, &T, x, w, b, p, q, c);
                if (NV > 1)
                    for (; c + VL <= C; c += VL) channels(1, VL, a, &T, x, w, b, p, q, c);
                if (C % VL) channels(1, C % VL, a, &T, x, w, b, p, q, c);
            }
    }
}
