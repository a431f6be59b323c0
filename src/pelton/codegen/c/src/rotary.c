// Rotary embedding: pairs along a row rotated by the angles of its position, and the elements behind them copied. Each
// element is read once.
#include "vec.h"

// <region>
enum : idx { ROWS = 15, INNER = 5, D = 37, PAIRS = 13, INTERLEAVED = 0 };
#define X_AT(b, r) (((b) * INNER + (r)) * D)
#define COS_AT(b, r) ((r) * PAIRS)
#define SIN_AT(b, r) ((r) * PAIRS)
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[3].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * INNER + r) * D + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1 };
// </tactic>

// n pairs from pair i on.
AI void rotate(int n, const tail *t, const element *x, const element *cosines, const element *sines, idx b, idx r,
               idx i) {
    const vec u = LOAD(cosines + i, n), v = LOAD(sines + i, n);
    if (INTERLEAVED) {
        const int low = 2 * n < VL ? 2 * n : VL, high = 2 * n - low;
        const vec p = LOAD(x + 2 * i, low), q = high ? LOAD(x + 2 * i + VL, high) : (vec)0;
        const vec even = SHUFFLE(p, q, EVENS), odd = SHUFFLE(p, q, ODDS), us = SHUFFLE(u, u, ZIPPED),
                  vs = SHUFFLE(v, v, ZIPPED);
        const vec one = even * us - odd * vs, other = odd * us + even * vs;
        finish(t, SHUFFLE(one, other, LOW_PAIRS), b, r, 2 * i, low);
        if (high) finish(t, SHUFFLE(one, other, HIGH_PAIRS), b, r, 2 * i + VL, high);
    } else {
        const vec p = LOAD(x + i, n), q = LOAD(x + PAIRS + i, n);
        finish(t, p * u - q * v, b, r, i, n);
        finish(t, q * u + p * v, b, r, PAIRS + i, n);
    }
}

AI void row(const tail *t, const element *x, const element *cosines, const element *sines, idx b, idx r) {
    idx c = 0;
    for (; c + VL <= PAIRS; c += VL) rotate(VL, t, x, cosines, sines, b, r, c);
    if (PAIRS % VL) rotate(PAIRS % VL, t, x, cosines, sines, b, r, c);
    for (c = 2 * PAIRS; c + VL <= D; c += VL) finish(t, LOAD(x + c, VL), b, r, c, VL);
    if ((D - 2 * PAIRS) % VL) finish(t, LOAD(x + c, (D - 2 * PAIRS) % VL), b, r, c, (D - 2 * PAIRS) % VL);
}

void KERNEL(const args *a, idx begin, idx end, void *scratch) {
    const tail T = tail_open(a);
    const idx stop = end * RB < ROWS ? end * RB : ROWS;
    for (idx at = begin * RB; at < stop;) {
        const idx b = at / INNER, r0 = at % INNER, r1 = r0 + stop - at < INNER ? r0 + stop - at : INNER;
        at += r1 - r0;
        for (idx r = r0; r < r1; r++)
            row(&T, (const element *)a[0].p + X_AT(b, r), (const element *)a[1].p + COS_AT(b, r),
                (const element *)a[2].p + SIN_AT(b, r), b, r);
    }
}
