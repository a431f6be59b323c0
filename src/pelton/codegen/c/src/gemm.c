// Matrix product C[b, m, n] = A[b, m, :] · B[b, :, n]: A read in place row by row, B in panels of NR columns
// (packed at build time, or here into scratch where it is not constant), K in blocks that keep a panel in L1. Packed
// panels may be in half precision.
#include "product.h"

// <region>
enum : idx { BATCH = 1, M = 37, N = 40, K = 19, AR = 19, PACKED = 1, BK = 40, BN = 1 };
typedef float weight;
enum : idx { HALF = 0 };
#define A_AT(b) ((b) * M * K)
#define B_AT(b) 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, MB = 48, NB = 32, KC = 384 };
// </tactic>

enum : idx { NR = NV * VL, WIDTH = sizeof(weight) };
#define MBS ((M + MB - 1) / MB)
#define NBS ((N + NB - 1) / NB)
#define BLOCKED (K > KC)
// True if weights are prefetched from memory during use: one prefetch for each column of A. Against bursts before each
// tile: 128 × 768 × 3072 7 % faster, 128 × 768 × 2304 10 %, 128 × 3072 × 768 3 % slower (2 threads, interleaved, cold
// weights). Against no prefetch: 49 × 2048 × 512 12 % faster, 196 × 1024 × 256 and 784 × 512 × 128 within 2 %. The
// tiles of a block share the prefetch. Where M is dynamic, each does as much as in a whole block, a number known at
// compile time: computing it at run time cost BERT of 128 tokens 4 %. The share of the missing tiles of a smaller M is
// prefetched before the others.
#ifdef M
enum : idx { M_VARIES = 1, TILES = (MB + MR - 1) / MR };
#else
enum : idx { M_VARIES = 0, TILES = ((M < MB ? M : MB) + MR - 1) / MR };
#endif
#define STREAMED (PACKED && K * N >= FAR && (M_VARIES || M >= 24))

// One tile of `rows` × NR: its part of the sum from k0 on, `kn` long; the last part goes through the tail. A panel
// comes from memory once and is used by all tiles of a block: each prefetches its part of the next one, `step` bytes
// with every column.
AI void tile(int rows, bool edge, const args *a, const tail *t, const float *A, const weight *p, float *part, idx kn,
             bool first, bool last, idx b, idx m, idx n, const char *next, idx step) {
    FREE_REGISTERS;
    vf32 acc[MR * NV];
    unroll (int i = 0; i < rows * NV; i++) acc[i] = bc_f32(0);
    if (KC <= CHAIN + CHAIN / 2 || K <= CHAIN) product_of(HALF, rows, NV, A, AR, p, kn, acc, next, step);
    else long_product_of(HALF, rows, NV, A, AR, p, kn, acc, next, step);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            vf32 x = acc[i * NV + j];
            if (BLOCKED && !first) x += ld_f32(part + i * NR + j * VL);
            if (BLOCKED && !last) {
                st_f32(part + i * NR + j * VL, x);
            } else if (!edge) {
                finish(t, x, b, m + i, n + j * VL, VL);
            } else {
                const int left = N % NR - j * VL;
                if (left > 0) finish(t, x, b, m + i, n + j * VL, left < VL ? left : VL);
            }
        }
}

// B as [panel][k][NR], columns past N zero.
AI void pack(const args *a, const float *B, float *to, idx n0, idx n1) {
    for (idx n = n0; n < n1; n += NR)
        for (idx k = 0; k < K; k++) {
            float *row = to + (n - n0) * K + k * NR;
            unroll (int j = 0; j < NV; j++) {
                const idx c = n + j * VL;
                const float *from = B + k * BK + c * BN;
                if (c + VL <= N) st_f32(row + j * VL, BN == 1 ? ld_f32(from) : ldg_f32(from, BN, VL));
                else if (c < N) st_f32(row + j * VL, BN == 1 ? ldn_f32(from, N - c) : ldg_f32(from, BN, N - c));
                else st_f32(row + j * VL, bc_f32(0));
            }
        }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    float *part = scratch, *packed = part + (BLOCKED ? MB * NB : 0);
    const idx step = STREAMED ? (WIDTH * NR + TILES - 1) / TILES : 0;
    idx packed_for = -1;
    for (idx t = begin; t < end; t++) {
        const idx mb = t % MBS, nb = t / MBS % NBS, b = t / (MBS * NBS);
        const idx m0 = mb * MB, m1 = m0 + MB < M ? m0 + MB : M, n0 = nb * NB, n1 = n0 + NB < N ? n0 + NB : N;
        const float *A = (const float *)a[0].p + A_AT(b);
        const weight *B = (const weight *)a[1].p + B_AT(b);
        if (!PACKED) {
            // consecutive tiles share their columns
            if (packed_for != t / MBS) pack(a, (const float *)B, packed, n0, n1);
            packed_for = t / MBS;
            B = (const weight *)(packed - n0 * K);
        }
        for (idx k0 = 0; k0 == 0 || k0 < K; k0 += KC) { // once even where K is 0
            const idx kn = k0 + KC < K ? KC : K - k0;
            const bool first = k0 == 0, last = k0 + kn == K;
            for (idx n = n0; n < n1; n += NR) {
                const weight *p = B + n * K + k0 * NR;
                const weight *then = n + NR < n1 ? p + K * NR : last ? B + n1 * K : B + n0 * K + (k0 + KC) * NR;
                const char *next = (const char *)then;
                float *row = part + (n - n0) * MB;
                if (M_VARIES && STREAMED && M >= 24 && M < MB)
                    for (idx i = (M / MR) * kn * step; i < WIDTH * kn * NR; i += 64)
                        __builtin_prefetch(next + i, 0, 2);
                idx m = m0;
                if (N % NR == 0 || n + NR <= N) {
                    for (; m + MR <= m1; m += MR, next += kn * step)
                        tile(MR, false, a, &T, A + m * AR + k0, p, row + (m - m0) * NR, kn, first, last, b, m, n, next,
                             step);
                    if (m < m1)
                        COUNTED(M % MR, MR,
                                tile(COUNT, false, a, &T, A + m * AR + k0, p, row + (m - m0) * NR, kn, first, last, b,
                                     m, n, 0, 0));
                } else {
                    for (; m + MR <= m1; m += MR)
                        tile(MR, true, a, &T, A + m * AR + k0, p, row + (m - m0) * NR, kn, first, last, b, m, n, 0, 0);
                    if (m < m1)
                        COUNTED(M % MR, MR,
                                tile(COUNT, true, a, &T, A + m * AR + k0, p, row + (m - m0) * NR, kn, first, last, b, m,
                                     n, 0, 0));
                }
            }
        }
    }
}
