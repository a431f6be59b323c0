// Depthwise transposed convolution, channels-last, gathered: a pixel's channels a few vectors at a time, over the taps that reach it.
#include "vec.h"

// <region>
enum : long { BATCH = 1, H = 5, W = 7, C = 13, OH = 11, OW = 15, KH = 3, KW = 3, SH = 2, SW = 2, PT = 0, PL = 0, DH = 1, DW = 1, XN = 455, XH = 91, XW = 13 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, long b, long r, long c, int n) { stn_f32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : long { NV = 2, RB = 1 };
// </tactic>

enum : long { CP = (C + VL - 1) / VL * VL };
#define RBS ((OH + RB - 1) / RB)

AI void channels(int vectors, int lanes, const args *a, const tail *t, const float *x, const float *w, long b, long p, long q, long c) {
    vf32 acc[NV];
    unroll (int j = 0; j < vectors; j++) acc[j] = bc_f32(0);
    for (long kh = 0; kh < KH; kh++) {
        const long down = p + PT - kh * DH;
        if (down % SH || (unsigned long)(down / SH) >= H || down < 0) continue;
        for (long kw = 0; kw < KW; kw++) {
            const long right = q + PL - kw * DW;
            if (right % SW || (unsigned long)(right / SW) >= W || right < 0) continue;
            unroll (int j = 0; j < vectors; j++)
                acc[j] = vec_fma(ldn_f32(x + down / SH * XH + right / SW * XW + c + j * VL, lanes), ld_f32(w + (kh * KW + kw) * CP + c + j * VL), acc[j]);
        }
    }
    unroll (int j = 0; j < vectors; j++) finish(t, acc[j], b, p * OW + q, c + j * VL, lanes);
}

void KERNEL(const args *table, long begin, long end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (long t = begin; t < end; t++) {
        const long b = t / RBS, p0 = t % RBS * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        const float *x = (const float *)a[0].p + b * XN, *w = a[1].p;
        for (long p = p0; p < p1; p++)
            for (long q = 0; q < OW; q++) {
                long c = 0;
                for (; c + NV * VL <= C; c += NV * VL) channels(NV, VL, a, &T, x, w, b, p, q, c);
                if (NV > 1)
                    for (; c + VL <= C; c += VL) channels(1, VL, a, &T, x, w, b, p, q, c);
                if (C % VL) channels(1, C % VL, a, &T, x, w, b, p, q, c);
            }
    }
}
