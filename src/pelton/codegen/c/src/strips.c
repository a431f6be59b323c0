// Depth first, channels-last: a 1×1 convolution, a depthwise one of its result, and a 1×1 one of that, or two adjacent
// ones of the three. A tile is a strip of output rows. Rows of the first result stay in ring buffers of as many rows as
// the filters read, one ring for each block of channels, so that filters find them in L1; rows of the second result
// stay in L2 until the last convolution has read them.
#include "product.h"

// <region>
enum : idx { EXPAND = 1, PROJECT = 1, BATCH = 1, H = 9, W = 17, C = 13, OH = 9, OW = 17, KH = 3, KW = 3, SH = 1, SW = 1,
             PT = 1, PL = 1, IN = 5, OUT = 7, XN = 765, XH = 85, XW = 5 };
#define RB 8 // output rows of a strip: an argument, so that all heights are one kernel
typedef struct {} expanded_tail;
AI expanded_tail expanded_tail_open(const args *a) { return (expanded_tail){}; }
AI vf32 expanded(const expanded_tail *t, vf32 x, idx b, idx r, idx c, int n) { return x; }
typedef struct {} filtered_tail;
AI filtered_tail filtered_tail_open(const args *a) { return (filtered_tail){}; }
AI vf32 filtered(const filtered_tail *t, vf32 x, idx b, idx r, idx c, int n) { return x; }
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[4].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * OUT + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 4, NV = 3, TW = 6, PM = 6, PV = 2, G = 2 };
// </tactic>

enum : idx { NR = NV * VL, PR = PV * VL, CV = (C + VL - 1) / VL, BLOCKS = (C + NR - 1) / NR, CS = CV * VL,
              ROWS = (G - 1) * SH + KH }; // of a ring: what G output rows read
#define WP ((OW - 1) * SW + KW) // columns that filters read, from PL left of the feature map on
#define WN (W < WP - PL ? W : WP - PL) // … inside of the feature map
#define RING (ROWS * WP * NR)
typedef struct { expanded_tail wide; filtered_tail narrow; tail end; } tails;

// `rows` pixels of a row of the first result, NR channels from c on.
AI void expand_tile(int rows, bool edge, const args *a, const tails *t, const float *x, const float *panel, float *to,
                    idx b, idx r, idx c) {
    FREE_REGISTERS;
    vf32 acc[rows * NV];
    unroll (int i = 0; i < rows * NV; i++) acc[i] = bc_f32(0);
    if (IN <= CHAIN) product(rows, NV, x, XW, panel, IN, acc);
    else long_product(rows, NV, x, XW, panel, IN, acc, 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const idx left = edge ? C % NR - j * VL : VL;
            if (left > 0)
                st_f32(to + i * NR + j * VL,
                       expanded(&t->wide, acc[i * NV + j], b, r + i, c + j * VL, left < VL ? left : VL));
        }
}

AI void expand_row(bool edge, const args *a, const tails *t, const float *x, const float *panel, float *to, idx b,
                   idx y, idx c) {
    idx m = 0;
    for (; m + MR <= WN; m += MR) expand_tile(MR, edge, a, t, x + m * XW, panel, to + m * NR, b, y * W + m, c);
    COUNTED(WN % MR, MR, expand_tile(COUNT, edge, a, t, x + m * XW, panel, to + m * NR, b, y * W + m, c));
}

// One row of a ring: of the first result, of the feature map itself, or of zeros above and below it.
AI void fill_row(bool edge, const args *a, const tails *t, float *to, idx b, idx y, idx c) {
    if ((u64)y >= H) {
        for (idx i = 0; i < WN * NR; i += VL) st_f32(to + i, bc_f32(0));
    } else if (EXPAND) {
        expand_row(edge, a, t, (const float *)a[0].p + b * XN + y * XH, (const float *)a[1].p + c * IN, to, b, y, c);
    } else {
        const float *x = (const float *)a[0].p + b * XN + y * XH + c;
        for (idx m = 0; m < WN; m++)
            unroll (int j = 0; j < NV; j++)
                st_f32(to + m * NR + j * VL, piece(x + m * XW + j * VL, edge ? C % NR - j * VL : VL));
    }
}

// `count` pixels from q on of an output row, VL channels: `row` has the rows of the ring that the filters read.
AI void filter_tile(int count, const args *a, const tails *t, const float *const *row, const float *w, float *to, idx b,
                    idx p, idx q, idx c, int lanes) {
    vf32 acc[count];
    unroll (int i = 0; i < count; i++) acc[i] = bc_f32(0);
    unroll (int kh = 0; kh < KH; kh++)
        unroll (int kw = 0; kw < KW; kw++) {
            const vf32 k = ld_f32(w + (kh * KW + kw) * CS);
            unroll (int i = 0; i < count; i++) acc[i] = vec_fma(ld_f32(row[kh] + ((q + i) * SW + kw) * NR), k, acc[i]);
        }
    unroll (int i = 0; i < count; i++) {
        if (PROJECT) st_f32(to + (q + i) * CS + c, filtered(&t->narrow, acc[i], b, p * OW + q + i, c, lanes));
        else finish(&t->end, acc[i], b, p * OW + q + i, c, lanes);
    }
}

// g output rows from p on.
AI void filter_rows(const args *a, const tails *t, const float *ring, const float *w, float *filtered_rows, idx b,
                    idx p, idx g, idx c, int lanes) {
    for (idx i = p; i < p + g; i++) {
        const float *row[KH];
        unroll (int kh = 0; kh < KH; kh++) row[kh] = ring + (i * SH + kh) % ROWS * (WP * NR);
        float *to = filtered_rows + (i - p) * (OW * CS);
        idx q = 0;
        for (; q + TW <= OW; q += TW) filter_tile(TW, a, t, row, w, to, b, i, q, c, lanes);
        COUNTED(OW % TW, TW, filter_tile(COUNT, a, t, row, w, to, b, i, q, c, lanes));
    }
}

// g output rows from p on, of one block of channels; rows of the feature map from y on are not in the ring yet.
AI void block(bool edge, const args *a, const tails *t, float *ring, float *filtered_rows, idx b, idx p, idx g, idx y,
              idx c) {
    for (; y <= (p + g - 1) * SH - PT + KH - 1; y++)
        fill_row(edge, a, t, ring + (y + PT) % ROWS * (WP * NR) + PL * NR, b, y, c);
    const float *w = (const float *)a[1 + EXPAND].p + c;
    const idx whole = edge ? C % NR / VL * VL : NR;
    rolled for (idx j = 0; j < whole; j += VL) filter_rows(a, t, ring + j, w + j, filtered_rows, b, p, g, c + j, VL);
    if (edge && C % VL) filter_rows(a, t, ring + whole, w + whole, filtered_rows, b, p, g, c + whole, C % VL);
}

AI void project_tile(int rows, bool edge, const tails *t, const float *x, const float *panel, idx b, idx r, idx c) {
    FREE_REGISTERS;
    vf32 acc[rows * PV];
    unroll (int i = 0; i < rows * PV; i++) acc[i] = bc_f32(0);
    if (C <= CHAIN) product(rows, PV, x, CS, panel, C, acc);
    else long_product(rows, PV, x, CS, panel, C, acc, 0, 0);
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < PV; j++) {
            const idx left = edge ? OUT % PR - j * VL : VL;
            if (left > 0) finish(&t->end, acc[i * PV + j], b, r + i, c + j * VL, left < VL ? left : VL);
        }
}

AI void project(bool edge, const tails *t, const float *filtered_rows, const float *panel, idx b, idx r, idx pixels,
                idx c) {
    idx m = 0;
    for (; m + PM <= pixels; m += PM) project_tile(PM, edge, t, filtered_rows + m * CS, panel, b, r + m, c);
    COUNTED(pixels % PM, PM, project_tile(COUNT, edge, t, filtered_rows + m * CS, panel, b, r + m, c));
}

// The last convolution, of a number of pixels that is known at compile time.
AI void project_all(const args *a, const tails *t, const float *filtered_rows, idx b, idx r, idx pixels) {
    const float *panels = a[2 + EXPAND].p;
    idx n = 0;
    for (; n + PR <= OUT; n += PR) project(false, t, filtered_rows, panels + n * C, b, r, pixels, n);
    if (OUT % PR) project(true, t, filtered_rows, panels + n * C, b, r, pixels, n);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tails T = { expanded_tail_open(a), filtered_tail_open(a), tail_open(a) };
    float *rings = scratch, *filtered_rows = rings + BLOCKS * RING;
    for (idx i = 0; i < BLOCKS * ROWS; i++) { // left and right of the feature map
        for (idx k = 0; k < PL * NR; k += VL) st_f32(rings + i * (WP * NR) + k, bc_f32(0));
        for (idx k = (PL + WN) * NR; k < WP * NR; k += VL) st_f32(rings + i * (WP * NR) + k, bc_f32(0));
    }
    const idx rb = RB, strips = (OH + rb - 1) / rb;
    for (idx t = begin; t < end; t++) {
        const idx b = t / strips, p0 = t % strips * rb, p1 = p0 + rb < OH ? p0 + rb : OH;
        idx y = p0 * SH - PT;
        for (idx p = p0; p < p1; p += G) {
            const idx g = p + G < p1 ? G : p1 - p;
            idx c = 0;
            for (; c + NR <= C; c += NR) block(false, a, &T, rings + c / NR * RING, filtered_rows, b, p, g, y, c);
            if (C % NR) block(true, a, &T, rings + c / NR * RING, filtered_rows, b, p, g, y, c);
            y = (p + g - 1) * SH - PT + KH;
            if (PROJECT && g == G) project_all(a, &T, filtered_rows, b, p * OW, G * OW);
            else if (PROJECT)
                for (idx i = 0; i < g; i++) project_all(a, &T, filtered_rows + i * (OW * CS), b, (p + i) * OW, OW);
        }
    }
}
