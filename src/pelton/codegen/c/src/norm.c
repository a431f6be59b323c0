// Layer and RMS normalisation of rows of N contiguous elements: the mean first, then the mean square of the differences
// from it.
#include "row.h"

// <region>
enum : idx { BATCH = 5, N = 58, CENTRED = 1 };
#define EPSILON 1e-5f
#define X_AT(b) ((b) * N)
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define SELECT(mask, a, b) f32_select(mask, a, b)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + b * N + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1 };
// </tactic>

AI void row(const args *a, const tail *t, const element *x, idx b) {
    vf32 sum = bc_f32(0), squares = bc_f32(0);
#define ELEMENT(c, lanes) LOAD(x + (c), lanes)
    if (CENTRED) JOIN_ROW(sum, N, SUM, ELEMENT);
    const vf32 mean = bc_f32(CENTRED ? hsum_f32(sum) / N : 0);
#define SQUARE(c, lanes) ({ \
    const vf32 v = LOAD(x + (c), lanes) - mean; \
    (lanes) == VL ? v * v : KEEP(v * v, lanes, bc_f32(0)); \
})
    JOIN_ROW(squares, N, SUM, SQUARE);
    const vf32 by = 1 / f32_sqrt(bc_f32(hsum_f32(squares) / N + EPSILON));
    idx c = 0;
    for (; c + VL <= N; c += VL) finish(t, (LOAD(x + c, VL) - mean) * by, b, 0, c, VL);
    if (N % VL) finish(t, (LOAD(x + c, N % VL) - mean) * by, b, 0, c, N % VL);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx b = begin * RB; b < (end * RB < BATCH ? end * RB : BATCH); b++)
        row(a, &T, (const element *)a[0].p + X_AT(b), b);
}
