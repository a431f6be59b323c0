// Products of rows with weights of 4 and 8 bits, which are read as they are stored: y[m, n] = Σₖ x[m, k] · (w[n, k] −
// zero) · scale, with a zero and a scale for each BLOCK terms. Rows become integers first: STEP terms at a time are
// divided by a scale of their own and written as PARTS digits of 8 bits. Three digits are as exact as f32 (254⁻³ of the
// largest term). The products are those of bytes. Infinities become NaN.
//
//   panel   of NR = NV · VL columns, block by block: [SUBS][NV][STEP terms] of codes, NR scales [, NR zero points or
//           NR offsets, −zero · scale]
//   codes   of 4 bits: the four bytes g of a lane hold terms 8g … 8g + 7 of a column, 8g … 8g + 3 in the low halves;
//           of 8 bits: terms 4g … 4g + 3
#include "dot.h"

// <region>
enum : idx { BATCH = 1, M = 5, N = 43, K = 70, AR = 70, BLOCK = 32, BITS = 4, ZEROS = 1, OFFSETS = 0 };
typedef f16 scale;
typedef f16 offset;
#define LOAD_SCALE ld_f16
#define LOAD_OFFSET ld_f16
#define A_AT(b) 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * M + r) * N + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 4, NV = 2, MB = 48, NB = 64, PARTS = 3 };
// </tactic>

enum : idx {
    NR = NV * VL,
    STEP = BLOCK % 32 ? 16 : 32,
    SUBS = BLOCK / STEP,
    BLOCKS = (K + BLOCK - 1) / BLOCK,
    STEPS = BLOCKS * SUBS,
    CODES = NR * STEP * BITS / 8, // bytes of a step's codes
    RECORD = SUBS * CODES + NR * (idx)sizeof(scale) + ZEROS * NR + OFFSETS * NR * (idx)sizeof(offset), // and of a block
    PANEL = BLOCKS * RECORD,
    ROW = STEPS * STEP + 64, // of a row's digits: not a power of two, whose lines would share a few sets of the cache
};
#define MBS ((M + MB - 1) / MB)
#define NBS ((N + NB - 1) / NB)

// The way to multiply bytes. FOURS: unsigned codes of weights by digits (signed codes on AArch64) in one instruction.
// BY_SIGNS: magnitudes of codes by digits of their sign, exact in pairs.
#if defined __AVX512VNNI__ && VL == 16 || defined __AVXVNNI__ && VL == 8 || defined __ARM_FEATURE_DOTPROD
enum { FOURS = 1, BY_SIGNS = 0 };
#elif defined __AVX2__ && VL == 8
enum { FOURS = 0, BY_SIGNS = 1 };
#else
enum { FOURS = 0, BY_SIGNS = 0 };
#endif
#if defined __ARM_FEATURE_DOTPROD
enum { SIGNED_CODES = BITS == 8 };
#else
enum { SIGNED_CODES = BITS == 8 && BY_SIGNS };
#endif
enum { SHIFT = SIGNED_CODES ? 128 : 0, ZERO = (OFFSETS ? 0 : 1 << (BITS - 1)) - SHIFT }; // ZERO: without zero points

typedef struct {
    i8 *digits;   // [PARTS][MB][ROW]
    float *scale; // [MB][STEPS]
    i32 *sum;     // [PARTS][MB][STEPS]: minus the sums of digits, times the code of zero if it is always the same
    float *total; // [MB][STEPS]: the sums of rounded terms, for offsets
} rows;

// Has the compiler read broadcasts again for each half of a panel. On the stack, where it kept them, 240 GOP/s fell
// short of 350.
#define REREAD __asm__ volatile("" ::: "memory")

AI vi32 digits_at(const i8 *p) { return bc_i32(*(const i32_in_memory *)p); }

AI void load_codes(vi32 *w, const u8 *p) {
    if (BITS == 4)
        unroll (int g = 0; g < STEP / 8; g++) {
            const vi32 x = *(const vi32_in_memory *)(p + g * 4 * VL);
            w[2 * g] = x & 0x0f0f0f0f;
            w[2 * g + 1] = (vi32)((vu16x2)x >> 4) & 0x0f0f0f0f;
        }
    else
        unroll (int g = 0; g < STEP / 4; g++) {
            w[g] = *(const vi32_in_memory *)(p + g * 4 * VL);
            if (SIGNED_CODES) w[g] ^= (int)0x80808080;
        }
}

// acc + the products of a step's codes and digits.
AI vi32 dot_step(const vi32 *w, const i8 *digits, vi32 acc) {
    if (FOURS || BITS == 8 && !BY_SIGNS) {
        unroll (int g = 0; g < STEP / 4; g++) acc = dot_fours(acc, w[g], digits_at(digits + 4 * g));
        return acc;
    }
    if (BITS == 4) { // STEP / 4 · 2 · 15 · 127 < 2¹⁵
        vi16x2 pairs = madd_bytes(w[0], digits_at(digits));
        unroll (int g = 1; g < STEP / 4; g++) pairs += madd_bytes(w[g], digits_at(digits + 4 * g));
        return add_pairs(acc, pairs);
    }
    unroll (int g = 0; g < STEP / 4; g++) // 2 · 128 · 127 < 2¹⁵
        acc = add_pairs(acc, madd_bytes(signed_as(w[g], w[g]), signed_as(digits_at(digits + 4 * g), w[g])));
    return acc;
}

// n rows of A as digits.
AI void round_rows(const args *a, const float *A, rows r, idx n) {
    for (idx i = 0; i < n; i++)
        for (idx c = 0; c < STEPS; c++) {
            const float *x = A + i * AR + c * STEP;
            vf32 v[STEP / VL], top = bc_f32(0);
            unroll (int j = 0; j < STEP / VL; j++) {
                const idx left = K - c * STEP - j * VL;
                v[j] = left >= VL ? ld_f32(x + j * VL) : left > 0 ? ldn_f32(x + j * VL, left) : bc_f32(0);
                top = f32_maximum(top, __builtin_elementwise_abs(v[j]));
            }
            const float most = hmax_f32(top), factor = most < 1e-30f ? 0 : 127 / most;
            r.scale[i * STEPS + c] = most < 1e-30f ? 0 : most / 127;
            unroll (int j = 0; j < STEP / VL; j++) v[j] *= bc_f32(factor);
            float total = 0, unit = r.scale[i * STEPS + c];
            unroll (int p = 0; p < PARTS; p++) {
                vi32 sums = bc_i32(0);
                unroll (int j = 0; j < STEP / VL; j++) {
                    const vi32 digit = round_within_i32(v[j]);
                    *(vi8_in_memory *)(r.digits + (p * MB + i) * ROW + c * STEP + j * VL) = CONVERT(digit, i8);
                    v[j] = (v[j] - CONVERT(digit, f32)) * bc_f32(254);
                    sums += digit;
                }
                const i32 sum = hsum_i32(sums);
                r.sum[(p * MB + i) * STEPS + c] = -sum * (ZEROS ? 1 : ZERO);
                total += (float)sum * unit, unit /= 254;
            }
            if (OFFSETS) r.total[i * STEPS + c] = total;
        }
}

// One tile of `count` rows × NR, of rows i and on. The CPU prefetches weights better than instructions do: tokens a
// second of Qwen2.5-0.5B with none, 256 and 4,096 bytes ahead are 84, 78, 70 (AVX2, in other minutes: 115, 116, 99).
AI void tile(int count, bool edge, const tail *t, const u8 *p, rows r, idx i0, idx b, idx m, idx n) {
    vf32 acc[MR * NV];
    unroll (int i = 0; i < count * NV; i++) acc[i] = bc_f32(0);
    r.digits += i0 * ROW, r.scale += i0 * STEPS, r.sum += i0 * STEPS, r.total += i0 * STEPS;
    rolled for (idx k = 0; k < STEPS; p += RECORD) {
        const u8 *scales = p + SUBS * CODES, *zeros = scales + NR * sizeof(scale);
        rolled for (idx u = 0; u < SUBS; u++, k++)
            unroll (int j = 0; j < NV; j++) {
                if (count > 1) REREAD;
                vi32 w[STEP / 4];
                load_codes(w, p + u * CODES + j * (CODES / NV));
                const vf32 by = LOAD_SCALE((const scale *)scales + j * VL);
                const vi32 zero = ZEROS ? CONVERT(*(const vu8_in_memory *)(zeros + j * VL), i32) - SHIFT : bc_i32(0);
                const vf32 least = OFFSETS ? LOAD_OFFSET((const offset *)zeros + j * VL) : bc_f32(0);
                unroll (int i = 0; i < count; i++) {
                    vf32 y = bc_f32(0);
                    unroll (int d = PARTS - 1; d >= 0; d--) {
                        const vi32 sum = bc_i32(ZERO == 0 && !ZEROS ? 0 : r.sum[(d * MB + i) * STEPS + k]);
                        const vi32 start = ZEROS ? zero * sum : sum;
                        const vf32 digit = CONVERT(dot_step(w, r.digits + (d * MB + i) * ROW + k * STEP, start), f32);
                        y = d == PARTS - 1 ? digit : vec_fma(y, bc_f32(1 / 254.0f), digit);
                    }
                    vf32 *to = acc + i * NV + j;
                    *to = vec_fma(y, by * bc_f32(r.scale[i * STEPS + k]), *to);
                    if (OFFSETS) *to = vec_fma(least, bc_f32(r.total[i * STEPS + k]), *to);
                }
            }
    }
    unroll (int i = 0; i < count; i++)
        unroll (int j = 0; j < NV; j++) {
            const int left = edge ? N % NR - j * VL : VL;
            if (left > 0) finish(t, acc[i * NV + j], b, m + i, n + j * VL, left < VL ? left : VL);
        }
}

AI void panel(bool edge, const args *a, const tail *t, const u8 *p, rows r, idx b, idx m0, idx m1, idx n) {
    idx m = m0;
    for (; m + MR <= m1; m += MR)
        tile(MR, edge, t, p, r, m - m0, b, m, n);
    if (m < m1) COUNTED(M % MR, MR, tile(COUNT, edge, t, p, r, m - m0, b, m, n));
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    i8 *digits = scratch;
    float *scales = (float *)(digits + PARTS * MB * ROW);
    i32 *sums = (i32 *)(scales + MB * STEPS);
    const rows r = { digits, scales, sums, (float *)(sums + PARTS * MB * STEPS) };
    idx block = -1;
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, mb = t / NBS % MBS, b = t / (MBS * NBS);
        const idx m0 = mb * MB, m1 = m0 + MB < M ? m0 + MB : M, n0 = nb * NB, n1 = n0 + NB < N ? n0 + NB : N;
        if (block != t / NBS) round_rows(a, (const float *)a[0].p + A_AT(b) + m0 * AR, r, m1 - m0);
        block = t / NBS; // consecutive tiles share their rows
        for (idx n = n0; n < n1; n += NR) {
            const u8 *p = (const u8 *)a[1].p + n / NR * PANEL;
            if (N % NR == 0 || n + NR <= N) panel(false, a, &T, p, r, b, m0, m1, n);
            else panel(true, a, &T, p, r, b, m0, m1, n);
        }
    }
}
