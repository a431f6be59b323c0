// Where the largest (or smallest) element lies along an axis; of equals the first one, or the last. NaN counts as largest and smallest.
// Vectors run along the columns of the output, or along the axis itself; then the lanes are compared at the end.
#include "row.h"

// <region>
enum : long { ROWS = 2, COLS = 37, N = 49, XN = 37, XC = 1, ALONG = 0 };
#define X_AT(r) ((r) * N * COLS)
#define LAST 0
#define BEYOND >
#define REACHES >=
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define SELECT(mask, a, b) f32_select(mask, a, b)
#define JOIN(a, b) f32_maximum(a, b)
#define IDENTITY bc_f32(-INFINITY)
#define WHOLE(v) hmax_f32(v)
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
AI void meet(found *f, vec v, vi32 at, vi32 valid) {
    const vi32 takes = CONVERT(TAKES(v, f->best), i32) & valid;
    f->best = SELECT(takes, v, f->best);
    f->at = takes ? at : f->at;
}

AI void columns(int vectors, int lanes, const tail *t, const element *x, long r, long c) {
    found f[NV];
    unroll (int j = 0; j < vectors; j++) f[j] = (found){ LOAD(x + c + j * VL, lanes), (vi32)0 };
    for (long i = 1; i < N; i++)
        unroll (int j = 0; j < vectors; j++) meet(&f[j], LOAD(x + i * XN + c + j * VL, lanes), bc_i32(i), (vi32)-1);
    unroll (int j = 0; j < vectors; j++) finish(t, CONVERT(f[j].at, i64), 0, r, c + j * VL, lanes);
}

#if LAST
enum { NOWHERE = -1 };
#define NEARER(a, b) i32_maximum(a, b)
#define NEAREST(v) hmax_i32(v)
#else
enum { NOWHERE = 0x7fffffff };
#define NEARER(a, b) i32_minimum(a, b)
#define NEAREST(v) hmin_i32(v)
#endif

// Of the lanes that hold what is best in all: their places.
AI vi32 places(found f, vec top) { return CONVERT((f.best == top) | ((f.best != f.best) & (top != top)), i32) ? f.at : (vi32)NOWHERE; }

AI long along(const element *x) {
    const vi32 lane = {LANES};
    const long first = N < VL ? N : VL;
    found f[2] = {{ first < VL ? KEEP(LOAD(x, first), first, IDENTITY) : LOAD(x, VL), lane < (int)first ? lane : (vi32)NOWHERE }};
    f[1] = f[0];
    long i = VL;
    for (; i + 2 * VL <= N; i += 2 * VL)
        unroll (int j = 0; j < 2; j++) meet(&f[j], LOAD(x + i + j * VL, VL), lane + (int)(i + j * VL), (vi32)-1);
    if (i + VL <= N) meet(&f[0], LOAD(x + i, VL), lane + (int)i, (vi32)-1), i += VL;
    if (i < N) meet(&f[1], LOAD(x + i, N % VL), lane + (int)i, lane < (int)(N % VL));
    const vec top = (vec)WHOLE(JOIN(f[0].best, f[1].best));
    return NEAREST(NEARER(places(f[0], top), places(f[1], top)));
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
