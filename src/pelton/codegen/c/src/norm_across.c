// Instance and group normalisation, channels-last: statistics of every channel over the PIXELS of its feature map,
// joined by groups of GROUP channels. The mean first, then the mean square of the differences from it.
#include "vec.h"

// <region>
enum : idx { BATCH = 2, PIXELS = 35, C = 36, GROUP = 3 };
#define EPSILON 1e-5f
#define X_AT(b) ((b) * PIXELS * C)
#define PIXEL_AT(r) ((r) * C)
typedef f32 element;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * PIXELS + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 4, CB = 36 };
// </tactic>

#define CBS ((C + CB - 1) / CB)
enum : idx { BLOCK = 4096 };

// Statistics of the channels of a task, from c0 on: arrays of CB floats and a vector more.
typedef struct { float *mean, *by; idx c0; } statistics;

// total = the sums over the pixels of (x - mean)^power, in blocks, of some vectors of channels.
AI void moment(const args *a, int power, int vectors, int lanes, const element *x, statistics k, float *total, idx c) {
    vf32 mean[NV], sum[NV];
    unroll (int j = 0; j < vectors; j++)
        sum[j] = bc_f32(0), mean[j] = power == 1 ? bc_f32(0) : ld_f32(k.mean + c - k.c0 + j * VL);
    for (idx p0 = 0; p0 < PIXELS; p0 += BLOCK) {
        vf32 part[NV];
        unroll (int j = 0; j < vectors; j++) part[j] = bc_f32(0);
        for (idx p = p0; p < (p0 + BLOCK < PIXELS ? p0 + BLOCK : PIXELS); p++)
            unroll (int j = 0; j < vectors; j++) {
                const vf32 v = LOAD(x + PIXEL_AT(p) + c + j * VL, lanes) - mean[j];
                part[j] = power == 1 ? part[j] + v : vec_fma(v, v, part[j]);
            }
        unroll (int j = 0; j < vectors; j++) sum[j] += part[j];
    }
    unroll (int j = 0; j < vectors; j++) st_f32(total + c - k.c0 + j * VL, sum[j]);
}

AI void write(const args *a, int vectors, int lanes, const tail *t, const element *x, statistics k, idx b, idx c) {
    vf32 mean[NV], by[NV];
    unroll (int j = 0; j < vectors; j++)
        mean[j] = ld_f32(k.mean + c - k.c0 + j * VL), by[j] = ld_f32(k.by + c - k.c0 + j * VL);
    for (idx p = 0; p < PIXELS; p++)
        unroll (int j = 0; j < vectors; j++)
            finish(t, (LOAD(x + PIXEL_AT(p) + c + j * VL, lanes) - mean[j]) * by[j], b, p, c + j * VL, lanes);
}

// Replaces the sums of channels by the mean over their group.
AI void join(const args *a, float *sums, idx channels) {
    for (idx g = 0; g < channels; g += GROUP) {
        float sum = 0;
        for (idx i = 0; i < GROUP; i++) sum += sums[g + i];
        for (idx i = 0; i < GROUP; i++) sums[g + i] = sum / (float)(GROUP * PIXELS);
    }
}

#define EACH(c0, c1, DO) do { \
    idx c = c0; \
    for (; c + NV * VL <= c1; c += NV * VL) { DO(NV, VL); } \
    if (NV > 1) \
        for (; c + VL <= c1; c += VL) { DO(1, VL); } \
    if (C % VL && c < c1) { DO(1, C % VL); } \
} while (0)

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx b = t / CBS, c0 = t % CBS * CB, c1 = c0 + CB < C ? c0 + CB : C;
        const element *x = (const element *)a[0].p + X_AT(b);
        const statistics k = { scratch, (float *)scratch + CB + VL, c0 };
#define SUMS(vectors, lanes) moment(a, 1, vectors, lanes, x, k, k.mean, c)
        EACH(c0, c1, SUMS);
        join(a, k.mean, c1 - c0);
#define SQUARES(vectors, lanes) moment(a, 2, vectors, lanes, x, k, k.by, c)
        EACH(c0, c1, SQUARES);
        join(a, k.by, c1 - c0);
        for (idx i = 0; i < c1 - c0; i += VL) st_f32(k.by + i, 1 / f32_sqrt(ld_f32(k.by + i) + EPSILON));
#define WRITE(vectors, lanes) write(a, vectors, lanes, &T, x, k, b, c)
        EACH(c0, c1, WRITE);
    }
}
