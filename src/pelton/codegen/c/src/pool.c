// Pooling, channels-last: TW windows of a row at a time, each column of the feature map joined once for all windows
// that share it; windows too wide for registers go one by one.
#include "vec.h"

// <region>
enum : idx { H = 9, W = 17, C = 13, OH = 5, OW = 9, KH = 3, KW = 3, SH = 2, SW = 2, PT = 1, PL = 1, DH = 1, DW = 1,
             XN = 1989, XH = 221, XW = 13, BATCH = 1, FIRST_ROW = 0, FIRST_COLUMN = 0, END_ROW = 9, END_COLUMN = 17 };
typedef f32 element;
typedef vf32 vec;
typedef f32 scalar;
#define LOAD(p, n) ldn_f32(p, n)
#define JOIN(a, b) ((a) + (b))
#define IDENTITY bc_f32(0)
#define MEANS 1
#define QUICK 0
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[1].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { TW = 2, NV = 2, RB = 1, CB = 13 };
// </tactic>

enum : idx { AT_ONCE = TW ? TW : 1 };
#define RBS ((OH + RB - 1) / RB)
#define CBS ((C + CB - 1) / CB)
// first window that reads nothing left of the feature map
#define Q0 ((PL + SW - 1) / SW < OW ? (PL + SW - 1) / SW : OW)
#define LAST (W - 1 - (KW - 1) * DW + PL)
#define Q2 (LAST < 0 ? 0 : LAST / SW + 1)
#define Q1 (Q2 < Q0 ? Q0 : Q2 < OW ? Q2 : OW) // first that reads past the right edge

// The taps of a window that are in [first, end), given the position of tap 0.
typedef struct { idx from, to; } taps;
AI taps inside(idx at, idx first, idx end, idx count, idx step) {
    const idx from = at < first ? (first - at + step - 1) / step : 0, to = at < end ? (end - at + step - 1) / step : 0;
    return (taps){ from, to < from ? from : to < count ? to : count };
}

#if MEANS
// A mean counts the taps inside of the feature map, or also in its padding: those in [FIRST, END).
AI scalar count_taps(const args *a, idx top, idx left) {
    const taps h = inside(top, FIRST_ROW, END_ROW, KH, DH), w = inside(left, FIRST_COLUMN, END_COLUMN, KW, DW);
    return (scalar)((h.to - h.from) * (w.to - w.from));
}
#define JOINED(v, by) ((v) / (vec)(by))
#else
AI scalar count_taps(const args *a, idx top, idx left) { return 1; }
#define JOINED(v, by) (v)
#endif

#if QUICK // a maximum that may drop NaN is one instruction: sums, in units that are idle, tell whether there is one
#define FASTER(a, b) ((b) > (a) ? (b) : (a))
#define STRANGE(v) any(f32_isnan(v))
#else
#define FASTER JOIN
#define STRANGE(v) false
#endif

// `count` windows of row p from q on, some vectors of channels; false where they need exact joins. At an edge, columns
// outside of the feature map are left out.
AI bool windows(bool exact, bool edge, int count, int vectors, int lanes, const args *a, const tail *t,
                const element *x, taps h, const scalar *by, idx b, idx p, idx q, idx c) {
    vec column[NV][(AT_ONCE - 1) * SW + (KW - 1) * DW + 1], all[2] = {(vec)0, (vec)0};
    const idx columns = (count - 1) * SW + (KW - 1) * DW + 1, left = q * SW - PL;
    unroll (int i = 0; i < vectors; i++)
        unroll (idx j = 0; j < columns; j++) column[i][j] = IDENTITY;
    for (idx k = h.from; k < h.to; k++) {
        const element *row = x + (p * SH - PT + k * DH) * XH + left * XW + c;
        unroll (idx j = 0; j < columns; j++) {
            if (edge && (u64)(left + j) >= W) continue;
            unroll (int i = 0; i < vectors; i++) {
                const vec v = LOAD(row + j * XW + i * VL, lanes);
                column[i][j] = exact ? JOIN(column[i][j], v) : FASTER(column[i][j], v);
                if (!exact) all[(i + j) % 2] += v;
            }
        }
    }
    if (!exact && STRANGE(all[0] + all[1])) return false;
    unroll (int j = 0; j < count; j++)
        unroll (int i = 0; i < vectors; i++) {
            vec v = column[i][j * SW];
            unroll (idx k = 1; k < KW; k++)
                v = exact ? JOIN(v, column[i][j * SW + k * DW]) : FASTER(v, column[i][j * SW + k * DW]);
            finish(t, JOINED(v, by[j]), b, p * OW + q + j, c + i * VL, lanes);
        }
    return true;
}
COLD void windows_exact(int count, int vectors, int lanes, const args *a, const tail *t, const element *x, taps h,
                        const scalar *by, idx b, idx p, idx q, idx c) {
    for (int j = 0; j < count; j++)
        for (int i = 0; i < vectors; i++) windows(true, true, 1, 1, lanes, a, t, x, h, by + j, b, p, q + j, c + i * VL);
}

AI void row(bool edge, int count, const args *a, const tail *t, const element *x, taps h, idx b, idx p, idx q, idx c0,
            idx c1) {
    scalar by[AT_ONCE];
    unroll (int i = 0; i < count; i++) by[i] = count_taps(a, p * SH - PT, (q + i) * SW - PL);
    idx c = c0;
#define SOME(vectors, lanes) \
    if (!windows(!QUICK, edge, count, vectors, lanes, a, t, x, h, by, b, p, q, c)) \
        windows_exact(count, vectors, lanes, a, t, x, h, by, b, p, q, c)
    for (; c + NV * VL <= c1; c += NV * VL) SOME(NV, VL);
    if (NV > 1)
        for (; c + VL <= c1; c += VL) SOME(1, VL);
    if (C % VL && c < c1) SOME(1, C % VL);
#undef SOME
}

enum : idx { BLOCK = 512 }; // taps of a partial result: it keeps long sums exact

// One window of any size, several vectors of channels at a time.
AI void window(int vectors, int lanes, const args *a, const tail *t, const element *x, taps h, scalar by, idx b, idx p,
               idx q, idx c) {
    const taps w = inside(q * SW - PL, 0, W, KW, DW);
    vec v[NV], part[NV];
    unroll (int j = 0; j < vectors; j++) v[j] = part[j] = IDENTITY;
    idx pending = 0;
    for (idx k = h.from; k < h.to; k++)
        for (idx l0 = w.from; l0 < w.to; l0 += BLOCK) {
            const idx l1 = l0 + BLOCK < w.to ? l0 + BLOCK : w.to;
            for (idx l = l0; l < l1; l++) {
                const element *at = x + (p * SH - PT + k * DH) * XH + (q * SW - PL + l * DW) * XW + c;
                unroll (int j = 0; j < vectors; j++) part[j] = JOIN(part[j], LOAD(at + j * VL, lanes));
            }
            if ((pending += l1 - l0) < BLOCK) continue;
            unroll (int j = 0; j < vectors; j++) v[j] = JOIN(v[j], part[j]), part[j] = IDENTITY;
            pending = 0;
        }
    unroll (int j = 0; j < vectors; j++) finish(t, JOINED(JOIN(v[j], part[j]), by), b, p * OW + q, c + j * VL, lanes);
}

AI void wide(const args *a, const tail *t, const element *x, taps h, idx b, idx p, idx q, idx c0, idx c1) {
    const scalar by = count_taps(a, p * SH - PT, q * SW - PL);
    idx c = c0;
    for (; c + NV * VL <= c1; c += NV * VL) window(NV, VL, a, t, x, h, by, b, p, q, c);
    if (NV > 1)
        for (; c + VL <= c1; c += VL) window(1, VL, a, t, x, h, by, b, p, q, c);
    if (C % VL && c < c1) window(1, C % VL, a, t, x, h, by, b, p, q, c);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx t = begin; t < end; t++) {
        const idx cb = t % CBS, rb = t / CBS % RBS, b = t / (CBS * RBS);
        const idx c0 = cb * CB, c1 = c0 + CB < C ? c0 + CB : C, p0 = rb * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        const element *x = (const element *)a[0].p + b * XN;
        for (idx p = p0; p < p1; p++) {
            const taps h = inside(p * SH - PT, 0, H, KH, DH);
            idx q = 0;
            for (; q + AT_ONCE <= OW; q += AT_ONCE) {
                if (!TW) wide(a, &T, x, h, b, p, q, c0, c1);
                else if (q >= Q0 && q + TW <= Q1) row(false, TW, a, &T, x, h, b, p, q, c0, c1);
                else row(true, TW, a, &T, x, h, b, p, q, c0, c1);
            }
            COUNTED(OW % AT_ONCE, AT_ONCE, row(true, COUNT, a, &T, x, h, b, p, q, c0, c1));
        }
    }
}
