// Softmax and log-softmax along an axis that is not the innermost in memory: vectors run along the columns, each lane a
// softmax of its own.
#include "vec.h"

// <region>
enum : idx { BATCH = 2, N = 21, COLS = 37, XN = 37, LOG = 0 };
#define X_AT(b) ((b) * N * COLS)
typedef f32 element;
typedef vf32 vec;
#define LOAD(p, n) ldn_f32(p, n)
#define REAL(name) f32_##name
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * N + r) * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { NV = 2, CB = 37 };
// </tactic>

#define CBS ((COLS + CB - 1) / CB)
enum : idx { BLOCK = 512 }; // exponentials of a partial sum

AI void columns(const args *a, int vectors, int lanes, const tail *t, const element *x, vec (*e)[NV], idx b, idx c) {
    vec top[NV], sum[NV];
    x += c;
    unroll (int j = 0; j < vectors; j++) top[j] = (vec)-INFINITY, sum[j] = (vec)0;
    for (idx i = 0; i < N; i++)
        unroll (int j = 0; j < vectors; j++) top[j] = REAL(maximum)(top[j], LOAD(x + i * XN + j * VL, lanes));
    for (idx i0 = 0; i0 < N; i0 += BLOCK) {
        vec part[NV];
        unroll (int j = 0; j < vectors; j++) part[j] = (vec)0;
        for (idx i = i0; i < (i0 + BLOCK < N ? i0 + BLOCK : N); i++)
            unroll (int j = 0; j < vectors; j++) {
                const vec power = REAL(exp)(LOAD(x + i * XN + j * VL, lanes) - top[j]);
                if (!LOG) e[i][j] = power;
                part[j] += power;
            }
        unroll (int j = 0; j < vectors; j++) sum[j] += part[j];
    }
    unroll (int j = 0; j < vectors; j++) sum[j] = LOG ? REAL(log)(sum[j]) : 1 / sum[j];
    for (idx i = 0; i < N; i++)
        unroll (int j = 0; j < vectors; j++)
            finish(t, LOG ? LOAD(x + i * XN + j * VL, lanes) - top[j] - sum[j] : e[i][j] * sum[j], b, i, c + j * VL,
                   lanes);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx b = t / CBS, c0 = t % CBS * CB, c1 = c0 + CB < COLS ? c0 + CB : COLS;
        const element *x = (const element *)a[0].p + X_AT(b);
        idx c = c0;
        for (; c + NV * VL <= c1; c += NV * VL) columns(a, NV, VL, &T, x, scratch, b, c);
        if (NV > 1)
            for (; c + VL <= c1; c += VL) columns(a, 1, VL, &T, x, scratch, b, c);
        if (COLS % VL && c < c1) columns(a, 1, COLS % VL, &T, x, scratch, b, c);
    }
}
