// Scatters: a copy of the input into which updates are written, or joined, one after the other. A tile owns a run of
// the output's elements: it copies them, then goes over all updates in order and applies those in its run, so that
// several updates of an element are joined in one order however tiles are cut. Index tuples are DEPTH numbers, negative
// ones count from the end; updates outside of the tensor are ignored.
#include "vec.h"

// <region>
enum : idx { SIZE = 370, ROWS = 6, COLS = 37, DEPTH = 1, IK = 0, IC = 0, UC = 1, YC = 1, PICK = 0, REPLACES = 1 };
#define Y_AT(r) 0
#define I_AT(r) (r)
#define U_AT(r) ((r) * COLS)
#define SIZES {10}
#define STEPS {37}
typedef i64 index;
typedef f32 element;
#define LOAD(p, n) ldn_f32(p, n)
#define STORE(p, v, n) stn_f32(p, v, n)
#define JOIN(a, b) (b)
// </region>
// <tactic>
enum : idx { PARTS = 1 };
// </tactic>

#define PART ((SIZE + PARTS - 1) / PARTS)

// The offset of an index tuple; far below zero where it is out of bounds.
AI idx offset_of(const args *a, const index *i) {
    const idx sizes[DEPTH] = SIZES, steps[DEPTH] = STEPS;
    idx at = 0;
    unroll (idx k = 0; k < DEPTH; k++) {
        const i64 v = i[k * IK] < 0 ? i[k * IK] + sizes[k] : i[k * IK];
        at = v < 0 || v >= sizes[k] ? NOWHERE : at + (idx)v * steps[k];
    }
    return at;
}

AI void join_run(element *y, const element *u, idx n) {
    idx c = 0;
    for (; c + VL <= n; c += VL) STORE(y + c, JOIN(LOAD(y + c, VL), LOAD(u + c, VL)), VL);
    if (c < n) STORE(y + c, JOIN(LOAD(y + c, n - c), LOAD(u + c, n - c)), n - c);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const element *x = a[0].p;
    element *y = a[3].p;
    for (idx t = begin; t < end; t++) {
        const idx lo = t * PART, hi = lo + PART < SIZE ? lo + PART : SIZE;
        if (lo < hi) __builtin_memcpy(y + lo, x + lo, (hi - lo) * sizeof(element));
        for (idx r = 0; r < ROWS; r++) {
            const index *i = (const index *)a[1].p + I_AT(r);
            const element *u = (const element *)a[2].p + U_AT(r);
            const idx row = Y_AT(r);
            if (PICK) {
                for (idx c = 0; c < COLS; c++) {
                    const idx at = row + c * YC + offset_of(a, i + c * IC);
                    if (at < lo || at >= hi) continue;
                    if (REPLACES) y[at] = u[c * UC];
                    else join_run(y + at, u + c * UC, 1);
                }
            } else {
                const idx at = row + offset_of(a, i), first = at < lo ? lo - at : 0,
                          last = at + COLS < hi ? COLS : hi - at;
                if (first < last) join_run(y + at + first, u + first, last - first);
            }
        }
    }
}
