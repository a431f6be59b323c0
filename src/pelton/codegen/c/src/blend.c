// Blends: weighted sums of elements picked along an axis. Columns picked together are read as vectors, others lane by
// lane. A weight of zero skips its element; negative indices count from the end, and those out of range are clamped:
// nothing outside of the input is read.
#include "row.h"

// <region>
enum : idx { ROWS = 6, COLS = 37, TAPS = 2, SIZE = 10, STEP = 37, IK = 1, WK = 1, PICK = 0, XC = 1, IC = 0, WC = 0 };
#define X_AT(r) 0
#define I_AT(r) ((r) * TAPS)
#define W_AT(r) ((r) * TAPS)
typedef i64 index;
typedef f32 element;
typedef vf32 vec;
typedef f32 scalar;
#define LOAD(p, n) ldn_f32(p, n)
#define SELECT(mask, a, b) f32_select(mask, a, b)
#define ZERO(w) f32_eq(w, (vf32)0)
#define WEIGHTS(p, stride, n) ldg_f32(p, stride, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[3].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1, CB = 37 };
// </tactic>

enum : idx { TOGETHER = 4 }; // vectors that share one load of an index

AI idx offset_of(const args *a, index i) {
    i64 v = i;
    v += v < 0 ? SIZE : 0;
    return (idx)(v < 0 ? 0 : v < SIZE ? v : SIZE - 1) * STEP;
}

AI void pick(const args *a, int n, const tail *t, const element *x, const index *i, const scalar *w, idx r, idx c) {
    vec total = (vec)0;
    for (idx k = 0; k < TAPS; k++) {
        element part[VL] = {0};
        unroll (int l = 0; l < VL; l++)
            if (l < n) part[l] = x[(c + l) * XC + offset_of(a, i[(c + l) * IC + k * IK])];
        const vec by = WC ? WEIGHTS(w + c * WC + k * WK, WC, n) : (vec)w[k * WK];
        total += SELECT(ZERO(by), (vec)0, by * LOAD(part, n));
    }
    finish(t, total, 0, r, c, n);
}

AI void sum(const args *a, int vectors, int n, const tail *t, const element *x, const index *i, const scalar *w, idx r,
            idx c) {
    vec total[TOGETHER];
    unroll (int j = 0; j < vectors; j++) total[j] = (vec)0;
    for (idx k = 0; k < TAPS; k++) {
        const scalar by = w[k * WK];
        if (by == 0) continue;
        const element *from = x + offset_of(a, i[k * IK]) + c;
        unroll (int j = 0; j < vectors; j++) total[j] = vec_fma((vec)by, LOAD(from + j * VL, n), total[j]);
    }
    unroll (int j = 0; j < vectors; j++) finish(t, total[j], 0, r, c + j * VL, n);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++)
        EACH_ROW(t) {
            const element *x = (const element *)a[0].p + X_AT(r);
            const index *i = (const index *)a[1].p + I_AT(r);
            const scalar *w = (const scalar *)a[2].p + W_AT(r);
            if (PICK) EACH_VECTOR(1, pick(a, lanes, &T, x, i, w, r, c));
            else EACH_VECTOR(TOGETHER, sum(a, vectors, lanes, &T, x, i, w, r, c));
        }
}
