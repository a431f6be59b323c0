// Moves elements: padding, repetition, triangles, nearest neighbours. Each row of the output has a row of the input,
// and a map of its columns; where that is contiguous, whole vectors are copied.
#include "row.h"

// Map index i to an axis of n elements, continued beyond its ends by nothing (-1), by the edge, by repetition, or by
// reflection.
#define BEYOND static inline __attribute__((unused)) idx
BEYOND within(idx i, idx n) { return (u64)i < (u64)n ? i : -1; }
BEYOND clamped(idx i, idx n) { return i < 0 ? 0 : i < n ? i : n - 1; }
BEYOND wrapped(idx i, idx n) { return (i % n + n) % n; }
BEYOND mirrored(idx i, idx n) {
    const idx period = n > 1 ? 2 * (n - 1) : 1, at = wrapped(i, period);
    return at < n ? at : period - at;
}

typedef struct { idx at, lo, hi; } line; // a row of the input, and which of its columns are copied

// <region>
enum : idx { ROWS = 6, COLS = 37, XC = 1, STEADY = 1, FILLED = 0 };
AI line row(const args *a, idx r) { return (line){ r * 33, 0, COLS }; }
#define COLUMN(l, o) within((o) - 2, 33)
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1, CB = 37 };
// </tactic>

AI void copy(const args *a, int n, const tail *t, const element *x, element fill, line l, idx r, idx c) {
    const idx from = l.at == NOWHERE ? -1 : COLUMN(l, c), to = l.at == NOWHERE ? -1 : COLUMN(l, c + n - 1);
    if (STEADY && from >= 0 && to == from + n - 1) {
        finish(t, LOAD(x + l.at + from, n), 0, r, c, n);
        return;
    }
    element part[VL] = {0};
    for (int k = 0; k < n; k++) {
        const idx o = l.at == NOWHERE ? -1 : COLUMN(l, c + k);
        part[k] = o < 0 ? fill : x[l.at + o * XC];
    }
    finish(t, LOAD(part, n), 0, r, c, n);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    const element *x = a[0].p, fill = FILLED ? *(const element *)a[1].p : (element)0;
    for (idx t = begin; t < end; t++)
        EACH_ROW(t) {
            const line l = row(a, r);
            EACH_VECTOR(1, copy(a, lanes, &T, x, fill, l, r, c));
        }
}
