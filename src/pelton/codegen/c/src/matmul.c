// Matrix product C[b, m, n] = A[b, m, :] · B[b, :, n] of any element type, both operands read in place: A element by
// element, B along its rows.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, M = 37, N = 40, K = 19, AR = 19, AK = 1, BK = 40 };
#define A_AT(b) ((b) * M * K)
#define B_AT(b) 0
typedef i32 element;
typedef vi32 vec;
#define LOAD(p, n) ldn_i32(p, n)
#define ONE(p) bc_i32(*(p))
#define ADDED(acc, x, y) ((acc) + (x) * (y))
typedef struct { i32 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vi32 x, idx b, idx r, idx c, int n) { stn_i32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 4, NV = 2, MB = 32, NB = 64 };
// </tactic>

#define MBS ((M + MB - 1) / MB)
#define NBS ((N + NB - 1) / NB)

AI void tile(int rows, int vectors, int lanes, const args *a, const tail *t, const element *A, const element *B, idx b,
             idx m, idx n) {
    vec acc[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < vectors; j++) acc[i][j] = (vec)0;
    for (idx k = 0; k < K; k++) {
        vec y[NV];
        unroll (int j = 0; j < vectors; j++) y[j] = LOAD(B + k * BK + n + j * VL, lanes);
        unroll (int i = 0; i < rows; i++) {
            const vec x = ONE(A + (m + i) * AR + k * AK);
            unroll (int j = 0; j < vectors; j++) acc[i][j] = ADDED(acc[i][j], x, y[j]);
        }
    }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < vectors; j++) finish(t, acc[i][j], b, m + i, n + j * VL, lanes);
}

AI void columns(int vectors, int lanes, const args *a, const tail *t, const element *A, const element *B, idx b, idx m0,
                idx m1, idx n) {
    idx m = m0;
    for (; m + MR <= m1; m += MR) tile(MR, vectors, lanes, a, t, A, B, b, m, n);
    if (m < m1) COUNTED(M % MR, MR, tile(COUNT, vectors, lanes, a, t, A, B, b, m, n));
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, mb = t / NBS % MBS, b = t / (MBS * NBS);
        const idx m0 = mb * MB, m1 = m0 + MB < M ? m0 + MB : M, n1 = nb * NB + NB < N ? nb * NB + NB : N;
        const element *A = (const element *)a[0].p + A_AT(b), *B = (const element *)a[1].p + B_AT(b);
        idx n = nb * NB;
        for (; n + NV * VL <= n1; n += NV * VL) columns(NV, VL, a, &T, A, B, b, m0, m1, n);
        if (NV > 1)
            for (; n + VL <= n1; n += VL) columns(1, VL, a, &T, A, B, b, m0, m1, n);
        if (N % VL && n < n1) columns(1, N % VL, a, &T, A, B, b, m0, m1, n);
    }
}
