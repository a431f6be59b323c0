// Winograd F(2×2, 3×3), F(4×4, 3×3) and F(6×6, 3×3), stride 1, channels-last (Lavin and Gray, 2015): a block of TB
// output tiles at a time is transformed, multiplied with the transformed weights (one product per point, U packed as
// [point][panel][channel][NR]) and transformed back.
#include "product.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 7, C = 5, OH = 9, OW = 7, OC = 19, PT = 1, PL = 1, XN = 315, XH = 35, XW = 5 };
typedef float weight;
enum : idx { HALF = 0 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { F = 4, MR = 6, NV = 2, TB = 12, NB = 1 << 20 };
// </tactic>

enum : idx { NR = NV * VL, E = F + 2, POINTS = E * E, PANELS = (OC + NR - 1) / NR, OCP = PANELS * NR,
              WIDTH = NB < OCP ? NB : OCP, NBS = (OCP + WIDTH - 1) / WIDTH, CP = (C + VL - 1) / VL * VL,
              BLOCK = (TB + MR - 1) / MR,
              VS = CP % 256 ? CP : CP + VL }; // row stride of V; not a power of two, whose rows would share cache sets
#define TH ((OH + F - 1) / F)
#define TW ((OW + F - 1) / F)
#define TILES (TH * TW)
#define TBS ((TILES + TB - 1) / TB)
#define LAST (TILES - (TBS - 1) * TB) // tiles of the last block

// F(4×4) evaluates at 0, ±√½, ±√2, ∞, whose rounding error is a third of that of 0, ±1, ±2, ∞; F(2×2) at 0, ±1, ∞;
// F(6×6) at 0, ±1, ±2, ±½, ∞.
#define ROOT_HALF bc_f32(0.70710678f)
#define ROOT_TWO bc_f32(1.41421356f)

// Bᵀ d
AI void input_row(vf32 *o, const vf32 *d, int so, int sd) {
    if (F == 4) {
        const vf32 d0 = d[0], d1 = d[sd], d2 = d[2 * sd], d3 = d[3 * sd], d4 = d[4 * sd], d5 = d[5 * sd];
        o[0] = vec_fma(bc_f32(-2.5f), d2, d0 + d4);
        const vf32 p = vec_fma(bc_f32(-2), d2, d4), q = vec_fma(bc_f32(-2), d1, d3), r = vec_fma(bc_f32(-.5f), d2, d4),
                   s = vec_fma(bc_f32(-.5f), d1, d3);
        o[so] = vec_fma(ROOT_HALF, q, p), o[2 * so] = vec_fma(-ROOT_HALF, q, p);
        o[3 * so] = vec_fma(ROOT_TWO, s, r), o[4 * so] = vec_fma(-ROOT_TWO, s, r);
        o[5 * so] = vec_fma(bc_f32(-2.5f), d3, d1 + d5);
    } else if (F == 6) {
        const vf32 d0 = d[0], d1 = d[sd], d2 = d[2 * sd], d3 = d[3 * sd], d4 = d[4 * sd], d5 = d[5 * sd],
                   d6 = d[6 * sd], d7 = d[7 * sd];
        o[0] = vec_fma(bc_f32(5.25f), d4 - d2, d0 - d6), o[7 * so] = vec_fma(bc_f32(5.25f), d3 - d5, d7 - d1);
        const vf32 p = vec_fma(bc_f32(-4.25f), d4, d2 + d6), q = vec_fma(bc_f32(-4.25f), d3, d1 + d5);
        o[so] = p + q, o[2 * so] = p - q;
        const vf32 r = vec_fma(bc_f32(.25f), d2, vec_fma(bc_f32(-1.25f), d4, d6)),
                   s = vec_fma(bc_f32(.25f), d1, vec_fma(bc_f32(-1.25f), d3, d5));
        o[3 * so] = vec_fma(bc_f32(2), s, r), o[4 * so] = vec_fma(bc_f32(-2), s, r);
        const vf32 t = vec_fma(bc_f32(4), d2, vec_fma(bc_f32(-5), d4, d6)),
                   u = vec_fma(bc_f32(4), d1, vec_fma(bc_f32(-5), d3, d5));
        o[5 * so] = vec_fma(bc_f32(.5f), u, t), o[6 * so] = vec_fma(bc_f32(-.5f), u, t);
    } else {
        const vf32 d0 = d[0], d1 = d[sd], d2 = d[2 * sd], d3 = d[3 * sd];
        o[0] = d0 - d2, o[so] = d1 + d2, o[2 * so] = d2 - d1, o[3 * so] = d1 - d3;
    }
}

// Aᵀ m
AI void output_row(vf32 *o, const vf32 *m, int so, int sm) {
    if (F == 4) {
        const vf32 m0 = m[0], m1 = m[sm], m2 = m[2 * sm], m3 = m[3 * sm], m4 = m[4 * sm], m5 = m[5 * sm];
        const vf32 a = m1 + m2, b = m1 - m2, c = m3 + m4, d = m3 - m4;
        o[0] = m0 + a + c, o[so] = vec_fma(ROOT_TWO, d, ROOT_HALF * b);
        o[2 * so] = vec_fma(bc_f32(2), c, bc_f32(.5f) * a),
              o[3 * so] = vec_fma(bc_f32(2.82842712f), d, vec_fma(bc_f32(.35355339f), b, m5));
    } else if (F == 6) {
        const vf32 m1 = m[sm], m2 = m[2 * sm], m3 = m[3 * sm], m4 = m[4 * sm], m5 = m[5 * sm], m6 = m[6 * sm];
        const vf32 a = m1 + m2, b = m1 - m2, c = m3 + m4, e = m3 - m4, f = m5 + m6, g = m5 - m6;
        o[0] = m[0] + a + (c + f), o[so] = vec_fma(bc_f32(.5f), g, vec_fma(bc_f32(2), e, b));
        o[2 * so] = vec_fma(bc_f32(.25f), f, vec_fma(bc_f32(4), c, a)),
              o[3 * so] = vec_fma(bc_f32(.125f), g, vec_fma(bc_f32(8), e, b));
        o[4 * so] = vec_fma(bc_f32(.0625f), f, vec_fma(bc_f32(16), c, a)),
              o[5 * so] = vec_fma(bc_f32(.03125f), g, vec_fma(bc_f32(32), e, b)) + m[7 * sm];
    } else {
        o[0] = m[0] + m[sm] + m[2 * sm], o[so] = m[sm] - m[2 * sm] - m[3 * sm];
    }
}

// One tile, VL channels, from E × E pixels `down` and `right` apart.
static __attribute__((noinline)) void transform_input(const float *x, idx down, idx right, float *v, idx point) {
    vf32 d[POINTS], half[POINTS], o[POINTS];
    unroll (int i = 0; i < POINTS; i++) d[i] = ld_f32(x + i / E * down + i % E * right);
    unroll (int i = 0; i < E; i++) input_row(half + i, d + i, E, E);
    unroll (int i = 0; i < E; i++) input_row(o + i * E, half + i * E, 1, 1);
    unroll (int i = 0; i < POINTS; i++) st_f32(v + i * point, o[i]);
}

// The pixels of a tile that crosses an edge, or of a partial vector, zero-padded.
AI void gather_input(const args *a, const float *x, idx top, idx left, int lanes, float *patch) {
    for (idx i = 0; i < E; i++)
        for (idx j = 0; j < E; j++) {
            const bool in = (u64)(top + i) < H && (u64)(left + j) < W;
            st_f32(patch + (i * E + j) * VL, in ? ldn_f32(x + (top + i) * XH + (left + j) * XW, lanes) : bc_f32(0));
        }
}

AI void spread(const args *a, const float *x, float *v, idx ty, idx tx) {
    const idx top = ty * F - PT, left = tx * F - PL;
    const bool inside = top >= 0 && left >= 0 && top + E <= H && left + E <= W;
    float patch[POINTS * VL];
    idx c = 0;
    for (; c + VL <= C; c += VL) {
        if (inside) {
            transform_input(x + top * XH + left * XW + c, XH, XW, v + c, TB * VS);
        } else {
            gather_input(a, x + c, top, left, VL, patch);
            transform_input(patch, E * VL, VL, v + c, TB * VS);
        }
    }
    if (C % VL) {
        gather_input(a, x + c, top, left, C % VL, patch);
        transform_input(patch, E * VL, VL, v + c, TB * VS);
    }
}

// A panel of weights comes from memory once and is used by all tiles of a block: each prefetches its part of the next
// one. Against no prefetch: 1024 channels on 13 × 13 pixels 12.1 → 8.9 ms, 512 on 7 × 7 1.27 → 0.98, 256 on 14 × 14
// 0.65 → 0.57, 160 to 320 on 13 × 13 0.58 → 0.42, 96 to 208 0.26 → 0.22, 64 on 56 × 56 0.49 → 0.48 (2 threads, cold
// weights).
AI void tile(int rows, const float *v, const weight *u, float *m, const char *next) {
    const idx step = sizeof(weight) * NR / BLOCK;
    vf32 acc[MR * NV];
    unroll (int i = 0; i < rows * NV; i++) acc[i] = bc_f32(0);
    if (C <= 2 * CHAIN) product_of(HALF, rows, NV, v, VS, u, C, acc, next, step);
    else long_product_of(HALF, rows, NV, v, VS, u, C, acc, next, step);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) st_f32(m + i * WIDTH + j * VL, acc[i * NV + j]);
}

// `after`: the panel that follows the last one.
AI void products(const args *a, idx n, const float *v, const weight *u, float *m, idx panels,
                 const weight *after) {
    for (idx j = 0; j < panels; j++, u += C * NR, m += NR) {
        const char *next = (const char *)(j + 1 < panels ? u + C * NR : after);
        idx i = 0;
        for (; i + MR <= n; i += MR, next += sizeof(weight) * C * NR / BLOCK)
            tile(MR, v + i * VS, u, m + i * WIDTH, next);
        if (n == TB) COUNTED(TB % MR, MR, tile(COUNT, v + i * VS, u, m + i * WIDTH, next))
        else COUNTED(LAST % MR, MR, tile(COUNT, v + i * VS, u, m + i * WIDTH, next))
    }
}

static __attribute__((noinline)) void transform_output(const float *m, float *pixels) {
    vf32 d[POINTS], half[F * E], o[F * F];
    unroll (int i = 0; i < POINTS; i++) d[i] = ld_f32(m + i * TB * WIDTH);
    unroll (int i = 0; i < E; i++) output_row(half + i, d + i, E, E);
    unroll (int i = 0; i < F; i++) output_row(o + i * F, half + i * E, 1, 1);
    unroll (int i = 0; i < F * F; i++) st_f32(pixels + i * VL, o[i]);
}

AI void gather(const args *a, const tail *t, const float *m, idx b, idx ty, idx tx, idx c, int lanes) {
    float pixels[F * F * VL];
    transform_output(m, pixels);
    const idx y = ty * F, x = tx * F, rows = y + F <= OH ? F : OH - y, columns = x + F <= OW ? F : OW - x;
    for (idx i = 0; i < rows; i++)
        for (idx j = 0; j < columns; j++)
            finish(t, ld_f32(pixels + (i * F + j) * VL), b, (y + i) * OW + x + j, c, lanes);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    float *v = scratch, *m = v + POINTS * TB * VS;
    for (idx t = begin; t < end; t++) {
        const idx nb = t % NBS, block = t / NBS % TBS, b = t / (NBS * TBS);
        const idx t0 = block * TB, n = t0 + TB < TILES ? TB : TILES - t0, c0 = nb * WIDTH,
                  c1 = c0 + WIDTH < OCP ? c0 + WIDTH : OCP;
        const float *x = (const float *)a[0].p + b * XN;
        const weight *u = a[1].p;
        for (idx i = 0; i < n; i++) spread(a, x, v + i * VS, (t0 + i) / TW, (t0 + i) % TW);
        for (idx i = 0; i < POINTS; i++)
            products(a, n, v + i * TB * VS, u + (i * OCP + c0) * C, m + i * TB * WIDTH, (c1 - c0) / NR,
                     u + ((i + 1) * OCP + c0) * C);
        for (idx i = 0; i < n; i++) {
            const float *from = m + i * WIDTH;
            const idx ty = (t0 + i) / TW, tx = (t0 + i) % TW;
            idx c = c0;
            for (; c + VL <= c1 && c + VL <= OC; c += VL)
                gather(a, &T, from + c - c0, b, (t0 + i) / TW, (t0 + i) % TW, c, VL);
            if (OC % VL && c < c1 && c < OC) gather(a, &T, from + c - c0, b, (t0 + i) / TW, (t0 + i) % TW, c, OC % VL);
        }
    }
}
