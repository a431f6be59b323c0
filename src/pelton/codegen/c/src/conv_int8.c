// Direct convolution and product of bytes, channels-last: MR pixels × NR output channels of i32 in registers, four
// channels of a tap at a step, or four bytes of a row of taps where these are adjacent in memory (ROWS). Taps outside
// of the image read a row of the padding value. Each panel of filters begins with the starts of its sums, and ends with
// the excess of weights beyond i8, by tap and channel. If steps are sorted, each run of them (a tap, or a row of taps)
// has a list: the number of PAIRS steps, which come before WIDE ones, then the place that each step reads.
#include "dot.h"
#include "product.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 7, C = 5, OH = 9, OW = 7, OC = 19, GROUPS = 1, KH = 3, KW = 3, SH = 1, SW = 1 };
enum : idx { PT = 1, PL = 1, DH = 1, DW = 1, PADDED = 1, XN = 315, XH = 35, XW = 5, SIGNED = 0, FLIPPED = 0, DOT = 2,
             ROWS = 1, BEYOND = 1, COPIED = 0 };
#define X_AT(b) ((b) * XN)
#define PAD 3
#define ORDER 0
typedef struct { i32 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vi32 x, idx b, idx r, idx c, int n) { stn_i32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 6, NV = 2, MB = 48, NB = 32 };
// </tactic>

enum : idx { NR = NV * VL, PANELS = (OC + NR - 1) / NR, NBS = (PANELS * NR + NB - 1) / NB, C4 = (C + 3) / 4 * 4 };
// bytes; a place beyond i8 is a row, a column and a channel
enum : idx { PLACE = 16, ROW = ROWS ? (KW * C + 3) / 4 * 4 : KW * C4 };
enum : idx { PANEL = 4 * NR + KH * ROW * NR + BEYOND * (PLACE + 4 * NR) };
#define PIXELS (OH * OW)
#define MBS ((PIXELS + MB - 1) / MB)
// the taps of a row are adjacent in memory
#define JOINED (ROWS || (DOT != SORTED && DW == 1 && XW == C && C % 4 == 0))
enum : idx { FOURS = (ROWS ? KW * C : C) / 4, LIST = 1 + FOURS, LISTS = ROWS ? KH : KH * KW };
#if defined(OH) || defined(OW) // dynamic: as in a whole block
enum : idx { TILES = (MB + MR - 1) / MR };
#else
enum : idx { TILES = ((PIXELS < MB ? PIXELS : MB) + MR - 1) / MR };
#endif
// Bytes of the next panel that each step prefetches: the tiles of a block together prefetch all of it.
enum : idx { STEP = PANELS * PANEL >= FAR ? (4 * NR + TILES - 1) / TILES : 0, STEPS = KH * ROW / 4 };
AI void prefetch(const i8 *next) {
    for (idx i = 0; i < STEP; i += 64) __builtin_prefetch(next + i, 0, 2);
}

// Where instructions multiply bytes of the other sign (FLIPPED): an i8 is a u8 less 128.
enum : idx { LAST = DOT == SORTED ? WIDE : DOT, SUMMED_SIGNED = SIGNED != FLIPPED };

// Products of single pixels by WIDE read copies of i16 (COPIED), which are made once for all outputs of a task: of each
// pixel the first and third byte of every four, then the second and fourth.
// A panel's weights are widened once for all tiles of a block if these are many: 164 → 175 GOP/s with 768 channels.
enum : idx { WIDENED = COPIED && TILES >= 4 };

AI void copy_fours(const i8 *from, vi32_in_memory *first, vi32_in_memory *second) {
    const vi16x2 x = *(const vi16x2_in_memory *)from;
    *first = (vi32)(SIGNED ? x << 8 >> 8 : (vi16x2)((vu16x2)x & 255));
    *second = (vi32)(SIGNED ? x >> 8 : (vi16x2)((vu16x2)x >> 8));
}

AI void copy_pixel(const i8 *from, i32 *to) {
    idx c = 0;
    for (; c + 4 * VL <= C; c += 4 * VL)
        copy_fours(from + c, (vi32_in_memory *)(to + c / 4), (vi32_in_memory *)(to + C4 / 4 + c / 4));
    if (c < C) {
        i8 last[4 * VL] = { 0 };
        vi32 first, second;
        __builtin_memcpy(last, from + c, C % (4 * VL));
        copy_fours(last, (vi32_in_memory *)&first, (vi32_in_memory *)&second);
        __builtin_memcpy(to + c / 4, &first, C4 - c);
        __builtin_memcpy(to + C4 / 4 + c / 4, &second, C4 - c);
    }
}

AI void widen(const i8 *w, i16 *to) {
    for (idx i = 0; i < C4 * NR; i += 2 * VL) *(vi16x2_in_memory *)(to + i) = ld_i8x2(w + i);
}

AI void sum_copies(int rows, const i32 *x, const i8 *w, const i16 *wide, vi32 (*acc)[NV], const i8 *next) {
    rolled for (idx k = 0; k < C4 / 4; k++) {
        prefetch(next + k * STEP);
        unroll (idx half = 0; half < 2; half++)
            unroll (int i = 0; i < rows; i++) {
                const vi16x2 both = (vi16x2)bc_i32(x[i * C4 / 2 + half * C4 / 4 + k]);
                unroll (int j = 0; j < NV; j++) {
                    const idx at = k * 4 * NR + (j * 4 + half * 2) * VL;
                    acc[i][j] += madd(both, WIDENED ? *(const vi16x2_in_memory *)(wide + at) : ld_i8x2(w + at));
                }
            }
    }
}

// WORDS: the windows of a tile as i16, made once for all outputs of a task. Of every four bytes in the order of the
// weights, those of the tile's pixels are side by side: the first and third, then the second and fourth.
enum : idx { WINDOW = KH * ROW / 2 }; // words of a pixel

AI void copy_run(int rows, const i8 *from, idx n, i32 *to) {
    typedef u32 bytes __attribute__((aligned(1), may_alias));
    for (; n >= 4; n -= 4, from += 4, to += 2 * rows) {
        const i32 four = (i32) * (const bytes *)from;
        to[0] = widen_bytes(SIGNED, 0, four), to[rows] = widen_bytes(SIGNED, 1, four);
    }
    if (n > 0) {
        u32 rest = (u8)from[0];
        if (n > 1) rest |= (u32)(u8)from[1] << 8;
        if (n > 2) rest |= (u32)(u8)from[2] << 16;
        to[0] = widen_bytes(SIGNED, 0, (i32)rest), to[rows] = widen_bytes(SIGNED, 1, (i32)rest);
    }
}

AI void copy_windows(int rows, const args *a, const i8 *x, const i8 *padding, idx p, i32 *to) {
    rolled for (int i = 0; i < rows; i++, p++, to++) {
        const idx top = (idx)((uidx)p / OW) * SH - PT, left = (idx)((uidx)p % OW) * SW - PL;
        i32 *next = to;
        rolled for (idx kh = 0; kh < KH; kh++) {
            const idx y = top + kh * DH;
            const bool in = !PADDED || (uidx)y < H;
            const bool whole = JOINED && in && (!PADDED || (left >= 0 && left + (KW - 1) * DW < W));
            const i8 *from = x + y * XH + left * XW;
            i8 row[ROWS ? KW * C : 1];
            if (ROWS && !whole) {
                rolled for (idx kw = 0; kw < KW; kw++) {
                    const bool inside = in && (uidx)(left + kw) < W;
                    __builtin_memcpy(row + kw * C, inside ? from + kw * XW : padding, C);
                }
                from = row;
            }
            const bool once = whole || ROWS;
            rolled for (idx kw = 0; kw < (once ? 1 : KW); kw++) {
                const bool inside = once || !PADDED || (in && (uidx)(left + kw * DW) < W);
                copy_run(rows, inside ? from + kw * DW * XW : padding, once ? KW * C : C, next);
                next += (once ? ROW : C4) / 2 * rows;
            }
        }
    }
}

AI void sum_words(int rows, const i32 *x, const i8 *w, vi32 (*acc)[NV]) {
    if (HAS_TILES_BY_WORDS && rows * NV == 2) {
        tile_by_words(rows, WINDOW / 2, x, w, *acc);
        return;
    }
    rolled for (const i32 *end = x + WINDOW * rows; x < end; x += 2 * rows, w += 4 * NR) {
        if (!MULTIPLIES_PAIRS) { // a byte by a byte: each is one load
            const i16_in_memory *halves = (const i16_in_memory *)x;
            unroll (int k = 0; k < 4; k++)
                unroll (int j = 0; j < NR; j++)
                    unroll (int i = 0; i < rows; i++)
                        acc[i][j / VL][j % VL] += halves[k % 2 * 2 * rows + 2 * i + k / 2] * w[4 * j + k];
            continue;
        }
        i32 of[2 * MR];
        unroll (int i = 0; i < 2 * rows; i++) of[i] = x[i];
        unroll (int j = 0; j < NV; j++) {
            vi32 four = *(const vi32_in_memory *)(w + 4 * j * VL), even, odd;
            unroll (int k = 0; k < VL; k++) even[k] = widen_bytes(1, 0, four[k]), odd[k] = widen_bytes(1, 1, four[k]);
            unroll (int i = 0; i < rows; i++) acc[i][j] = dot_i16(acc[i][j], bc_i32(of[i]), even);
            unroll (int i = 0; i < rows; i++) acc[i][j] = dot_i16(acc[i][j], bc_i32(of[rows + i]), odd);
        }
    }
}

AI void step(idx how, int rows, const i8 *const *at, idx k, const i8 *w, vi32 (*acc)[NV], const i8 *next) {
    prefetch(next);
    const vi32 flip = bc_i32(FLIPPED ? (i32)0x80808080 : 0);
    unroll (int i = 0; i < rows; i++) {
        const vi32 x = bc_bytes(at[i] + k, 4) ^ flip;
        unroll (int j = 0; j < NV; j++) acc[i][j] = dot(how, SUMMED_SIGNED, acc[i][j], x, w + j * 4 * VL);
    }
}

// Four or two steps from the k-th on, for which the bytes of a pixel are one load.
AI void steps_by_lane(int rows, int count, const i8 *const *at, idx k, const i8 *w, vi32 (*acc)[NV], const i8 *next) {
    typedef i32 pair __attribute__((ext_vector_type(2), aligned(1), may_alias));
    const vi32 flip = bc_i32(FLIPPED ? (i32)0x80808080 : 0);
    vi32 x[MR];
    unroll (int i = 0; i < rows; i++) {
        const i8 *from = at[i] + k * 4;
        if (count == 4) x[i] = *(const vi32_in_memory *)from;
        else x[i][0] = ((const pair *)from)->x, x[i][1] = ((const pair *)from)->y;
        x[i] ^= flip;
    }
    unroll (int u = 0; u < count; u++) {
        prefetch(next + (k + u) * STEP);
        unroll (int j = 0; j < NV; j++)
            unroll (int i = 0; i < rows; i++)
                acc[i][j] = dot(DOT, SUMMED_SIGNED, acc[i][j], bc_i32(x[i][u]), w + ((k + u) * NR + j * VL) * 4);
    }
}

AI void sum(int rows, idx n, const i8 *const *at, const i8 *w, const u16 *list, vi32 (*acc)[NV], const i8 *next) {
    const vi32 flip = bc_i32(FLIPPED ? (i32)0x80808080 : 0);
    const idx fours = n / 4;
    idx k = 0;
    // One step at a time where registers are few: 6 × 2 spills 38 vectors in four steps of PAIRS, 94 in four of WIDE.
    if (DOT == SORTED) {
        const idx pairs = list[0];
        rolled for (; k < pairs; k++) step(PAIRS, rows, at, list[1 + k] * 4, w + k * 4 * NR, acc, next + k * STEP);
        rolled for (; k < fours; k++) step(WIDE, rows, at, list[1 + k] * 4, w + k * 4 * NR, acc, next + k * STEP);
    } else if (DOT == AT_ONCE && BY_LANE) {
        rolled for (; k + 4 <= fours; k += 4) steps_by_lane(rows, 4, at, k, w, acc, next);
        if (fours % 4 >= 2) steps_by_lane(rows, 2, at, fours / 4 * 4, w, acc, next);
        if (fours % 2) step(DOT, rows, at, (fours - 1) * 4, w + (fours - 1) * 4 * NR, acc, next + (fours - 1) * STEP);
    } else if (DOT == AT_ONCE) {
        fourfold for (; k < fours; k++) step(DOT, rows, at, k * 4, w + k * 4 * NR, acc, next + k * STEP);
    } else {
        rolled for (; k < fours; k++) step(DOT, rows, at, k * 4, w + k * 4 * NR, acc, next + k * STEP);
    }
    if (n % 4)
        unroll (int i = 0; i < rows; i++) {
            const vi32 x = (n < 4 ? bc_bytes(at[i], n) : bc_last_bytes(at[i] + n, n % 4)) ^ flip;
            unroll (int j = 0; j < NV; j++)
                acc[i][j] = dot(LAST, SUMMED_SIGNED, acc[i][j], x, w + (fours * NR + j * VL) * 4);
        }
}

// True if a tile's pixels are of one row, and their windows inside of the image. Where a multiply-add takes a lane,
// such tiles have code of their own: one address instead of one for each pixel.
AI bool lies_inside(int rows, const args *a, idx p) {
    const idx y = (idx)((uidx)p / OW), z = p - y * OW, top = y * SH - PT, left = z * SW - PL;
    if (!BY_LANE || rows < MR || z + rows > OW) return false;
    return !PADDED || (top >= 0 && top + (KH - 1) * DH < H && left >= 0 && left + (rows - 1) * SW + (KW - 1) * DW < W);
}

// The sums of an inner tile.
AI const i8 *inner_sums(int rows, const args *a, const i8 *x, const i8 *w, const u16 *list, vi32 (*acc)[NV],
                        const i8 *next, idx p) {
    const i8 *from = x + (idx)((uidx)p / OW) * SH * XH + (idx)((uidx)p % OW) * SW * XW - PT * XH - PL * XW, *at[MR];
    for (idx kh = 0; kh < KH; kh++, from += DH * XH)
        for (idx kw = 0; kw < (JOINED ? 1 : KW); kw++) {
            unroll (int i = 0; i < rows; i++) at[i] = from + kw * DW * XW + i * SW * XW;
            sum(rows, JOINED ? KW * C : C, at, w, list, acc, next);
            w += (JOINED ? ROW : C4) * NR, next += (JOINED ? ROW : C4) / 4 * STEP;
            if (DOT == SORTED) list += LIST;
        }
    return w;
}

AI void tile(
    int rows, bool edge, const args *a, const tail *t, const i8 *x, const i8 *padding, const i8 *w, const u16 *list,
    const i32 *copies, const i16 *wide, const i8 *next, idx b, idx p, idx g, idx n
) {
    FREE_REGISTERS;
    vi32 acc[MR][NV];
    const i8 *at[MR];
    idx top[MR], left[MR];
    const bool is_inner = !COPIED && lies_inside(rows, a, p);
    bool inside = true; // no pixel of the tile reaches over the left or right edge
    unroll (int i = 0; i < rows; i++) {
        top[i] = (p + i) / OW * SH - PT;
        left[i] = (p + i) % OW * SW - PL;
        inside &= left[i] >= 0 && left[i] + (KW - 1) * DW < W;
        unroll (int j = 0; j < NV; j++) acc[i][j] = *(const vi32_in_memory *)(w + 4 * j * VL);
    }
    w += 4 * NR;
    if (DOT == WORDS) {
        sum_words(rows, copies, w, acc);
        w += KH * ROW * NR;
    } else if (COPIED) {
        sum_copies(rows, copies, w, wide, acc, next);
        w += C4 * NR;
    } else if (is_inner) {
        w = inner_sums(rows, a, x, w, list, acc, next, p);
    } else for (idx kh = 0; kh < KH; kh++) {
        bool whole = inside;
        if (PADDED && JOINED) {
            unroll (int i = 0; i < rows; i++) whole &= (uidx)(top[i] + kh * DH) < H;
        }
        if (JOINED && (!PADDED || whole)) {
            unroll (int i = 0; i < rows; i++) at[i] = x + (top[i] + kh * DH) * XH + left[i] * XW;
            sum(rows, KW * C, at, w, list, acc, next);
            w += ROW * NR, next += ROW / 4 * STEP;
            if (DOT == SORTED) list += LIST;
        } else if (ROWS) {
            i8 copies[MR][ROWS ? KW * C : 1];
            for (int i = 0; i < rows; i++) {
                const idx y = top[i] + kh * DH;
                for (idx kw = 0; kw < KW; kw++) {
                    const bool in = (uidx)y < H && (uidx)(left[i] + kw) < W;
                    __builtin_memcpy(copies[i] + kw * C, in ? x + y * XH + (left[i] + kw) * XW : padding, C);
                }
            }
            unroll (int i = 0; i < rows; i++) at[i] = copies[i];
            sum(rows, KW * C, at, w, list, acc, next);
            w += ROW * NR, next += ROW / 4 * STEP;
            if (DOT == SORTED) list += LIST;
        } else for (idx kw = 0; kw < KW; kw++) {
            unroll (int i = 0; i < rows; i++) {
                const idx y = top[i] + kh * DH, z = left[i] + kw * DW;
                at[i] = !PADDED || ((uidx)y < H && (uidx)z < W) ? x + y * XH + z * XW : padding;
            }
            sum(rows, C, at, w, list, acc, next);
            w += C4 * NR, next += C4 / 4 * STEP;
            if (DOT == SORTED) list += LIST;
        }
    }
    for (idx e = 0; e < BEYOND; e++, w += PLACE + 4 * NR) {
        u32 place[3];
        __builtin_memcpy(place, w, sizeof place);
        unroll (int i = 0; i < rows; i++) {
            const idx y = top[i] + place[0] % KH * DH, z = left[i] + place[1] % KW * DW;
            const i8 *from = !PADDED || ((uidx)y < H && (uidx)z < W) ? x + y * XH + z * XW : padding;
            const vi32 one = bc_i32(SIGNED ? from[place[2] % C] : (u8)from[place[2] % C]);
            unroll (int j = 0; j < NV; j++) acc[i][j] += one * *(const vi32_in_memory *)(w + PLACE + 4 * j * VL);
        }
    }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const int lanes = !edge ? VL : OC % NR - j * VL;
            if (lanes > 0) finish(t, acc[i][j], b, p + i, g * OC + n + j * VL, lanes < VL ? lanes : VL);
        }
}

enum : idx { COPY = DOT == WORDS ? WINDOW : COPIED ? C4 / 2 : 0 }; // words of a pixel

#define TILE(rows, edge) \
    tile(rows, edge, a, &T, x, padding, w, list, copies + (p - p0) * COPY, wide, next, b, p, g, n)
void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    i32 *copies = scratch;
    i16 *wide = (i16 *)(copies + MB * C4 / 2);
    i8 padding[PADDED ? C : 1];
    if (PADDED) __builtin_memset(padding, PAD, C);
    for (idx t = begin; t < end; t++) {
        const idx mb = t % MBS, nb = t / MBS % NBS, g = t / (MBS * NBS) % GROUPS, b = t / (MBS * NBS * GROUPS);
        const idx p0 = mb * MB, p1 = p0 + MB < PIXELS ? p0 + MB : PIXELS;
        const idx n0 = nb * NB, n1 = n0 + NB < OC ? n0 + NB : OC;
        const i8 *x = (const i8 *)a[0].p + X_AT(b) + g * C;
        if (COPIED)
            for (idx p = p0; p < p1; p++)
                copy_pixel(x + p / OW * SH * XH + p % OW * SW * XW, copies + (p - p0) * (C4 / 2));
        if (DOT == WORDS) {
            idx p = p0;
            for (; p + MR <= p1; p += MR) copy_windows(MR, a, x, padding, p, copies + (p - p0) * WINDOW);
            if (p < p1)
                COUNTED(PIXELS % MR, MR, copy_windows(COUNT, a, x, padding, p, copies + (p - p0) * WINDOW));
        }
        const idx panel = g * PANELS + n0 / NR;
        const i8 *w = (const i8 *)a[1].p + panel * PANEL;
        const u16 *list = DOT == SORTED ? (const u16 *)a[ORDER].p + panel * LISTS * LIST : 0;
        for (idx n = n0; n < n1; n += NR, w += PANEL, list += DOT == SORTED ? LISTS * LIST : 0) {
            const i8 *next = w + PANEL;
            if (WIDENED) widen(w + 4 * NR, wide);
            idx p = p0;
            if (OC % NR == 0 || n + NR <= OC) {
                for (; p + MR <= p1; p += MR, next += STEPS * STEP) TILE(MR, false);
                if (p < p1) COUNTED(PIXELS % MR, MR, TILE(COUNT, false));
            } else {
                for (; p + MR <= p1; p += MR, next += STEPS * STEP) TILE(MR, true);
                if (p < p1) COUNTED(PIXELS % MR, MR, TILE(COUNT, true));
            }
        }
    }
}
