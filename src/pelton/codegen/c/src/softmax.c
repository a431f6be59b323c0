// Softmax and log-softmax of contiguous rows: the largest element, the sum of the exponentials, the quotients.
#include "row.h"

// <region>
enum : idx { BATCH = 5, N = 37, LOG = 0 };
#define X_AT(b) ((b) * N)
typedef f32 element, scalar;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define SELECT(mask, a, b) f32_select(mask, a, b)
#define LANES_FROM(p) ld_f32(p)
#define LANES_TO(p, v) st_f32(p, v)
#define REAL(name) f32_##name
#define WHOLE(name) h##name##_f32
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + b * N + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1 };
// </tactic>

AI void row(const args *a, const tail *t, const element *x, scalar *e, idx b) {
    vec top = (vec)-INFINITY, sum = (vec)0;
#define ELEMENT(c, lanes) ((lanes) == VL ? LOAD(x + (c), VL) : KEEP(LOAD(x + (c), lanes), lanes, (vec)-INFINITY))
    JOIN_ROW(top, N, REAL(maximum), ELEMENT);
    top = (vec)WHOLE(max)(top);
#define POWER_OF_E(c, lanes) ({ \
    const vec power = REAL(exp)(LOAD(x + (c), lanes) - top); \
    if (!LOG) LANES_TO(e + (c), power); \
    (lanes) == VL ? power : KEEP(power, lanes, (vec)0); \
})
    JOIN_ROW(sum, N, SUM, POWER_OF_E);
    const scalar total = WHOLE(sum)(sum);
    // subtracted separately: added to top it would lose digits
    const vec by = (vec)(1 / total), less = REAL(log)((vec)total);
    idx c = 0;
    for (; c + VL <= N; c += VL) finish(t, LOG ? LOAD(x + c, VL) - top - less : LANES_FROM(e + c) * by, b, 0, c, VL);
    if (N % VL) finish(t, LOG ? LOAD(x + c, N % VL) - top - less : LANES_FROM(e + c) * by, b, 0, c, N % VL);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx b = begin * RB; b < (end * RB < BATCH ? end * RB : BATCH); b++)
        row(a, &T, (const element *)a[0].p + X_AT(b), scratch, b);
}
