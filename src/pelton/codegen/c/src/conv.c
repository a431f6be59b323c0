// Direct convolution, channels-last: MR output pixels (running on over rows) × NR output channels in registers, one
// pass over (kh, kw, channel). Taps outside of the feature map read a row of zeros, so padding, strides, dilations and
// groups share one loop. A task of several narrow groups finds the addresses of its pixels' taps once for all of them.
#include "product.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 7, C = 5, OH = 9, OW = 7, OC = 19, GROUPS = 1, KH = 3, KW = 3, SH = 1, SW = 1,
             PT = 1, PL = 1, DH = 1, DW = 1, PADDED = 1, XN = 315, XH = 35, XW = 5, PACKED = 1, WG = 0, WO = 0, WC = 0,
             WH = 0, WW = 0 };
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, MB = 48, NB = 32, GB = 1 };
// </tactic>

enum : idx { NR = NV * VL, PANELS = (OC + NR - 1) / NR, NBS = (PANELS * NR + NB - 1) / NB,
              LONG = KH * KW * C > CHAIN, // the sum is made of partial sums, one or more for each kernel row
              GBS = (GROUPS + GB - 1) / GB };
#define PIXELS (OH * OW)
#define MBS ((PIXELS + MB - 1) / MB)
#define JOINED (DW == 1 && XW == C) // the taps of a row are contiguous in memory
#if defined(OH) || defined(OW) // dynamic: as in a whole block
enum : idx { TILES = (MB + MR - 1) / MR };
#else
enum : idx { TILES = ((PIXELS < MB ? PIXELS : MB) + MR - 1) / MR };
#endif
// Bytes of the next panel that each multiply-add prefetches: the tiles of a block together prefetch all of it. Against
// no prefetch: 48 to 128 channels, 5 × 5, on 6 × 6 pixels 0.135 → 0.113 ms (1 thread), 512 on 14 × 14 with strides of
// two 1.55 → 1.45, 1024 to 2048 1.54 → 1.46 (2 threads), 256 on 28 × 28 with strides of two 1.36 → 1.29; with more
// tiles in a block, or little to read, no difference beyond the noise.
enum : idx { STEP = PACKED && OC * KH * KW * C >= FAR ? (4 * NR + TILES - 1) / TILES : 0 };
static const float zeros[GB > 1 ? GROUPS * C : C];
#include "filters.h"

AI void sum(int rows, idx n, const float *const *at, idx first, const float *w, vf32 (*acc)[NV], const char *next) {
    idx k = 0;
    if (BY_LANE)
        rolled for (; k + 4 <= n; k += 4) {
            vf32 x[MR];
            unroll (int i = 0; i < rows; i++) x[i] = ld_f32(at[i] + first + k);
            unroll (int u = 0; u < 4; u++) {
                if (STEP) __builtin_prefetch(next + (k + u) * STEP, 0, 2);
                unroll (int j = 0; j < NV; j++) {
                    const vf32 v = ld_f32(w + (k + u) * NR + j * VL);
                    unroll (int i = 0; i < rows; i++) acc[i][j] = vec_fma(bc_f32(x[i][u]), v, acc[i][j]);
                }
            }
        }
    fourfold for (; k < n; k++) {
        if (STEP) __builtin_prefetch(next + k * STEP, 0, 2);
        vf32 v[NV];
        unroll (int j = 0; j < NV; j++) v[j] = ld_f32(w + k * NR + j * VL);
        unroll (int i = 0; i < rows; i++) {
            const vf32 x = bc_f32(at[i][first + k]);
            unroll (int j = 0; j < NV; j++) acc[i][j] = vec_fma(x, v[j], acc[i][j]);
        }
    }
}

AI void flush(int rows, vf32 (*acc)[NV], vf32 (*total)[NV]) {
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) total[i][j] += acc[i][j], acc[i][j] = bc_f32(0);
}

AI void store(int rows, bool edge, const tail *t, vf32 (*acc)[NV], idx b, idx p, idx g, idx n) {
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const int lanes = !edge ? VL : OC % NR - j * VL;
            if (lanes > 0) finish(t, acc[i][j], b, p + i, g * OC + n + j * VL, lanes < VL ? lanes : VL);
        }
}

AI void long_sum(int rows, idx n, const float *const *at, const float *w, vf32 (*acc)[NV], vf32 (*total)[NV],
                 const char *next) {
    if (n <= 2 * CHAIN) {
        sum(rows, n, at, 0, w, acc, next);
        return;
    }
    const float *from[MR];
    for (idx k = 0; k < n; k += CHAIN) {
        unroll (int i = 0; i < rows; i++) from[i] = at[i] + k;
        sum(rows, k + CHAIN < n ? CHAIN : n - k, from, 0, w + k * NR, acc, next + k * STEP);
        flush(rows, acc, total);
    }
}

// True if a tile's pixels are of one row, and their windows inside of the image. Where a multiply-add takes a lane,
// such tiles have code of their own: one address instead of one for each pixel.
AI bool lies_inside(int rows, const args *a, idx p) {
    const idx y = (idx)((u64)p / OW), z = p - y * OW, top = y * SH - PT, left = z * SW - PL;
    if (!BY_LANE || rows < MR || z + rows > OW) return false;
    return !PADDED || (top >= 0 && top + (KH - 1) * DH < H && left >= 0 && left + (rows - 1) * SW + (KW - 1) * DW < W);
}

// The sums of an inner tile.
AI void inner_sums(int rows, const args *a, const float *x, const float *w, vf32 (*acc)[NV], vf32 (*total)[NV],
                   const char *next, idx p) {
    const float *from = x + (idx)((u64)p / OW) * SH * XH + (idx)((u64)p % OW) * SW * XW - PT * XH - PL * XW, *at[MR];
    const idx run = JOINED ? KW * C : C;
    for (idx kh = 0; kh < KH; kh++, from += DH * XH) {
        for (idx kw = 0; kw < (JOINED ? 1 : KW); kw++, w += run * NR, next += run * STEP) {
            unroll (int i = 0; i < rows; i++) at[i] = from + kw * DW * XW + i * SW * XW;
            long_sum(rows, run, at, w, acc, total, next);
        }
        if (LONG) flush(rows, acc, total);
    }
}

AI void tile(int rows, bool edge, const args *a, const tail *t, const float *x, const float *w, idx b, idx p, idx g,
             idx n, const char *next) {
    FREE_REGISTERS;
    vf32 acc[MR][NV], total[MR][NV];
    const float *at[MR];
    idx top[MR], left[MR];
    bool inside = true; // no window of the tile reaches over the left or right edge
    unroll (int i = 0; i < rows; i++) {
        top[i] = (p + i) / OW * SH - PT;
        left[i] = (p + i) % OW * SW - PL;
        inside &= left[i] >= 0 && left[i] + (KW - 1) * DW < W;
        unroll (int j = 0; j < NV; j++) total[i][j] = acc[i][j] = bc_f32(0);
    }
    if (lies_inside(rows, a, p)) inner_sums(rows, a, x, w, acc, total, next, p);
    else for (idx kh = 0; kh < KH; kh++) {
        if (PADDED && JOINED) {
            unroll (int i = 0; i < rows; i++) inside &= (u64)(top[i] + kh * DH) < H;
        }
        if (JOINED && (!PADDED || inside)) {
            unroll (int i = 0; i < rows; i++) at[i] = x + (top[i] + kh * DH) * XH + left[i] * XW;
            long_sum(rows, KW * C, at, w, acc, total, next);
            w += KW * C * NR, next += KW * C * STEP;
        } else for (idx kw = 0; kw < KW; kw++) {
            unroll (int i = 0; i < rows; i++) {
                const idx y = top[i] + kh * DH, z = left[i] + kw * DW;
                at[i] = !PADDED || ((u64)y < H && (u64)z < W) ? x + y * XH + z * XW : zeros;
            }
            long_sum(rows, C, at, w, acc, total, next);
            w += C * NR, next += C * STEP;
        }
        if (LONG) flush(rows, acc, total);
    }
    store(rows, edge, t, LONG ? total : acc, b, p, g, n);
}

// The same with known addresses of taps: `taps` has those of the MB pixels of a task, tap by tap.
AI void tile_of_taps(int rows, bool edge, const tail *t, const float *const *taps, const float *w, idx b, idx p, idx g,
                     idx n) {
    FREE_REGISTERS;
    vf32 acc[MR][NV], total[MR][NV];
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) total[i][j] = acc[i][j] = bc_f32(0);
    for (idx tap = 0; tap < KH * KW; tap++, taps += MB, w += C * NR) {
        const float *at[MR];
        unroll (int i = 0; i < rows; i++) at[i] = taps[i];
        sum(rows, C, at, g * C, w, acc, (const char *)w);
        if (LONG && tap % KW == KW - 1) flush(rows, acc, total);
    }
    store(rows, edge, t, LONG ? total : acc, b, p, g, n);
}

// The addresses of the taps of pixels p0 to p1, in the channels of the first group.
AI void find_taps(const args *a, const float **taps, const float *x, idx p0, idx p1) {
    for (idx p = p0; p < p1; p++) {
        const idx top = p / OW * SH - PT, left = p % OW * SW - PL;
        for (idx kh = 0; kh < KH; kh++)
            for (idx kw = 0; kw < KW; kw++) {
                const idx y = top + kh * DH, z = left + kw * DW;
                const bool inside = !PADDED || ((u64)y < H && (u64)z < W);
                taps[(kh * KW + kw) * MB + p - p0] = inside ? x + y * XH + z * XW : zeros;
            }
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    idx packed = -1;
    for (idx t = begin; t < end; t++) {
        const idx mb = t % MBS, nb = t / MBS % NBS, g = t / (MBS * NBS) % GBS * GB, b = t / (MBS * NBS * GBS);
        const idx p0 = mb * MB, p1 = p0 + MB < PIXELS ? p0 + MB : PIXELS, n0 = nb * NB,
                  n1 = n0 + NB < OC ? n0 + NB : OC;
        const float *x = (const float *)a[0].p + b * XN + g * C,
                    *filters = (const float *)a[1].p + (g * PANELS * NR + n0) * (KH * KW * C);
        if (GB > 1) {
            find_taps(a, scratch, x - g * C, p0, p1);
            for (idx own = g; own < g + GB && own < GROUPS; own++, filters += PANELS * NR * KH * KW * C)
                for (idx n = n0; n < n1; n += NR)
                    for (idx p = p0; p < p1; p += MR) {
                        const float *const *taps = (const float *const *)scratch + p - p0,
                                           *w = filters + (n - n0) * (KH * KW * C);
                        const bool edge = OC % NR && n + NR > OC;
                        if (p + MR <= p1 && !edge) tile_of_taps(MR, false, &T, taps, w, b, p, own, n);
                        else if (p + MR <= p1) tile_of_taps(MR, true, &T, taps, w, b, p, own, n);
                        else COUNTED(PIXELS % MR, MR, tile_of_taps(COUNT, edge, &T, taps, w, b, p, own, n));
                    }
            continue;
        }
        if (!PACKED) {
            if (packed != g * NBS + nb) pack_filters(a, (const float *)a[1].p + g * WG, scratch, n0, n1);
            packed = g * NBS + nb; // consecutive tiles share their filters
            filters = scratch;
        }
        for (idx n = n0; n < n1; n += NR) {
            const float *w = filters + (n - n0) * (KH * KW * C);
            const char *next = (const char *)(w + KH * KW * C * NR);
            idx p = p0;
            if (OC % NR == 0 || n + NR <= OC) {
                for (; p + MR <= p1; p += MR, next += KH * KW * C * STEP)
                    tile(MR, false, a, &T, x, w, b, p, g, n, next);
                if (p < p1) COUNTED(PIXELS % MR, MR, tile(COUNT, false, a, &T, x, w, b, p, g, n, next));
            } else {
                for (; p + MR <= p1; p += MR, next += KH * KW * C * STEP) tile(MR, true, a, &T, x, w, b, p, g, n, next);
                if (p < p1) COUNTED(PIXELS % MR, MR, tile(COUNT, true, a, &T, x, w, b, p, g, n, next));
            }
        }
    }
}
