// Products C[b, m, n] = A[b, m, :] · B[b, :, n] of few rows with a computed matrix. Reading B is the bottleneck: it is
// read once, in place. Where its rows are contiguous, the sums of a tile's columns stay in scratch while DEEP rows at a
// time are added to them: runs of NB floats, not one vector from every page. Where its columns are contiguous (a
// transposed matrix), WIDE of them are multiplied with the rows of A at a time. Long sums are made of sums of at most
// BLOCK terms, which keeps them exact.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, M = 3, N = 43, K = 19, AR = 19, BK = 43, BN = 1 };
#define A_AT(b) 0
#define B_AT(b) 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { NB = 64 };
// </tactic>

#define NBS ((N + NB - 1) / NB)
#define WHOLE_ROWS (BN == 1)
enum : idx { DEEP = 4, WIDE = 4, BLOCK = 1024 };

// Adds `deep` rows of B, `vectors` of n lanes of each, to the sums. Two vectors are a cache line: rows a power of two
// apart share a few sets of L1, where no line would survive until its other half is read.
AI void add_rows(int deep, int vectors, int n, const args *a, const float *A, const float *B, float *sum) {
    vf32 acc[M * 2];
    unroll (int i = 0; i < M; i++)
        unroll (int j = 0; j < vectors; j++) acc[i * 2 + j] = ld_f32(sum + i * NB + j * VL);
    unroll (int k = 0; k < deep; k++)
        unroll (int j = 0; j < vectors; j++) {
            const vf32 v = n == VL ? ld_f32(B + k * BK + j * VL) : ldn_f32(B + k * BK, n);
            unroll (int i = 0; i < M; i++) acc[i * 2 + j] = vec_fma(bc_f32(A[i * AR + k]), v, acc[i * 2 + j]);
        }
    unroll (int i = 0; i < M; i++)
        unroll (int j = 0; j < vectors; j++) st_f32(sum + i * NB + j * VL, acc[i * 2 + j]);
}

AI void add_row_block(int deep, const args *a, const float *A, const float *B, float *sum, idx count) {
    idx c = 0;
    for (; c + 2 * VL <= count; c += 2 * VL) add_rows(deep, 2, VL, a, A, B + c, sum + c);
    for (; c + VL <= count; c += VL) add_rows(deep, 1, VL, a, A, B + c, sum + c);
    if (c < count) add_rows(deep, 1, (int)(count - c), a, A, B + c, sum + c);
}

// Adds the products of `count` columns of B and the rows of A, from k on, to part: lane j of vector i for row i and
// column j.
AI void dots(int count, const args *a, const float *A, const float *B, float *part, idx k) {
    vf32 acc[M * WIDE];
    unroll (int i = 0; i < M * WIDE; i++) acc[i] = bc_f32(0);
    const idx end = k + VL * BLOCK < K ? k + VL * BLOCK : K;
    for (; k + VL <= end; k += VL)
        unroll (int j = 0; j < count; j++) {
            const vf32 v = ld_f32(B + j * BN + k);
            unroll (int i = 0; i < M; i++) acc[i * WIDE + j] = vec_fma(ld_f32(A + i * AR + k), v, acc[i * WIDE + j]);
        }
    if (K % VL && end == K)
        unroll (int j = 0; j < count; j++) {
            const vf32 v = ldn_f32(B + j * BN + k, K - k);
            unroll (int i = 0; i < M; i++)
                acc[i * WIDE + j] = vec_fma(ldn_f32(A + i * AR + k, K - k), v, acc[i * WIDE + j]);
        }
    unroll (int i = 0; i < M; i++)
        unroll (int j = 0; j < count; j++) part[i * VL + j] += hsum_f32(acc[i * WIDE + j]);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    float *sum = scratch, *whole = K > BLOCK ? sum + M * NB : sum;
    for (idx t = begin; t < end; t++) {
        const idx b = t / NBS, n0 = t % NBS * NB, n1 = n0 + NB < N ? n0 + NB : N;
        const float *A = (const float *)a[0].p + A_AT(b), *B = (const float *)a[1].p + B_AT(b);
        if (WHOLE_ROWS) {
            for (idx i = 0; i < M * NB; i += VL) st_f32(whole + i, bc_f32(0));
            for (idx k = 0; k < K;) {
                const idx end = k + BLOCK < K ? k + BLOCK : K;
                if (K > BLOCK)
                    for (idx i = 0; i < M * NB; i += VL) st_f32(sum + i, bc_f32(0));
                for (; k + DEEP <= end; k += DEEP) add_row_block(DEEP, a, A + k, B + k * BK + n0, sum, n1 - n0);
                for (; k < end; k++) add_row_block(1, a, A + k, B + k * BK + n0, sum, n1 - n0);
                if (K > BLOCK)
                    for (idx i = 0; i < M * NB; i += VL) st_f32(whole + i, ld_f32(whole + i) + ld_f32(sum + i));
            }
        }
        for (idx n = n0; n < n1; n += VL) {
            const int left = n1 - n < VL ? (int)(n1 - n) : VL;
            float part[M * VL];
            if (!WHOLE_ROWS) {
                for (idx i = 0; i < M * VL; i += VL) st_f32(part + i, bc_f32(0));
                for (idx k = 0; k < K; k += VL * BLOCK) {
                    idx j = 0;
                    for (; j + WIDE <= left; j += WIDE) dots(WIDE, a, A, B + (n + j) * BN, part + j, k);
                    for (; j < left; j++) dots(1, a, A, B + (n + j) * BN, part + j, k);
                }
            }
            unroll (int i = 0; i < M; i++)
                finish(&T, ld_f32(WHOLE_ROWS ? whole + i * NB + n - n0 : part + i * VL), b, i, n, left);
        }
    }
}
