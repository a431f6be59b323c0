// Where the largest (or smallest) element lies along an axis; of equals the first one, or the last. NaN counts as largest and smallest.
// Vectors run along the columns of the output, or along the axis itself; then the lanes are compared at the end.
#include "vec.h"

// <region>
enum : long { ROWS = 2, COLS = 37, N = 49, XN = 37, XC = 1, ALONG = 0 };
#define X_AT(r) ((r) * N * COLS)
#define LAST 0
#define BEYOND >
#define REACHES >=
typedef f32 element, scalar;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define SELECT(mask, a, b) f32_select(mask, a, b)
#define LANES_TO(p, v) st_f32(p, v)
typedef struct { long *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vi64 x, long b, long r, long c, int n) { stn_i64(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : long { NV = 2, RB = 1, CB = 37 };
// </tactic>

enum : long { CBS = (COLS + CB - 1) / CB };

// Whether v comes before w, and whether it takes the place of the best before it: for vectors and numbers alike.
#define AHEAD(v, w) (((v) BEYOND (w)) | (((v) != (v)) & ((w) == (w))))
#if LAST
#define TAKES(v, best) (((v) REACHES (best)) | ((v) != (v)))
#else
#define TAKES(v, best) AHEAD(v, best)
#endif

typedef struct { vec best; vi32 at; } found;
AI void meet(found *f, vec v, vi32 at) {
    const vi32 takes = CONVERT(TAKES(v, f->best), i32);
    f->best = SELECT(takes, v, f->best);
    f->at = takes ? at : f->at;
}

AI void columns(int vectors, int lanes, const tail *t, const element *x, long r, long c) {
    found f[NV];
    unroll (int j = 0; j < vectors; j++) f[j] = (found){ LOAD(x + c + j * VL, lanes), (vi32)0 };
    for (long i = 1; i < N; i++)
        unroll (int j = 0; j < vectors; j++) meet(&f[j], LOAD(x + i * XN + c + j * VL, lanes), bc_i32(i));
    unroll (int j = 0; j < vectors; j++) finish(t, CONVERT(f[j].at, i64), 0, r, c + j * VL, lanes);
}

AI long along(const element *x) {
    const vi32 lane = {LANES};
    const long first = N < VL ? N : VL;
    found f[2] = {{ LOAD(x, first), lane }};
    f[1] = f[0];
    long i = VL;
    for (; i + 2 * VL <= N; i += 2 * VL) {
        meet(&f[0], LOAD(x + i, VL), lane + (int)i);
        meet(&f[1], LOAD(x + i + VL, VL), lane + (int)(i + VL));
    }
    if (i + VL <= N) meet(&f[0], LOAD(x + i, VL), lane + (int)i), i += VL;
    scalar value[3 * VL], best;
    int place[3 * VL];
    LANES_TO(value, f[0].best), LANES_TO(value + VL, f[1].best);
    st_i32(place, f[0].at), st_i32(place + VL, f[1].at);
    if (N > VL && N % VL) LANES_TO(value + 2 * VL, LOAD(x + i, N % VL)), st_i32(place + 2 * VL, lane + (int)i);
    long at = -1;
    for (int l = 0; l < (N < VL ? N : 2 * VL + (N > VL ? N % VL : 0)); l++)
        if (at < 0 || AHEAD(value[l], best) || (!AHEAD(best, value[l]) && (LAST ? place[l] > at : place[l] < at))) best = value[l], at = place[l];
    return at;
}

void KERNEL(const args *a, long begin, long end, void *scratch) {
    const tail T = tail_open(a);
    for (long t = begin; t < end; t++) {
        const long r0 = t / CBS * RB, r1 = r0 + RB < ROWS ? r0 + RB : ROWS, c0 = t % CBS * CB, c1 = c0 + CB < COLS ? c0 + CB : COLS;
        for (long r = r0; r < r1; r++) {
            const element *x = (const element *)a[0].p + X_AT(r);
            long c = c0;
            if (ALONG) {
                for (; c < c1; c += VL) {
                    const long n = c1 - c < VL ? c1 - c : VL;
                    long at[VL] = {0};
                    for (long i = 0; i < n; i++) at[i] = along(x + (c + i) * XC);
                    finish(&T, ld_i64(at), 0, r, c, n);
                }
            } else {
                for (; c + NV * VL <= c1; c += NV * VL) columns(NV, VL, &T, x, r, c);
                if (NV > 1)
                    for (; c + VL <= c1; c += VL) columns(1, VL, &T, x, r, c);
                if (COLS % VL && c < c1) columns(1, COLS % VL, &T, x, r, c);
            }
        }
    }
}
