// Matrix product C[b, m, n] = A[b, m, :] · B[b, :, n] of factors rounded to bf16, sums in f32: two products to a lane
// and instruction. Blocks of A are rounded into scratch, B is packed in panels of NR columns, by pairs of rows.
#include "vec.h"

// <region>
enum : idx { BATCH = 1, M = 37, N = 40, K = 19, AR = 19 };
#define A_AT(b) ((b) * M * K)
#define B_AT(b) 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, MB = 48, NB = 32 };
// </tactic>

// PAIRS of every row; rows are ROW elements apart, not a power of two, whose lines would share a few sets of the cache.
enum : idx { NR = NV * VL, PAIRS = (K + 1) / 2, ROW = (K + 31) / 32 * 32 + 32, CHAIN = 128 };
#define MBS ((M + MB - 1) / MB)
#define NBS ((N + NB - 1) / NB)
#ifdef M
enum : idx { TILES = (MB + MR - 1) / MR };
#else
enum : idx { TILES = ((M < MB ? M : MB) + MR - 1) / MR };
#endif
enum : idx { STEP = (4 * NR + TILES - 1) / TILES }; // bytes of the next panel that a tile prefetches with every pair

AI vf32 first_of(vi32 x) { return (vf32)(x << 16); }
AI vf32 second_of(vi32 x) { return (vf32)(x & (int)0xffff0000); }

AI vf32 dot_bf16(vf32 acc, vi32 x, vi32 w) {
#if defined __AVX512BF16__ && VL == 16
    typedef __bf16 pairs __attribute__((vector_size(64)));
    return __builtin_ia32_dpbf16ps_512(acc, (pairs)x, (pairs)w);
#else
    return vec_fma(second_of(x), second_of(w), vec_fma(first_of(x), first_of(w), acc));
#endif
}

AI void store_bf16(bf16 *to, vf32 x) {
#if defined __AVX512BF16__ && VL == 16
    typedef __bf16 sixteen __attribute__((vector_size(32), aligned(2), may_alias));
    *(sixteen *)to = __builtin_convertvector(x, sixteen);
#else
    st_bf16(to, x);
#endif
}

// n rows of A in bf16, zero past K.
AI void round_rows(const args *a, const float *A, bf16 *to, idx n) {
    for (idx i = 0; i < n; i++) {
        idx k = 0;
        for (; k + VL <= K; k += VL) store_bf16(to + i * ROW + k, ld_f32(A + i * AR + k));
        if (K % VL) store_bf16(to + i * ROW + k, ldn_f32(A + i * AR + k, K % VL));
    }
}

AI vi32 pair_at(const bf16 *p) {
    i32 pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return bc_i32(pair);
}

// One tile of `rows` × NR. Long sums are made of sums of CHAIN pairs at most.
AI void tile(int rows, bool edge, const tail *t, const bf16 *x, const i32 *p, idx b, idx m, idx n, const char *next) {
    vf32 acc[MR * NV];
    unroll (int i = 0; i < rows * NV; i++) acc[i] = bc_f32(0);
    for (idx k0 = 0; k0 < PAIRS; k0 += CHAIN) {
        const idx end = k0 + CHAIN < PAIRS ? k0 + CHAIN : PAIRS;
        vf32 part[MR * NV];
        unroll (int i = 0; i < rows * NV; i++) part[i] = bc_f32(0);
        fourfold for (idx k = k0; k < end; k++) {
            for (idx i = 0; i < STEP; i += 64) __builtin_prefetch(next + k * STEP + i, 0, 2);
            vi32 w[NV];
            unroll (int j = 0; j < NV; j++) w[j] = ld_i32(p + k * NR + j * VL);
            unroll (int i = 0; i < rows; i++) {
                const vi32 pair = pair_at(x + i * ROW + 2 * k);
                unroll (int j = 0; j < NV; j++) part[i * NV + j] = dot_bf16(part[i * NV + j], pair, w[j]);
            }
        }
        unroll (int i = 0; i < rows * NV; i++) acc[i] += part[i];
    }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const int left = edge ? N % NR - j * VL : VL;
            if (left > 0) finish(t, acc[i * NV + j], b, m + i, n + j * VL, left < VL ? left : VL);
        }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    bf16 *rounded = scratch;
    idx block = -1;
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, mb = t / NBS % MBS, b = t / (MBS * NBS);
        const idx m0 = mb * MB, m1 = m0 + MB < M ? m0 + MB : M, n0 = nb * NB, n1 = n0 + NB < N ? n0 + NB : N;
        const i32 *B = (const i32 *)a[1].p + B_AT(b) / 2;
        if (block != t / NBS) round_rows(a, (const float *)a[0].p + A_AT(b) + m0 * AR, rounded, m1 - m0);
        block = t / NBS; // consecutive tiles share their rows
        for (idx n = n0; n < n1; n += NR) {
            const i32 *p = B + n * PAIRS;
            const char *next = (const char *)(p + NR * PAIRS);
            const bf16 *x = rounded;
            idx m = m0;
            if (N % NR == 0 || n + NR <= N) {
                for (; m + MR <= m1; m += MR, x += MR * ROW, next += STEP * PAIRS)
                    tile(MR, false, &T, x, p, b, m, n, next);
                if (m < m1) COUNTED(M % MR, MR, tile(COUNT, false, &T, x, p, b, m, n, next));
            } else {
                for (; m + MR <= m1; m += MR, x += MR * ROW) tile(MR, true, &T, x, p, b, m, n, next);
                if (m < m1) COUNTED(M % MR, MR, tile(COUNT, true, &T, x, p, b, m, n, next));
            }
        }
    }
}
