// Local response normalisation, channels-last: the squares of SIZE neighbouring channels summed, and a power of that.
// (Sums of stored squares were half as fast: a load waits where it overlaps two stores.)
#include "vec.h"

// <region>
enum : idx { PIXELS = 6, C = 37, SIZE = 5 };
#define BIAS 1.0f
#define ALPHA 2e-5f
#define INVERSE_POWER(v) (1 / (f32_sqrt(v) * f32_sqrt(f32_sqrt(v))))
#define X_AT(r) ((r) * C)
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + r * C + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 1, NV = 2 };
// </tactic>

enum : idx { BEFORE = (SIZE - 1) / 2 };

// Lanes c + k …, zero past the last channel.
AI vec shifted(const args *a, const element *x, idx c, idx k) {
    const idx left = C - c - k;
    return left >= VL ? LOAD(x + c + k, VL) : left > 0 ? LOAD(x + c + k, left) : (vec)0;
}

// Vectors of channels from c on. Those whose windows begin before the first channel (HEAD) read a copy, those whose
// windows end past the last (FOOT) load in part.
enum { INNER, HEAD, FOOT };
AI void channels(const args *a, int where, int vectors, int lanes, const tail *t, const element *x,
                 const element *first, idx r, idx c) {
    vf32 v[NV];
    unroll (int j = 0; j < vectors; j++) v[j] = bc_f32(0);
    unroll (idx k = 0; k < SIZE; k++)
        unroll (int j = 0; j < vectors; j++) {
            const idx at = c + j * VL;
            vf32 w;
            if (where == HEAD) w = LOAD(first + at + k, VL);
            else if (where == FOOT) w = shifted(a, x, at, k - BEFORE);
            else w = LOAD(x + at + k - BEFORE, VL);
            v[j] = vec_fma(w, w, v[j]);
        }
    unroll (int j = 0; j < vectors; j++) v[j] = INVERSE_POWER(vec_fma(v[j], bc_f32(ALPHA), bc_f32(BIAS)));
    unroll (int j = 0; j < vectors; j++) finish(t, LOAD(x + c + j * VL, lanes) * v[j], 0, r, c + j * VL, lanes);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    // zeros, then the first channels of a pixel, for vectors at the head
    enum : idx { COPIED = 2 * (BEFORE + VL) + SIZE };
    element *first = scratch;
    for (idx i = 0; i < COPIED; i++) first[i] = 0;
    for (idx r = begin * RB; r < (end * RB < PIXELS ? end * RB : PIXELS); r++) {
        const element *x = (const element *)a[0].p + X_AT(r);
        for (idx i = 0; i < (COPIED - BEFORE < C ? COPIED - BEFORE : C); i++) first[BEFORE + i] = x[i];
        idx c = 0;
        for (; c < BEFORE && c + VL <= C; c += VL) channels(a, HEAD, 1, VL, &T, x, first, r, c);
        for (; c + (NV + 1) * VL + SIZE <= C; c += NV * VL) channels(a, INNER, NV, VL, &T, x, first, r, c);
        for (; c + VL <= C; c += VL) channels(a, FOOT, 1, VL, &T, x, first, r, c);
        if (C % VL) channels(a, c < BEFORE ? HEAD : FOOT, 1, C % VL, &T, x, first, r, c);
    }
}
