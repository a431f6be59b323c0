// Depthwise convolution, channels-last: TW output pixels of one row × NV vectors of channels in registers; a tap is one
// multiply-add per pixel.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 17, C = 13, OH = 9, OW = 17, KH = 3, KW = 3, SH = 1, SW = 1, PT = 1, PL = 1, DH = 1,
             DW = 1, XN = 1989, XH = 221, XW = 13 };
// sizes are constants and the window is small: blocks at the edges leave out the taps outside of the row
#define EDGES 1
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { TW = 6, NV = 1, RB = 1 };
// </tactic>

#include "slide.h"

enum : idx { CP = (C + VL - 1) / VL * VL };
#define RBS ((OH + RB - 1) / RB)

// `count` pixels from q on, of row p, `vectors` of their channels. Where `edge` is set, taps are checked against the
// row's ends: at compile time where q and the sizes are constants.
AI void pixels(int count, int edge, int vectors, const args *a, const tail *t, const float *x, const float *w, idx b,
               idx p, idx q, idx c, int lanes) {
    vf32 acc[NV][TW];
    unroll (int j = 0; j < vectors; j++)
        unroll (int i = 0; i < count; i++) acc[j][i] = bc_f32(0);
    const idx top = p * SH - PT, left = q * SW - PL;
    const float *row = x + top * XH + left * XW + c;
    unroll (int kh = 0; kh < KH; kh++) {
        if ((u64)(top + kh * DH) >= H) continue;
        unroll (int kw = 0; kw < KW; kw++)
            unroll (int j = 0; j < vectors; j++) {
                const vf32 k = ld_f32(w + (kh * KW + kw) * CP + c + j * VL);
                unroll (int i = 0; i < count; i++)
                    if (!edge || (u64)(left + i * SW + kw * DW) < W)
                        acc[j][i] = vec_fma(ldn_f32(row + kh * DH * XH + (i * SW + kw * DW) * XW + j * VL, lanes), k,
                                            acc[j][i]);
            }
    }
    unroll (int i = 0; i < count; i++)
        unroll (int j = 0; j < vectors; j++) finish(t, acc[j][i], b, p * OW + q + i, c + j * VL, lanes);
}

// One pixel, its taps clipped to the feature map.
AI void border(int vectors, const args *a, const tail *t, const float *x, const float *w, idx b, idx p, idx q, idx c,
               int lanes) {
    vf32 acc[NV];
    unroll (int j = 0; j < vectors; j++) acc[j] = bc_f32(0);
    const idx top = p * SH - PT, left = q * SW - PL;
    for (idx kh = 0; kh < KH; kh++) {
        if ((u64)(top + kh * DH) >= H) continue;
        for (idx kw = 0; kw < KW; kw++) {
            const idx z = left + kw * DW;
            if ((u64)z < W)
                unroll (int j = 0; j < vectors; j++)
                    acc[j] = vec_fma(ldn_f32(x + (top + kh * DH) * XH + z * XW + c + j * VL, lanes),
                                     ld_f32(w + (kh * KW + kw) * CP + c + j * VL), acc[j]);
        }
    }
    unroll (int j = 0; j < vectors; j++) finish(t, acc[j], b, p * OW + q, c + j * VL, lanes);
}

AI void row(int vectors, const args *a, const tail *t, const float *x, const float *w, idx b, idx p, idx c, int lanes) {
#define PIXELS(count, edge, q) pixels(count, edge, vectors, a, t, x, w, b, p, q, c, lanes)
#define BORDER(q) border(vectors, a, t, x, w, b, p, q, c, lanes)
    EACH_BLOCK(PIXELS, BORDER);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx b = t / RBS, p0 = t % RBS * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        const float *x = (const float *)a[0].p + b * XN, *w = a[1].p;
        for (idx p = p0; p < p1; p++) {
            idx c = 0;
            for (; c + NV * VL <= C; c += NV * VL) row(NV, a, &T, x, w, b, p, c, VL);
            if (NV > 1 && C / VL % NV)
                for (; c + VL <= C; c += VL) row(1, a, &T, x, w, b, p, c, VL);
            if (C % VL) row(1, a, &T, x, w, b, p, c, C % VL);
        }
    }
}
