// The index of the largest (or smallest) element along an axis; of equal ones the first, or the last. NaN counts as
// largest and as smallest. Vectors run along the columns of the output, or along the axis itself; then the lanes are
// compared at the end.
#include "row.h"

// <region>
enum : idx { ROWS = 2, COLS = 37, N = 49, XN = 37, XC = 1, ALONG = 0 };
#define X_AT(r) ((r) * N * COLS)
#define INDEX i32
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
typedef struct { i64 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vi64 x, idx b, idx r, idx c, int n) { stn_i64(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 2, RB = 1, CB = 37 };
// </tactic>

// AHEAD: v precedes w. TAKES: v replaces the best so far. For vectors and numbers alike.
#define AHEAD(v, w) (((v) BEYOND (w)) | (((v) != (v)) & ((w) == (w))))
#if LAST
#define TAKES(v, best) (((v) REACHES (best)) | ((v) != (v)))
#else
#define TAKES(v, best) AHEAD(v, best)
#endif

typedef PASTE_EXPANDED(v, INDEX) indices;
typedef struct { vec best; indices at; } running_best;
AI void update(running_best *f, vec v, indices at, vi32 valid) {
    const vi32 takes = CONVERT(TAKES(v, f->best), i32) & valid;
    f->best = SELECT(takes, v, f->best);
    f->at = __builtin_convertvector(takes, indices) ? at : f->at;
}

AI void columns(const args *a, int vectors, int lanes, const tail *t, const element *x, idx r, idx c) {
    running_best f[NV];
    unroll (int j = 0; j < vectors; j++) f[j] = (running_best){ LOAD(x + c + j * VL, lanes), (indices)0 };
    for (idx i = 1; i < N; i++)
        unroll (int j = 0; j < vectors; j++)
            update(&f[j], LOAD(x + i * XN + c + j * VL, lanes), (indices)(INDEX)i, (vi32)-1);
    unroll (int j = 0; j < vectors; j++) finish(t, CONVERT(f[j].at, i64), 0, r, c + j * VL, lanes);
}

#if LAST
#define NO_INDEX (INDEX)-1
#define NEARER(a, b) __builtin_elementwise_max(a, b)
#define NEAREST(v) PASTE_EXPANDED(hmax_, INDEX)(v)
#else
#define NO_INDEX (INDEX)(~0ull >> (65 - 8 * sizeof(INDEX)))
#define NEARER(a, b) __builtin_elementwise_min(a, b)
#define NEAREST(v) PASTE_EXPANDED(hmin_, INDEX)(v)
#endif

// The indices of the lanes that hold the best element of all, NO_INDEX in the others.
AI indices indices_of(running_best f, vec top) {
    const __typeof__(top == top) best = (f.best == top) | ((f.best != f.best) & (top != top));
    return __builtin_convertvector(best, indices) ? f.at : (indices)NO_INDEX;
}

AI idx along(const args *a, const element *x) {
    const indices lane = {LANES};
    const idx first = N < VL ? N : VL;
    running_best f[2] = { { first < VL ? KEEP(LOAD(x, first), first, IDENTITY) : LOAD(x, VL),
                            lane < (INDEX)first ? lane : (indices)NO_INDEX } };
    f[1] = f[0];
    idx i = VL;
    for (; i + 2 * VL <= N; i += 2 * VL)
        unroll (int j = 0; j < 2; j++) update(&f[j], LOAD(x + i + j * VL, VL), lane + (INDEX)(i + j * VL), (vi32)-1);
    if (i + VL <= N) update(&f[0], LOAD(x + i, VL), lane + (INDEX)i, (vi32)-1), i += VL;
    if (i < N) update(&f[1], LOAD(x + i, N % VL), lane + (INDEX)i, (vi32){LANES} < (int)(N % VL));
    const vec top = (vec)WHOLE(JOIN(f[0].best, f[1].best));
    return NEAREST(NEARER(indices_of(f[0], top), indices_of(f[1], top)));
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
                    i64 at[VL] = {0};
                    for (idx i = 0; i < n; i++) at[i] = along(a, x + (c + i) * XC);
                    finish(&T, ld_i64(at), 0, r, c, n);
                }
            } else {
                EACH_VECTOR(NV, columns(a, vectors, lanes, &T, x, r, c));
            }
        }
}
