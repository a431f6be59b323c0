// Instance normalisation, channels-last: vectors of channels, each lane normalised over the PIXELS of its picture.
#include "vec.h"

// <region>
enum : long { BATCH = 2, PIXELS = 35, C = 37 };
#define EPSILON 1e-5f
#define X_AT(b) ((b) * PIXELS * C)
#define PIXEL_AT(r) ((r) * C)
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, long b, long r, long c, int n) { stn_f32(t->y + (b * PIXELS + r) * C + c, x, n); }
// </region>
// <tactic>
enum : long { NV = 4, CB = 37 };
// </tactic>

enum : long { CBS = (C + CB - 1) / CB, BLOCK = 512 };

// The sum over the pixels of (x - mean)^power, in blocks.
AI void moment(int power, int vectors, int lanes, const element *x, const vf32 *mean, vf32 *total) {
    unroll (int j = 0; j < vectors; j++) total[j] = bc_f32(0);
    for (long p0 = 0; p0 < PIXELS; p0 += BLOCK) {
        vf32 part[NV];
        unroll (int j = 0; j < vectors; j++) part[j] = bc_f32(0);
        for (long p = p0; p < (p0 + BLOCK < PIXELS ? p0 + BLOCK : PIXELS); p++)
            unroll (int j = 0; j < vectors; j++) {
                const vf32 v = LOAD(x + PIXEL_AT(p) + j * VL, lanes);
                part[j] = power == 1 ? part[j] + v : vec_fma(v - mean[j], v - mean[j], part[j]);
            }
        unroll (int j = 0; j < vectors; j++) total[j] += part[j];
    }
}

AI void channels(int vectors, int lanes, const tail *t, const element *x, long b, long c) {
    vf32 mean[NV], by[NV];
    x += c;
    moment(1, vectors, lanes, x, mean, mean);
    unroll (int j = 0; j < vectors; j++) mean[j] /= (float)PIXELS;
    moment(2, vectors, lanes, x, mean, by);
    unroll (int j = 0; j < vectors; j++) by[j] = 1 / f32_sqrt(by[j] / (float)PIXELS + EPSILON);
    for (long p = 0; p < PIXELS; p++)
        unroll (int j = 0; j < vectors; j++) finish(t, (LOAD(x + PIXEL_AT(p) + j * VL, lanes) - mean[j]) * by[j], b, p, c + j * VL, lanes);
}

void KERNEL(const args *a, long begin, long end, void *scratch) {
    const tail T = tail_open(a);
    for (long t = begin; t < end; t++) {
        const long b = t / CBS, c0 = t % CBS * CB, c1 = c0 + CB < C ? c0 + CB : C;
        const element *x = (const element *)a[0].p + X_AT(b);
        long c = c0;
        for (; c + NV * VL <= c1; c += NV * VL) channels(NV, VL, &T, x, b, c);
        if (NV > 1)
            for (; c + VL <= c1; c += VL) channels(1, VL, &T, x, b, c);
        if (C % VL && c < c1) channels(1, C % VL, &T, x, b, c);
    }
}
