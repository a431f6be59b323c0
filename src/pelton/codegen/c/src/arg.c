// Where the largest (or smallest) element lies along an axis; of equals the first one, or the last. NaN counts as largest and smallest.
// Vectors run along the columns of the output, or along the axis itself; then the lanes are compared at the end.
#include "row.h"

// <region>
enum : idx { ROWS = 2, COLS = 37, N = 49, XN = 37, XC = 1, ALONG = 0 };
#define X_AT(r) ((r) * N * COLS)
#define PLACE i32
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
typedef struct { idx *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vi64 x, idx b, idx r, idx c, int n) { stn_i64(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 2, RB = 1, CB = 37 };
// </tactic>

// Whether v comes before w, and whether it takes the place of the best before it: for vectors and numbers alike.
#define AHEAD(v, w) (((v) BEYOND (w)) | (((v) != (v)) & ((w) == (w))))
#if LAST
#define TAKES(v, best) (((v) REACHES (best)) | ((v) != (v)))
#else
#define TAKES(v, best) AHEAD(v, best)
#endif

typedef PASTE_EXPANDED(v, PLACE) places;
typedef struct { vec best; places at; } found;
AI void meet(found *f, vec v, places at, vi32 valid) {
    const vi32 takes = CONVERT(TAKES(v, f->best), i32) & valid;
    f->best = SELECT(takes, v, f->best);
    f->at = __builtin_convertvector(takes, places) ? at : f->at;
}

AI void columns(const args *a, int vectors, int lanes, const tail *t, const element *x, idx r, idx c) {
    found f[NV];
    unroll (int j = 0; j < vectors; j++) f[j] = (found){ LOAD(x + c + j * VL, lanes), (places)0 };
    for (idx i = 1; i < N; i++)
        unroll (int j = 0; j < vectors; j++) meet(&f[j], LOAD(x + i * XN + c + j * VL, lanes), (places)(PLACE)i, (vi32)-1);
    unroll (int j = 0; j < vectors; j++) finish(t, CONVERT(f[j].at, i64), 0, r, c + j * VL, lanes);
}

#if LAST
#define NOWHERE (PLACE)-1
#define NEARER(a, b) __builtin_elementwise_max(a, b)
#define NEAREST(v) PASTE_EXPANDED(hmax_, PLACE)(v)
#else
#define NOWHERE (PLACE)(~0ull >> (65 - 8 * sizeof(PLACE)))
#define NEARER(a, b) __builtin_elementwise_min(a, b)
#define NEAREST(v) PASTE_EXPANDED(hmin_, PLACE)(v)
#endif

// Of the lanes that hold what is best in all: their places.
AI places where(found f, vec top) {
    return __builtin_convertvector((f.best == top) | ((f.best != f.best) & (top != top)), places) ? f.at : (places)NOWHERE;
}

AI idx along(const args *a, const element *x) {
    const places lane = {LANES};
    const idx first = N < VL ? N : VL;
    found f[2] = {{ first < VL ? KEEP(LOAD(x, first), first, IDENTITY) : LOAD(x, VL), lane < (PLACE)first ? lane : (places)NOWHERE }};
    f[1] = f[0];
    idx i = VL;
    for (; i + 2 * VL <= N; i += 2 * VL)
        unroll (int j = 0; j < 2; j++) meet(&f[j], LOAD(x + i + j * VL, VL), lane + (PLACE)(i + j * VL), (vi32)-1);
    if (i + VL <= N) meet(&f[0], LOAD(x + i, VL), lane + (PLACE)i, (vi32)-1), i += VL;
    if (i < N) meet(&f[1], LOAD(x + i, N % VL), lane + (PLACE)i, (vi32){LANES} < (int)(N % VL));
    const vec top = (vec)WHOLE(JOIN(f[0].best, f[1].best));
    return NEAREST(NEARER(where(f[0], top), where(f[1], top)));
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++)
        EACH_ROW(t) {
            const element *x = (const element *)a[0].p + X_AT(r);
            if (ALONG) {
                for (idx c = c0; c < c1; c += VL) {
                    const idx n = c1 - c < VL ? c1 - c : VL;
                    idx at[VL] = {0};
                    for (idx i = 0; i < n; i++) at[i] = along(a, x + (c + i) * XC);
                    finish(&T, ld_i64(at), 0, r, c, n);
                }
            } else {
                EACH_VECTOR(NV, columns(a, vectors, lanes, &T, x, r, c));
            }
        }
}
