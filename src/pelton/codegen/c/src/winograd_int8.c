// Winograd F(4×4, 3×3) of bytes, stride 1, channels-last, exact (Lavin and Gray, 2015): a block of TB output tiles at a
// time is transformed to i16, multiplied with the transformed weights (one product per point, U of i16 packed as
// [point][panel][pair of channels][NR]) and transformed back.
//
// At the points 0, ±1, ±2, ∞ all transforms are of integers, if the output is multiplied by 24², a factor that filters
// contain in part. Sums may wrap: 576 y mod 2³² gives 64 y mod 2³² (9 is odd, so has an inverse) and thereby the y that
// fits 26 bits, signed. Where the weights allow larger ones, channels are summed in PARTS, each transformed back by
// itself.
#include "dot.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 7, C = 35, OH = 9, OW = 7, OC = 19, PT = 1, PL = 1, XN = 315, XH = 35, XW = 5 };
enum : idx { SIGNED = 0, PARTS = 1 };
#define PAD 3
typedef struct { i32 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vi32 x, idx b, idx r, idx c, int n) { stn_i32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, TB = 12, NB = 1 << 20 };
// </tactic>

enum : idx { F = 4, E = 6, POINTS = 36, NR = NV * VL, PANELS = (OC + NR - 1) / NR, OCP = PANELS * NR };
enum : idx { WIDTH = NB < OCP ? NB : OCP, NBS = (OCP + WIDTH - 1) / WIDTH, BLOCK = (TB + MR - 1) / MR };
enum : idx { PAIRS_OF_C = (C + 1) / 2, PART = (PAIRS_OF_C + PARTS - 1) / PARTS, WIDE_VL = 2 * VL };
// row stride of V; rows of a power of two would share cache sets
enum : idx { CP = (C + WIDE_VL - 1) / WIDE_VL * WIDE_VL, VS = CP % 128 ? CP : CP + WIDE_VL };
#define TH ((OH + F - 1) / F)
#define TW ((OW + F - 1) / F)
#define TILES (TH * TW)
#define TBS ((TILES + TB - 1) / TB)
#define LAST (TILES - (TBS - 1) * TB) // tiles of the last block

typedef u8 vu8x2_in_memory __attribute__((ext_vector_type(2 * VL), aligned(1), may_alias));

// ---- transforms -----------------------------------------------------------------------------------------------------

// Bᵀ d; two of them grow bytes to 17,340 at most
AI void input_row(vi16x2 *o, const vi16x2 *d, int so, int sd) {
    const vi16x2 d0 = d[0], d1 = d[sd], d2 = d[2 * sd], d3 = d[3 * sd], d4 = d[4 * sd], d5 = d[5 * sd];
    const vi16x2 p = d4 - (d2 << 2), q = d3 - (d1 << 2), r = d4 - d2, s = (d3 - d1) << 1;
    o[0] = p - d2 + (d0 << 2), o[so] = p + q, o[2 * so] = p - q, o[3 * so] = r + s, o[4 * so] = r - s;
    o[5 * so] = d5 - q - (d3 << 2);
}

// 24 Aᵀ m, of filters that are multiplied by 6, -4, -4, 1, 1, 12
AI void output_row(vi32 *o, const vi32 *m, int so, int sm) {
    const vi32 m0 = m[0], m1 = m[sm], m2 = m[2 * sm], m3 = m[3 * sm], m4 = m[4 * sm], m5 = m[5 * sm];
    const vi32 a = m1 + m2, b = m1 - m2, c = m3 + m4, d = m3 - m4;
    o[0] = m0 + a + c, o[so] = b + (d << 1), o[2 * so] = a + (c << 2), o[3 * so] = b + (d << 3) + (m5 << 1);
}

// One tile, 2 VL channels, from pixels at `at`.
AI void transform_input(const i8 *const *at, idx c, i16 *v) {
    vi16x2 d[POINTS], half[POINTS], o[POINTS];
    unroll (int i = 0; i < POINTS; i++)
        d[i] = SIGNED ? ld_i8x2(at[i] + c)
                      : __builtin_convertvector(*(const vu8x2_in_memory *)(at[i] + c), vi16x2);
    unroll (int i = 0; i < E; i++) input_row(half + i, d + i, E, E);
    unroll (int i = 0; i < E; i++) input_row(o + i * E, half + i * E, 1, 1);
    unroll (int i = 0; i < POINTS; i++) *(vi16x2_in_memory *)(v + c + i * TB * VS) = o[i];
}

static __attribute__((noinline)) void spread(const args *a, const i8 *x, const i8 *padding, i16 *v, idx ty, idx tx) {
    const idx top = ty * F - PT, left = tx * F - PL;
    const i8 *at[POINTS];
    unroll (int i = 0; i < E; i++)
        unroll (int j = 0; j < E; j++) {
            const bool in = (u64)(top + i) < H && (u64)(left + j) < W;
            at[i * E + j] = in ? x + (top + i) * XH + (left + j) * XW : padding;
        }
    if (C < WIDE_VL) {
        i8 patch[POINTS * WIDE_VL] = {};
        unroll (int i = 0; i < POINTS; i++) {
            __builtin_memcpy(patch + i * WIDE_VL, at[i], C);
            at[i] = patch + i * WIDE_VL;
        }
        transform_input(at, 0, v);
    } else {
        idx c = 0;
        rolled for (; c + WIDE_VL <= C; c += WIDE_VL) transform_input(at, c, v);
        if (C % WIDE_VL) transform_input(at, C - WIDE_VL, v);
    }
}

static __attribute__((noinline)) void transform_output(const i32 *m, i32 *pixels) {
    unroll (int part = 0; part < PARTS; part++, m += POINTS * TB * WIDTH) {
        vi32 d[POINTS], half[F * E], o[F * F];
        unroll (int i = 0; i < POINTS; i++) d[i] = ld_i32(m + i * TB * WIDTH);
        unroll (int i = 0; i < E; i++) output_row(half + i, d + i, E, E);
        unroll (int i = 0; i < F; i++) output_row(o + i * F, half + i * E, 1, 1);
        unroll (int i = 0; i < F * F; i++) {
            const vi32 y = (o[i] * 0x38e38e39) >> 6;
            st_i32(pixels + i * VL, part ? ld_i32(pixels + i * VL) + y : y);
        }
    }
}

AI void gather(const args *a, const tail *t, const i32 *m, idx b, idx ty, idx tx, idx c, int lanes) {
    i32 pixels[F * F * VL];
    transform_output(m, pixels);
    const idx y = ty * F, x = tx * F, rows = y + F <= OH ? F : OH - y, columns = x + F <= OW ? F : OW - x;
    for (idx i = 0; i < rows; i++)
        for (idx j = 0; j < columns; j++)
            finish(t, ld_i32(pixels + (i * F + j) * VL), b, (y + i) * OW + x + j, c, lanes);
}

// ---- products -------------------------------------------------------------------------------------------------------

// Prefetches: see winograd.c. With 128 and 256 channels (AVX-512 VNNI, 1 thread) 637 and 509 GOP/s of the direct
// algorithm; unrolled twice 612 and 517, four times 586 and 372, in tiles of 4 × 3 vectors 466 and 367, without
// prefetches 589 and 477.
AI void tile(int rows, const i16 *v, const i16 *u, i32 *m, const char *next) {
    const idx step = 4 * NR / BLOCK;
    unroll (int part = 0; part < PARTS; part++, m += POINTS * TB * WIDTH) {
        vi32 acc[MR][NV];
        unroll (int i = 0; i < rows; i++) unroll (int j = 0; j < NV; j++) acc[i][j] = (vi32)0;
        const idx end = (part + 1) * PART < PAIRS_OF_C ? (part + 1) * PART : PAIRS_OF_C;
        rolled for (idx k = part * PART; k < end; k++) {
            for (idx i = 0; i < step; i += 64) __builtin_prefetch(next + k * step + i, 0, 2);
            vi32 w[NV];
            unroll (int j = 0; j < NV; j++) w[j] = *(const vi32_in_memory *)(u + 2 * (k * NR + j * VL));
            unroll (int i = 0; i < rows; i++) {
                const vi32 x = bc_i32(*(const i32_in_memory *)(v + i * VS + 2 * k));
                unroll (int j = 0; j < NV; j++) acc[i][j] = dot_i16(acc[i][j], x, w[j]);
            }
        }
        unroll (int i = 0; i < rows; i++) unroll (int j = 0; j < NV; j++) st_i32(m + i * WIDTH + j * VL, acc[i][j]);
    }
}

// `after`: the panel that follows the last one.
AI void products(const args *a, idx n, const i16 *v, const i16 *u, i32 *m, idx panels, const i16 *after) {
    const idx panel = 2 * PAIRS_OF_C * NR;
    for (idx j = 0; j < panels; j++, u += panel, m += NR) {
        const char *next = (const char *)(j + 1 < panels ? u + panel : after);
        idx i = 0;
        for (; i + MR <= n; i += MR, next += 2 * panel / BLOCK) tile(MR, v + i * VS, u, m + i * WIDTH, next);
        if (n == TB) COUNTED(TB % MR, MR, tile(COUNT, v + i * VS, u, m + i * WIDTH, next))
        else COUNTED(LAST % MR, MR, tile(COUNT, v + i * VS, u, m + i * WIDTH, next))
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    i8 padding[CP];
    __builtin_memset(padding, PAD, CP);
    i32 *m = scratch;
    i16 *v = (i16 *)(m + PARTS * POINTS * TB * WIDTH);
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, block = t / NBS % TBS, b = t / (NBS * TBS);
        const idx t0 = block * TB, n = t0 + TB < TILES ? TB : TILES - t0, c0 = nb * WIDTH,
                  c1 = c0 + WIDTH < OCP ? c0 + WIDTH : OCP;
        const i8 *x = (const i8 *)a[0].p + b * XN;
        const i16 *u = (const i16 *)a[1].p;
        for (idx i = 0; i < n; i++) spread(a, x, padding, v + i * VS, (t0 + i) / TW, (t0 + i) % TW);
        for (idx i = 0; i < POINTS; i++)
            products(a, n, v + i * TB * VS, u + (i * OCP + c0) * 2 * PAIRS_OF_C, m + i * TB * WIDTH, (c1 - c0) / NR,
                     u + ((i + 1) * OCP + c0) * 2 * PAIRS_OF_C);
        for (idx i = 0; i < n; i++) {
            const i32 *from = m + i * WIDTH;
            idx c = c0;
            for (; c + VL <= c1 && c + VL <= OC; c += VL)
                gather(a, &T, from + c - c0, b, (t0 + i) / TW, (t0 + i) % TW, c, VL);
            if (OC % VL && c < c1 && c < OC) gather(a, &T, from + c - c0, b, (t0 + i) / TW, (t0 + i) % TW, c, OC % VL);
        }
    }
}
