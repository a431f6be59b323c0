// Gathers: rows copied from the positions that indices give, or elements picked one by one. An index tuple is DEPTH
// numbers; negative ones count from the end, and those out of range are clamped: nothing outside of the input is ever
// read.
#include "row.h"

// <region>
enum : idx { ROWS = 6, COLS = 37, DEPTH = 1, IK = 0, PICK = 0, XC = 1, IC = 0 };
#define X_AT(r) 0
#define I_AT(r) (r)
#define SIZES {10}
#define STEPS {37}
typedef i64 index;
typedef f32 element;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1, CB = 37 };
// </tactic>

AI idx offset_of(const args *a, const index *i) {
    const idx sizes[DEPTH] = SIZES, steps[DEPTH] = STEPS;
    idx at = 0;
    unroll (idx k = 0; k < DEPTH; k++) {
        i64 v = i[k * IK];
        v += v < 0 ? sizes[k] : 0;
        v = v < 0 ? 0 : v < sizes[k] ? v : sizes[k] - 1;
        at += (idx)v * steps[k];
    }
    return at;
}

AI void pick(const args *a, int n, const tail *t, const element *x, const index *i, idx r, idx c) {
    element part[VL] = {0};
    unroll (int l = 0; l < VL; l++)
        if (l < n) part[l] = x[(c + l) * XC + offset_of(a, i + (c + l) * IC)];
    finish(t, LOAD(part, n), 0, r, c, n);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++)
        EACH_ROW(t) {
            const element *x = (const element *)a[0].p + X_AT(r);
            const index *i = (const index *)a[1].p + I_AT(r);
            if (PICK) {
                EACH_VECTOR(1, pick(a, lanes, &T, x, i, r, c));
            } else {
                x += offset_of(a, i);
                EACH_VECTOR(1, finish(&T, LOAD(x + c, lanes), 0, r, c, lanes));
            }
        }
}
