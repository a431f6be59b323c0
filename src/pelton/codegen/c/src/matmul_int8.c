// Matrix product C[b, m, n] = Σ (A[b, m, k] − AZ) · (B[b, k, n] − BZ) of bytes, without packed operands, sums in i32.
// Both become i16 less their zero points in scratch: A row by row, B in panels of NR columns, by pairs of rows.
#include "dot.h"

// <region>
enum : idx { BATCH = 1, M = 37, N = 40, K = 19, AR = 19, AZ = 3, A_SIGNED = 0, BK = 40, BN = 1, BZ = -1, B_SIGNED = 1 };
#define A_AT(b) ((b) * M * K)
#define B_AT(b) 0
typedef struct { i32 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vi32 x, idx b, idx r, idx c, int n) { stn_i32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, MB = 48, NB = 32 };
// </tactic>

// PAIRS of every row; rows are ROW elements apart, not a power of two, whose lines would share a few sets of the cache.
enum : idx { NR = NV * VL };
#define PAIRS ((K + 1) / 2)
#define ROW ((K + 31) / 32 * 32 + 32)
#define MBS ((M + MB - 1) / MB)
#define NBS ((N + NB - 1) / NB)

// 2·VL bytes, or the first n of them before zeros, less a zero point.
AI vi16x2 less(bool is_signed, idx zero, const i8 *p) {
    return (is_signed ? ld_i8x2(p) : ld_u8x2((const u8 *)p)) - (i16)zero;
}
AI vi16x2 less_part(bool is_signed, idx zero, const i8 *p, idx n) {
    i8 part[2 * VL] = { 0 };
    __builtin_memcpy(part, p, n);
    return less(is_signed, zero, part);
}

// n rows of A, of any numbers past K.
AI void copy_rows(const args *a, const i8 *A, i16 *to, idx n) {
    for (idx i = 0; i < n; i++) {
        const i8 *from = A + i * AR;
        i16 *row = to + i * ROW;
        idx k = 0;
        for (; k + 2 * VL <= K; k += 2 * VL) *(vi16x2_in_memory *)(row + k) = less(A_SIGNED, AZ, from + k);
        if (K % (2 * VL)) *(vi16x2_in_memory *)(row + k) = less_part(A_SIGNED, AZ, from + k, K % (2 * VL));
    }
}

AI vi32 widened(const i8 *p, idx n) {
    return B_SIGNED ? CONVERT(ldn_i8(p, n), i32) : CONVERT(ldn_u8((const u8 *)p, n), i32);
}

// Rows k0 to k1 of n columns of B whose rows are contiguous: two rows become one.
AI void zip_rows(const args *a, const i8 *B, i32 *to, idx n, idx k0, idx k1) {
    for (idx k = k0; k < k1; k += 2) {
        const bool both = K % 2 == 0 || k + 1 < K;
        const vi32 second = both ? widened(B + (k + 1) * BK, n) : (vi32)0;
        const vi32 pair = (vi32)((vi16x2)((widened(B + k * BK, n) & 0xffff) | second << 16) - (i16)BZ);
        st_i32(to + k / 2 * NR, both ? pair : pair & 0xffff);
    }
}

// The same of n columns that are contiguous: transposed.
AI void transpose_columns(const args *a, const i8 *B, i32 *to, idx n, idx k0, idx k1) {
    for (idx k = k0; k < k1; k += 2 * VL) {
        vf32 r[VL];
        unroll (int j = 0; j < VL; j++) {
            if (j >= n) r[j] = bc_f32(0);
            else if (k + 2 * VL <= K) r[j] = (vf32)less(B_SIGNED, BZ, B + j * BN + k);
            else r[j] = (vf32)less_part(B_SIGNED, BZ, B + j * BN + k, K % (2 * VL));
        }
        transpose_f32(r);
        unroll (int i = 0; i < VL; i++)
            if (k + 2 * i < K) st_i32(to + (k / 2 + i) * NR, (vi32)r[i] & (k + 2 * i + 1 < K ? -1 : 0xffff));
    }
}

// B as [panel][pair of rows][NR], each pair an i32; of columns past N any numbers, of the row past K zeros. Rows are
// read a few at a time, so that a line of them is read once, for all panels in it.
AI void pack(const args *a, const i8 *B, i32 *panels, idx n0, idx n1) {
    const bool by_rows = BN == 1 || N == 1;
    const idx step = by_rows ? 16 : K;
    for (idx k = 0; k < K; k += step) {
        i32 *to = panels;
        for (idx n = n0; n < n1; n += NR, to += PAIRS * NR)
            unroll (int j = 0; j < NV; j++) {
                const idx c = n + j * VL, left = c + VL <= N ? VL : N - c, end = k + step < K ? k + step : K;
                if (left <= 0) break;
                if (by_rows) zip_rows(a, B + c * BN, to + j * VL, left, k, end);
                else transpose_columns(a, B + c * BN, to + j * VL, left, k, end);
            }
    }
}

AI vi32 pair_at(const i16 *p) { return bc_i32(*(const i32_in_memory *)p); }

// One tile of `rows` × NR.
AI void tile(int rows, bool edge, const args *a, const tail *t, const i16 *x, const i32 *p, idx b, idx m, idx n) {
    vi32 acc[MR * NV];
    unroll (int i = 0; i < rows * NV; i++) acc[i] = bc_i32(0);
    rolled for (idx k = 0; k < PAIRS; k++) {
        vi32 w[NV];
        unroll (int j = 0; j < NV; j++) w[j] = ld_i32(p + k * NR + j * VL);
        unroll (int i = 0; i < rows; i++) {
            const vi32 pair = pair_at(x + i * ROW + 2 * k);
            unroll (int j = 0; j < NV; j++) acc[i * NV + j] = dot_i16(acc[i * NV + j], pair, w[j]);
        }
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
    i32 *panels = scratch;
    i16 *rows = (i16 *)(panels + NB * PAIRS);
    idx packed = -1, copied = -1; // consecutive tasks share their columns, and if there is one block of rows, these
    for (idx t = begin; t < end; t++) {
        const idx mb = t % MBS, nb = t / MBS % NBS, b = t / (MBS * NBS);
        const idx m0 = mb * MB, m1 = m0 + MB < M ? m0 + MB : M, n0 = nb * NB, n1 = n0 + NB < N ? n0 + NB : N;
        if (packed != t / MBS) pack(a, (const i8 *)a[1].p + B_AT(b), panels, n0, n1);
        if (copied != b * MBS + mb) copy_rows(a, (const i8 *)a[0].p + A_AT(b) + m0 * AR, rows, m1 - m0);
        packed = t / MBS;
        copied = b * MBS + mb;
        const i32 *p = panels;
        for (idx n = n0; n < n1; n += NR, p += PAIRS * NR) {
            const i16 *x = rows;
            idx m = m0;
            if (N % NR == 0 || n + NR <= N) {
                for (; m + MR <= m1; m += MR, x += MR * ROW) tile(MR, false, a, &T, x, p, b, m, n);
                if (m < m1) COUNTED(M % MR, MR, tile(COUNT, false, a, &T, x, p, b, m, n));
            } else {
                for (; m + MR <= m1; m += MR, x += MR * ROW) tile(MR, true, a, &T, x, p, b, m, n);
                if (m < m1) COUNTED(M % MR, MR, tile(COUNT, true, a, &T, x, p, b, m, n));
            }
        }
    }
}
