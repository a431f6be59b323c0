// Cumulative sums and products. Vectors run along the columns of the output; where the axis itself has unit stride, its
// elements are added one by one.
#include "vec.h"

// <region>
enum : idx { BATCH = 2, COLS = 37, N = 49, XN = 37, ALONG = 0, EXCLUSIVE = 0, REVERSE = 0 };
#define X_AT(b) ((b) * N * COLS)
typedef f32 element, scalar;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define LANES_FROM(p) ld_f32(p)
#define LANES_TO(p, v) st_f32(p, v)
#define JOIN(a, b) ((a) + (b))
#define IDENTITY bc_f32(0)
#define START 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * N + r) * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 2, CB = 37 };
// </tactic>

#define CBS (ALONG ? 1 : (COLS + CB - 1) / CB)

AI void scan_columns(const args *a, int vectors, int lanes, const tail *t, const element *x, idx b, idx c) {
    vec sum[NV];
    unroll (int j = 0; j < vectors; j++) sum[j] = IDENTITY;
    for (idx i = 0; i < N; i++) {
        const idx r = REVERSE ? N - 1 - i : i;
        unroll (int j = 0; j < vectors; j++) {
            const vec v = LOAD(x + r * XN + c + j * VL, lanes);
            if (EXCLUSIVE) finish(t, sum[j], b, r, c + j * VL, lanes);
            sum[j] = JOIN(sum[j], v);
            if (!EXCLUSIVE) finish(t, sum[j], b, r, c + j * VL, lanes);
        }
    }
}

AI scalar scan_vector(const tail *t, const element *x, scalar sum, idx b, idx c, idx lanes) {
    scalar part[VL] = {0};
    LANES_TO(part, LOAD(x + c, lanes));
    unroll (int k = 0; k < VL; k++) {
        const int l = REVERSE ? VL - 1 - k : k;
        const scalar v = part[l];
        if (l >= lanes) continue;
        if (EXCLUSIVE) part[l] = sum;
        sum = JOIN(sum, v);
        if (!EXCLUSIVE) part[l] = sum;
    }
    finish(t, LANES_FROM(part), b, 0, c, lanes);
    return sum;
}

AI void scan_along(const args *a, const tail *t, const element *x, idx b) {
    scalar sum = START;
    if (REVERSE && N % VL) sum = scan_vector(t, x, sum, b, N - N % VL, N % VL);
    for (idx i = 0; i < N / VL; i++) sum = scan_vector(t, x, sum, b, (REVERSE ? N / VL - 1 - i : i) * VL, VL);
    if (!REVERSE && N % VL) scan_vector(t, x, sum, b, N - N % VL, N % VL);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx b = t / CBS, c0 = t % CBS * CB, c1 = c0 + CB < COLS ? c0 + CB : COLS;
        const element *x = (const element *)a[0].p + X_AT(b);
        idx c = c0;
        if (ALONG) {
            scan_along(a, &T, x, b);
            continue;
        }
        for (; c + NV * VL <= c1; c += NV * VL) scan_columns(a, NV, VL, &T, x, b, c);
        if (NV > 1)
            for (; c + VL <= c1; c += VL) scan_columns(a, 1, VL, &T, x, b, c);
        if (COLS % VL && c < c1) scan_columns(a, 1, COLS % VL, &T, x, b, c);
    }
}
