// Products of rows with weights that number the entries of a table of 16 floats, which are read as they are stored:
// y[m, n] = Σₖ x[m, k] · table[w[n, k]] · scale. The entries are picked in registers; sums of STEP terms are multiplied
// by the scale of their BLOCK. The panels are those of quantized_linear.c, of four bits and without zero points.
#include "dot.h"

// <region>
enum : idx { BATCH = 1, M = 5, N = 43, K = 70, AR = 70, BLOCK = 32, SCALES = 16 * 2 * VL, RECORD = 20 * 2 * VL };
typedef f16 scale;
#define LOAD_SCALE ld_f16
#define TABLE 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define A_AT(b) 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 4, NV = 2, MB = 48, NB = 64 };
// </tactic>

enum : idx {
    NR = NV * VL,
    STEP = BLOCK % 32 ? 16 : 32,
    SUBS = BLOCK / STEP,
    BLOCKS = (K + BLOCK - 1) / BLOCK,
    CODES = NR * STEP / 2, // bytes of a step's codes
    PANEL = BLOCKS * RECORD,
    AHEAD = 4096, // bytes to prefetch where the weights come from memory
};
#define MBS ((M + MB - 1) / MB)
#define NBS ((N + NB - 1) / NB)

// Adds terms k and on, `terms` of the eight that a word of each lane holds.
AI void add_terms(int terms, int count, const vf32 *entries, const u8 *p, const float *A, const args *a, vf32 *sum) {
    vi32 w[NV];
    unroll (int j = 0; j < NV; j++) w[j] = *(const vi32_in_memory *)(p + j * (CODES / NV));
    unroll (int s = 0; s < 8; s++) {
        if (s >= terms) break;
        const int shift = 8 * (s % 4) + 4 * (s / 4);
        vf32 v[NV];
        unroll (int j = 0; j < NV; j++) v[j] = pick_f32(entries, (vi32)((vu32)w[j] >> shift));
        unroll (int i = 0; i < count; i++) {
            const vf32 x = bc_f32(A[i * AR + s]);
            unroll (int j = 0; j < NV; j++) sum[i * NV + j] = vec_fma(x, v[j], sum[i * NV + j]);
        }
    }
}

// One tile of `count` rows × NR.
AI void tile(int count, bool ahead, bool edge, const args *a, const tail *t, const vf32 *entries, const u8 *p,
             const float *A, idx b, idx m, idx n) {
    vf32 acc[MR * NV];
    unroll (int i = 0; i < count * NV; i++) acc[i] = bc_f32(0);
    rolled for (idx k = 0; k < K; p += RECORD) {
        const u8 *scales = p + SCALES;
        if (ahead)
            for (idx i = 0; i < RECORD; i += 64) __builtin_prefetch(p + AHEAD + i, 0, 3);
        rolled for (idx u = 0; u < SUBS && k < K; u++, k += STEP) {
            vf32 sum[MR * NV];
            unroll (int i = 0; i < count * NV; i++) sum[i] = bc_f32(0);
            const u8 *codes = p + u * CODES;
            rolled for (idx g = 0; g < STEP / 8; g++) {
                const idx left = K - k - g * 8;
                if (left >= 8) add_terms(8, count, entries, codes + g * 4 * VL, A + k + g * 8, a, sum);
                else if (K % 8 && left > 0) add_terms(K % 8, count, entries, codes + g * 4 * VL, A + k + g * 8, a, sum);
            }
            unroll (int j = 0; j < NV; j++) {
                const vf32 by = LOAD_SCALE((const scale *)scales + j * VL);
                unroll (int i = 0; i < count; i++) acc[i * NV + j] = vec_fma(sum[i * NV + j], by, acc[i * NV + j]);
            }
        }
    }
    unroll (int i = 0; i < count; i++)
        unroll (int j = 0; j < NV; j++) {
            const int left = edge ? N % NR - j * VL : VL;
            if (left > 0) finish(t, acc[i * NV + j], b, m + i, n + j * VL, left < VL ? left : VL);
        }
}

AI void panel(bool edge, const args *a, const tail *t, const vf32 *entries, const u8 *p, const float *A, idx b, idx m0,
              idx m1, idx n) {
    idx m = m0;
    for (; m + MR <= m1; m += MR)
        if (m == m0) tile(MR, true, edge, a, t, entries, p, A + m * AR, b, m, n);
        else tile(MR, false, edge, a, t, entries, p, A + m * AR, b, m, n);
    if (m < m1) COUNTED(M % MR, MR, tile(COUNT, M < MR, edge, a, t, entries, p, A + m * AR, b, m, n));
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    const float numbers[16] = { TABLE };
    vf32 entries[16 / VL];
    unroll (int i = 0; i < 16 / VL; i++) entries[i] = ld_f32(numbers + i * VL);
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, mb = t / NBS % MBS, b = t / (MBS * NBS);
        const idx m0 = mb * MB, m1 = m0 + MB < M ? m0 + MB : M, n0 = nb * NB, n1 = n0 + NB < N ? n0 + NB : N;
        for (idx n = n0; n < n1; n += NR) {
            const u8 *p = (const u8 *)a[1].p + n / NR * PANEL;
            const float *A = (const float *)a[0].p + A_AT(b);
            if (N % NR == 0 || n + NR <= N) panel(false, a, &T, entries, p, A, b, m0, m1, n);
            else panel(true, a, &T, entries, p, A, b, m0, m1, n);
        }
    }
}
