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

// Products mix all pixels of a tile: a NaN reaches all of its outputs, and so does the rounding error of an outlier.
// (Not by F(2×2), whose outputs add only the pixels that they see.) A tile is computed directly where a pixel is not
// finite, or 2^RANGE times the largest that one of the outputs sees. The check samples few values: each window of 3 × 3
// pixels has one pixel in two sampled rows and columns, and each pixel is part of one of nine points. On pictures of
// CIFAR-10, no tile of ResNet-20 comes closer than a third of the range.
enum : idx { RANGE = 8, INFINITE = 0x7f800000 };
typedef struct { vi32 sampled[4], largest; } magnitudes; // as bits, which order as floats do, NaNs last
AI vi32 magnitude(vf32 x) { return (vi32)x & 0x7fffffff; }
AI int sampled(int i) { return F / 2 - 1 + 3 * i; }
AI int point_row(int i) { return i < 2 ? i : E - 1; }
AI bool wide(int largest, int least) { return largest >= INFINITE || largest - least > RANGE << 23; }

AI void observe(magnitudes *seen, const vf32 *pixels, const vf32 *points) {
    unroll (int i = 0; i < 4; i++)
        seen->sampled[i] = i32_maximum(seen->sampled[i], magnitude(pixels[sampled(i / 2) * E + sampled(i % 2)]));
    unroll (int i = 0; i < 9; i++)
        seen->largest = i32_maximum(seen->largest, magnitude(points[point_row(i / 3) * E + point_row(i % 3)]));
}

// One tile, VL channels, from E × E pixels `down` and `right` apart.
static __attribute__((noinline)) void transform_input(const float *x, idx down, idx right, float *v, idx point,
                                                      magnitudes *seen) {
    vf32 d[POINTS], half[POINTS], o[POINTS];
    unroll (int i = 0; i < POINTS; i++) d[i] = ld_f32(x + i / E * down + i % E * right);
    unroll (int i = 0; i < E; i++) input_row(half + i, d + i, E, E);
    unroll (int i = 0; i < E; i++) input_row(o + i * E, half + i * E, 1, 1);
    unroll (int i = 0; i < POINTS; i++) st_f32(v + i * point, o[i]);
    if (F > 2) observe(seen, d, o);
}

// The pixels of a tile that crosses an edge, or of a partial vector, zero-padded.
AI void gather_input(const args *a, const float *x, idx top, idx left, int lanes, float *patch) {
    for (idx i = 0; i < E; i++)
        for (idx j = 0; j < E; j++) {
            const bool in = (u64)(top + i) < H && (u64)(left + j) < W;
            st_f32(patch + (i * E + j) * VL, in ? ldn_f32(x + (top + i) * XH + (left + j) * XW, lanes) : bc_f32(0));
        }
}

// A pixel of a tile in one channel, zero outside of the image.
AI float pixel(const args *a, const float *x, idx row, idx column, idx c) {
    return (u64)row < H && (u64)column < W ? x[row * XH + column * XW + c] : 0;
}

// True if one of the outputs sees pixels that are not all zero, and all far below the largest of the tile.
COLD bool some_output_sees_little(const args *a, const float *x, idx ty, idx tx, int largest) {
    int most[POINTS] = {};
    for (idx i = 0; i < POINTS; i++)
        for (idx c = 0; c < C; c++) {
            const union { float value; int bits; } p = { pixel(a, x, ty * F - PT + i / E, tx * F - PL + i % E, c) };
            const int size = p.bits & 0x7fffffff;
            most[i] = size > most[i] ? size : most[i];
        }
    for (idx i = 0; i < F * F; i++) {
        if (ty * F + i / F >= OH || tx * F + i % F >= OW) continue;
        int seen = 0;
        for (idx k = 0; k < 9; k++) {
            const int size = most[(i / F + k / 3) * E + i % F + k % 3];
            seen = size > seen ? size : seen;
        }
        if (seen && wide(largest, seen)) return true;
    }
    return false;
}

// True if a tile must be computed directly.
AI bool too_wide(const args *a, const float *x, const magnitudes *seen, idx ty, idx tx) {
    const bool rows = ty * F + F / 2 < OH, columns = tx * F + F / 2 < OW; // of the second half are outputs
    const int largest = hmax_i32(seen->largest);
    bool found = wide(largest, hmax_i32(seen->sampled[0]));
    found |= columns && wide(largest, hmax_i32(seen->sampled[1]));
    found |= rows && wide(largest, hmax_i32(seen->sampled[2]));
    found |= rows && columns && wide(largest, hmax_i32(seen->sampled[3]));
    return found && (largest >= INFINITE || some_output_sees_little(a, x, ty, tx, largest));
}

// Transforms the pixels of a tile; returns true if it still must be computed directly.
AI bool spread(const args *a, const float *x, float *v, idx ty, idx tx) {
    const idx top = ty * F - PT, left = tx * F - PL;
    const bool inside = top >= 0 && left >= 0 && top + E <= H && left + E <= W;
    float patch[POINTS * VL];
    magnitudes seen = {};
    idx c = 0;
    for (; c + VL <= C; c += VL) {
        if (inside) {
            transform_input(x + top * XH + left * XW + c, XH, XW, v + c, TB * VS, &seen);
        } else {
            gather_input(a, x + c, top, left, VL, patch);
            transform_input(patch, E * VL, VL, v + c, TB * VS, &seen);
        }
    }
    if (C % VL) {
        gather_input(a, x + c, top, left, C % VL, patch);
        transform_input(patch, E * VL, VL, v + c, TB * VS, &seen);
    }
    return F > 2 && too_wide(a, x, &seen, ty, tx);
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

// The taps of VL filters in a channel, from their transform: its first and last rows are taps alone, the second and the
// third differ in the middle tap.
AI void filter_taps(const weight *u, vf32 *taps) {
    const float middle = F == 4 ? 1.06066017f : 2.25f; // 1.5 / (2 · √½); 4.5 / 2
    vf32 rows[3 * 4];
    unroll (int j = 0; j < 4; j++) {
        const int column = j < 3 ? j : E - 1;
        vf32 p[4];
        unroll (int i = 0; i < 4; i++) p[i] = weights_at(HALF, u, ((i < 3 ? i : E - 1) * E + column) * OCP * C);
        rows[j] = p[0], rows[4 + j] = bc_f32(middle) * (p[2] - p[1]), rows[8 + j] = p[3];
    }
    unroll (int i = 0; i < 3; i++) {
        const vf32 *r = rows + 4 * i;
        taps[3 * i] = r[0], taps[3 * i + 1] = bc_f32(middle) * (r[2] - r[1]), taps[3 * i + 2] = r[3];
    }
}

// VL channels, from channel c on, of the outputs of a tile by the sums that define them.
COLD void direct(const args *a, const float *x, const weight *u, idx ty, idx tx, idx c, float *pixels) {
    vf32 sums[F * F];
    for (idx i = 0; i < F * F; i++) sums[i] = bc_f32(0);
    for (idx k = 0; k < C; k++) {
        vf32 taps[9];
        float d[POINTS];
        filter_taps(u + (c / NR * C + k) * NR + c % NR, taps);
        for (idx i = 0; i < POINTS; i++) d[i] = pixel(a, x, ty * F - PT + i / E, tx * F - PL + i % E, k);
        for (idx i = 0; i < F * F; i++) {
            vf32 sum = bc_f32(0);
            unroll (int t = 0; t < 9; t++) sum = vec_fma(bc_f32(d[(i / F + t / 3) * E + i % F + t % 3]), taps[t], sum);
            sums[i] += sum;
        }
    }
    for (idx i = 0; i < F * F; i++) st_f32(pixels + i * VL, sums[i]);
}

// Writes VL output channels of a tile, from their products or, if `x` is given, directly from the image.
AI void gather(const args *a, const tail *t, const float *m, const float *x, idx b, idx ty, idx tx, idx c, int lanes) {
    float pixels[F * F * VL];
    if (F > 2 && x) direct(a, x, a[1].p, ty, tx, c, pixels);
    else transform_output(m, pixels);
    const idx top = ty * F, left = tx * F;
    const idx rows = top + F <= OH ? F : OH - top, columns = left + F <= OW ? F : OW - left;
    for (idx i = 0; i < rows; i++)
        for (idx j = 0; j < columns; j++)
            finish(t, ld_f32(pixels + (i * F + j) * VL), b, (top + i) * OW + left + j, c, lanes);
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
        bool directly[TB];
        for (idx i = 0; i < n; i++) directly[i] = spread(a, x, v + i * VS, (t0 + i) / TW, (t0 + i) % TW);
        for (idx i = 0; i < POINTS; i++)
            products(a, n, v + i * TB * VS, u + (i * OCP + c0) * C, m + i * TB * WIDTH, (c1 - c0) / NR,
                     u + ((i + 1) * OCP + c0) * C);
        for (idx i = 0; i < n; i++) {
            const float *from = m + i * WIDTH, *image = directly[i] ? x : 0;
            const idx ty = (t0 + i) / TW, tx = (t0 + i) % TW;
            idx c = c0;
            for (; c + VL <= c1 && c + VL <= OC; c += VL) gather(a, &T, from + c - c0, image, b, ty, tx, c, VL);
            if (OC % VL && c < c1 && c < OC) gather(a, &T, from + c - c0, image, b, ty, tx, c, OC % VL);
        }
    }
}
