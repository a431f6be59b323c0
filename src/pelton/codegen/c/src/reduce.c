// Reductions: every output element joins the elements along the reduced axes, OUTER runs of N elements each. Where the
// input's unit stride is not reduced, vectors run along the columns of the output; where it is, along the input, and
// the lanes are joined at the end. Partial sums of at most BLOCK elements, and of at most BLOCK partial sums, keep long
// sums exact.
#include "row.h"

// <region>
enum : idx { ROWS = 2, COLS = 37, OUTER = 3, N = 49, XN = 37, XC = 1, COUNT = 147, ALONG = 0 };
#define X_AT(r) ((r) * OUTER * N * COLS)
#define OUTER_AT(r) ((r) * N * COLS)
typedef f32 element, scalar;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define SELECT(mask, a, b) f32_select(mask, a, b)
#define LANES_FROM(p) ld_f32(p)
#define JOIN(a, b) ((a) + (b))
#define IDENTITY bc_f32(0)
#define WHOLE(v) hsum_f32(v)
#define RESULT(v) (v)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 4, RB = 1, CB = 37 };
// </tactic>

enum : idx { CHAINS = 8 / NV, BLOCK = 512 };

// Columns c … of a row: `vectors` of them side by side, CHAINS elements of each at a time.
AI void columns(const args *a, int vectors, int lanes, const tail *t, const element *x, idx r, idx c) {
    vec total[NV], subtotal[NV];
    unroll (int j = 0; j < vectors; j++) total[j] = subtotal[j] = IDENTITY;
    idx joined = 0;
    for (idx o = 0; o < OUTER; o++)
        for (idx i0 = 0; i0 < N; i0 += BLOCK) {
            const idx n = N - i0 < BLOCK ? N - i0 : BLOCK;
            const element *p = x + OUTER_AT(o) + i0 * XN + c;
            vec part[CHAINS][NV];
            unroll (int k = 0; k < CHAINS; k++)
                unroll (int j = 0; j < vectors; j++) part[k][j] = IDENTITY;
            idx i = 0;
            for (; i + CHAINS <= n; i += CHAINS, p += CHAINS * XN)
                unroll (int k = 0; k < CHAINS; k++)
                    unroll (int j = 0; j < vectors; j++)
                        part[k][j] = JOIN(part[k][j], LOAD(p + k * XN + j * VL, lanes));
            for (; i < n; i++, p += XN)
                unroll (int j = 0; j < vectors; j++) part[0][j] = JOIN(part[0][j], LOAD(p + j * VL, lanes));
            unroll (int k = 0; k < CHAINS; k++)
                unroll (int j = 0; j < vectors; j++) subtotal[j] = JOIN(subtotal[j], part[k][j]);
            if (++joined % BLOCK == 0)
                unroll (int j = 0; j < vectors; j++) total[j] = JOIN(total[j], subtotal[j]), subtotal[j] = IDENTITY;
        }
    unroll (int j = 0; j < vectors; j++) finish(t, RESULT(JOIN(total[j], subtotal[j])), 0, r, c + j * VL, lanes);
}

// One output element, where the input's unit stride is reduced.
AI scalar along(const args *a, const element *x) {
    vec total = IDENTITY, subtotal = IDENTITY;
    for (idx o = 0; o < OUTER; o++) {
        const element *p = x + OUTER_AT(o);
#define TERM(c, lanes) ((lanes) == VL ? LOAD(p + (c), VL) : KEEP(LOAD(p + (c), lanes), lanes, IDENTITY))
        JOIN_ROW(subtotal, N, JOIN, TERM);
#undef TERM
        if ((o + 1) % BLOCK == 0) total = JOIN(total, subtotal), subtotal = IDENTITY;
    }
    return WHOLE(JOIN(total, subtotal));
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
                    scalar part[VL] = {0};
                    for (idx i = 0; i < n; i++) part[i] = along(a, x + (c + i) * XC);
                    finish(&T, RESULT(LANES_FROM(part)), 0, r, c, n);
                }
            } else {
                EACH_VECTOR(NV, columns(a, vectors, lanes, &T, x, r, c));
            }
        }
}
