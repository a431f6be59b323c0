// Regions of interest, channels-last: a bin is the mean or the maximum of points between the elements of a feature map,
// evenly spaced in the bin, or the largest element that it touches. Positions of points are computed in f64; those
// outside of the feature map, however many, are skipped at once.
#include "vec.h"

// <region>
enum : idx { C = 13, H = 9, W = 11, N = 2, PH = 2, PW = 3, SAMPLES = 2, XN = 1287, XH = 143, XW = 13, RN = 4, RC = 1,
             BN = 1 };
#define SCALE 1.0
#define OFFSET 0.5
#define LEAST (-1e300)
#define TOUCHED 0
#define LARGEST 0
typedef f32 element;
typedef vf32 vec;
typedef i64 index;
#define LOAD(p, n) ldn_f32(p, n)
#define MAXIMUM(a, b) f32_maximum(a, b)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[3].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * PH * PW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 2 };
// </tactic>

#define FAR 1e15 // positions are clamped to it

AI double clamp(double x, double low, double high) { return x > low ? x < high ? x : high : low; } // NaN is low
AI double floor_of(double x) { x = clamp(x, -FAR, FAR); return (double)((idx)x - (x < (double)(idx)x)); }
AI double ceil_of(double x) { return -floor_of(-x); }
AI double round_away(double x) { return x < 0 ? -floor_of(.5 - x) : floor_of(x + .5); }

// The points of one axis of a bin: from first on, `step` apart; those from `low` to before `high` may be inside of the
// feature map.
typedef struct { double first, step, count; idx low, high; } points;

AI points along(double begin, double end, idx bins, idx i, idx size) {
    if (!size) return (points){ 0, 1, 1, 0, 0 };
    if (TOUCHED) {
        const double start = round_away(begin), extent = round_away(end) - start + 1,
                     bin = (extent > 1 ? extent : 1) / (double)bins;
        return (points){ 0, 1, 1, (idx)clamp(start + floor_of((double)i * bin), 0, (double)size),
                         (idx)clamp(start + ceil_of((double)(i + 1) * bin), 0, (double)size) };
    }
    const double extent = end - begin > LEAST ? end - begin : LEAST, bin = extent / (double)bins;
    const double count = SAMPLES ? (double)SAMPLES : clamp(ceil_of(bin), 0, FAR), step = count > 0 ? bin / count : 0,
                 first = begin + bin * (double)i;
    if (!(step > 0 || step < 0)) return (points){ first, 0, count, 0, (idx)count };
    const double near = step > 0 ? -1 : (double)size, far = step > 0 ? (double)size : -1;
    return (points){ first, step, count, (idx)clamp(floor_of((near - first) / step) - 1, 0, count),
                     (idx)clamp(floor_of((far - first) / step) + 2, 0, count) };
}

// The elements that point k is between and the weight of the second one; false where it is outside of the feature map.
typedef struct { idx low, high; float by; } between;
AI bool locate(const points *p, idx k, idx size, between *at) {
    double x = p->first + p->step * ((double)k + .5);
    if (!(x >= -1 && x <= (double)size)) return false;
    x = clamp(x, 0, (double)(size - 1));
    at->low = (idx)x, at->high = at->low + 1 < size ? at->low + 1 : size - 1, at->by = (float)(x - (double)at->low);
    return true;
}

AI void bin(int vectors, int n, const args *a, const tail *t, const element *x, const points *rows,
            const points *columns, idx r, idx at, idx c) {
    vec v[NV];
    const double all = rows->count * columns->count;
    idx visited = 0;
    unroll (int j = 0; j < vectors; j++) v[j] = (vec)(LARGEST && !TOUCHED ? -__builtin_inff() : 0);
    for (idx i = rows->low; i < rows->high; i++) {
        between y = { i, i, 0 };
        if (!TOUCHED && !locate(rows, i, H, &y)) continue;
        for (idx k = columns->low; k < columns->high; k++) {
            between z = { k, k, 0 };
            if (!TOUCHED && !locate(columns, k, W, &z)) continue;
            const element *top = x + y.low * XH + c, *bottom = x + y.high * XH + c;
            const vec one = (vec)((1 - y.by) * (1 - z.by)), two = (vec)((1 - y.by) * z.by),
                      three = (vec)(y.by * (1 - z.by)), four = (vec)(y.by * z.by);
            unroll (int j = 0; j < vectors; j++) {
                const vec p = LOAD(top + z.low * XW + j * VL, n);
                if (TOUCHED) {
                    v[j] = visited ? MAXIMUM(v[j], p) : p;
                    continue;
                }
                const vec q = two * LOAD(top + z.high * XW + j * VL, n),
                          s = three * LOAD(bottom + z.low * XW + j * VL, n),
                          u = four * LOAD(bottom + z.high * XW + j * VL, n);
                v[j] = LARGEST ? MAXIMUM(v[j], MAXIMUM(MAXIMUM(one * p, q), MAXIMUM(s, u)))
                               : v[j] + ((one * p + q) + (s + u));
            }
            visited++;
        }
    }
    unroll (int j = 0; j < vectors; j++) {
        if (!TOUCHED && LARGEST && (double)visited < (all > 1 ? all : 1)) v[j] = MAXIMUM(v[j], (vec)0);
        if (!TOUCHED && !LARGEST) v[j] *= (vec)(float)(1 / (all > 1 ? all : 1));
        finish(t, v[j], r, at, c + j * VL, n);
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx r = t / PH, i = t % PH;
        const float *roi = (const float *)a[1].p + r * RN;
        const i64 given = ((const index *)a[2].p)[r * BN], wrapped = given < 0 ? given + N : given;
        const element *x = (const element *)a[0].p + (wrapped < 0 ? 0 : wrapped < N ? wrapped : N - 1) * XN;
        const points rows = along((double)roi[RC] * SCALE - OFFSET, (double)roi[3 * RC] * SCALE - OFFSET, PH, i,
                                  N ? H : 0);
        for (idx j = 0; j < PW; j++) {
            const points columns = along((double)roi[0] * SCALE - OFFSET, (double)roi[2 * RC] * SCALE - OFFSET, PW, j,
                                         W);
            idx c = 0;
            for (; c + NV * VL <= C; c += NV * VL) bin(NV, VL, a, &T, x, &rows, &columns, r, i * PW + j, c);
            for (; c + VL <= C; c += VL) bin(1, VL, a, &T, x, &rows, &columns, r, i * PW + j, c);
            if (C % VL) bin(1, C % VL, a, &T, x, &rows, &columns, r, i * PW + j, c);
        }
    }
}
