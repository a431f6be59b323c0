// Depthwise convolution of bytes, channels-last: TW output pixels of one row × NV vectors of channels, sums in i32. A
// step multiplies four rows of a column of the window, whose bytes are zipped once for all pixels that read the column.
// The filters of a vector of channels begin with the starts of its sums.
#include "dot.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 17, C = 13, OH = 9, OW = 17, KH = 3, KW = 3, SH = 1, SW = 1, PT = 1, PL = 1, DH = 1,
             DW = 1, XN = 1989, XH = 221, XW = 13, PADDED = 1, SIGNED = 0, FLIPPED = 0, DOT = 2 };
#define EDGES 1
#define PAD 3
typedef struct { i32 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vi32 x, idx b, idx r, idx c, int n) { stn_i32(t->y + (b * OH * OW + r) * C + c, x, n); }
// </region>
// <tactic>
enum : idx { TW = 6, NV = 4, RB = 1 };
// </tactic>

#include "slide.h"

enum : idx {
    FOURS = (KH + 3) / 4,
    STEP = VL * (DOT == WIDE ? 8 : 4), // bytes of the filters that a step multiplies by: i16 where factors are widened
    VECTOR = 4 * VL + (DOT == WORDS ? KH * KW * 2 * VL : FOURS * KW * STEP)
};
// FLIPPED: instructions multiply bytes of the other sign; an i8 is a u8 less 128.
#define RBS ((OH + RB - 1) / RB)

typedef u8 vu8x4 __attribute__((ext_vector_type(4 * VL)));
typedef u8 vu8x4_in_memory __attribute__((ext_vector_type(4 * VL), aligned(1), may_alias));

#define ZIP_4(i, n) i, n + i, i + 1, n + i + 1, i + 2, n + i + 2, i + 3, n + i + 3
#define ZIP_8(i, n) ZIP_4(i, n), ZIP_4((i) + 4, n)
// Vectors, and the low and high halves of their 128-bit parts, zipped; a PART has, of four vectors of channels, four of
// each.
#if VL == 2
#define ZIP 0, 2, 1, 3
#define LOW_BYTES ZIP_4(0, 8)
#define HIGH_BYTES ZIP_4(4, 8)
#define LOW_WORDS 0, 4, 1, 5
#define HIGH_WORDS 2, 6, 3, 7
#define PARTS 0, 1
#elif VL == 4
#define ZIP ZIP_4(0, 4)
#define LOW_BYTES ZIP_8(0, 16)
#define HIGH_BYTES ZIP_8(8, 16)
#define LOW_WORDS ZIP_4(0, 8)
#define HIGH_WORDS ZIP_4(4, 8)
#define PARTS 0, 1, 2, 3
#elif VL == 8
#define ZIP ZIP_8(0, 8)
#define LOW_BYTES ZIP_8(0, 32), ZIP_8(16, 32)
#define HIGH_BYTES ZIP_8(8, 32), ZIP_8(24, 32)
#define LOW_WORDS ZIP_4(0, 16), ZIP_4(8, 16)
#define HIGH_WORDS ZIP_4(4, 16), ZIP_4(12, 16)
#define PARTS 0, 2, 4, 6, 1, 3, 5, 7
#else
#define ZIP ZIP_8(0, 16), ZIP_8(8, 16)
#define LOW_BYTES ZIP_8(0, 64), ZIP_8(16, 64), ZIP_8(32, 64), ZIP_8(48, 64)
#define HIGH_BYTES ZIP_8(8, 64), ZIP_8(24, 64), ZIP_8(40, 64), ZIP_8(56, 64)
#define LOW_WORDS ZIP_4(0, 32), ZIP_4(8, 32), ZIP_4(16, 32), ZIP_4(24, 32)
#define HIGH_WORDS ZIP_4(4, 32), ZIP_4(12, 32), ZIP_4(20, 32), ZIP_4(28, 32)
#define PARTS 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15
#endif

// Four vectors of channels of `rows` rows: each lane becomes the four bytes of a channel, zeros for absent rows.
AI void zip_four(const i8 *const *row, idx rows, idx at, vi32 *x) {
    vu8x4 r[4];
    unroll (int k = 0; k < 4; k++) {
        const vi32 v = k < rows ? (vi32) * (const vu8x4_in_memory *)(row[k] + at) : (vi32)0;
        r[k] = (vu8x4)SHUFFLE(v, v, PARTS);
    }
    const vu16x2 low[2] = { (vu16x2)SHUFFLE(r[0], r[1], LOW_BYTES), (vu16x2)SHUFFLE(r[2], r[3], LOW_BYTES) },
                 high[2] = { (vu16x2)SHUFFLE(r[0], r[1], HIGH_BYTES), (vu16x2)SHUFFLE(r[2], r[3], HIGH_BYTES) };
    x[0] = (vi32)SHUFFLE(low[0], low[1], LOW_WORDS), x[1] = (vi32)SHUFFLE(low[0], low[1], HIGH_WORDS);
    x[2] = (vi32)SHUFFLE(high[0], high[1], LOW_WORDS), x[3] = (vi32)SHUFFLE(high[0], high[1], HIGH_WORDS);
}

AI vi32 zip_one(const i8 *const *row, idx rows, idx at, int lanes) {
    vu8 r[4];
    unroll (int k = 0; k < 4; k++) r[k] = k < rows ? ldn_u8((const u8 *)row[k] + at, lanes) : (vu8)0;
    const vu16 first = (vu16)SHUFFLE(r[0], r[1], ZIP), second = (vu16)SHUFFLE(r[2], r[3], ZIP);
    return (vi32)SHUFFLE(first, second, ZIP);
}

AI vi32 step(vi32 acc, vi32 x, const i8 *w) {
    if (DOT != WIDE) return dot(DOT, SIGNED, acc, x, w);
    return dot_wide(SIGNED, acc, x, *(const vi16x2_in_memory *)w, *(const vi16x2_in_memory *)(w + 4 * VL));
}

// A tap of one or two vectors of channels.
AI void tap_by_words(int vectors, bool inside, const i8 *from, i8 padding, const i8 *w, int lanes, vi32 *acc) {
    if (vectors == 2 && VL == 2) {
        typedef u32 bytes __attribute__((aligned(1), may_alias));
        const i32 x = (i32)(inside ? *(const bytes *)from : 0x01010101u * (u8)padding);
        const i32 even = widen_bytes(SIGNED, 0, x), odd = widen_bytes(SIGNED, 1, x);
        const i32 low = *(const i32_in_memory *)w, high = *(const i32_in_memory *)(w + VECTOR);
        acc[0].x += (i16)even * (i16)low, acc[0].y += (i16)odd * (low >> 16);
        acc[1].x += (even >> 16) * (i16)high, acc[1].y += (odd >> 16) * (high >> 16);
        return;
    }
    unroll (int j = 0; j < vectors; j++) {
        const vi16 factors = *(const vi16_in_memory *)(w + j * VECTOR);
        vi32 x = SIGNED ? (vi32)(i32)padding : (vi32)(i32)(u8)padding;
        if (inside) {
            const i8 *at = from + j * VL;
            x = SIGNED ? CONVERT(ldn_i8(at, lanes), i32) : CONVERT(ldn_u8((const u8 *)at, lanes), i32);
        }
        acc[j] += x * CONVERT(factors, i32);
    }
}

// WORDS: one pixel, with the filters as i16, tap by tap. Two vectors of two channels are widened together.
AI void pixel_by_words(bool edge, int vectors, const args *a, const tail *t, const i8 *const *row, const i8 *w,
                       i8 padding, idx b, idx p, idx q, idx c, int lanes) {
    const idx left = q * SW - PL;
    vi32 acc[NV];
    unroll (int j = 0; j < vectors; j++) acc[j] = *(const vi32_in_memory *)(w + j * VECTOR);
    w += 4 * VL;
    rolled for (idx kh = 0; kh < KH; kh++) {
        const i8 *from = row[kh] + left * XW + c;
#define TAP(kw) do { \
        const bool inside = !edge || (uidx)(left + (kw) * DW) < W; \
        tap_by_words(vectors, inside, from + (kw) * DW * XW, padding, w, lanes, acc); \
        w += 2 * VL; \
    } while (0)
        if (edge || KW > 5) rolled for (idx kw = 0; kw < KW; kw++) TAP(kw);
        else unroll (idx kw = 0; kw < KW; kw++) TAP(kw);
    }
    unroll (int j = 0; j < vectors; j++) finish(t, acc[j], b, p * OW + q, c + j * VL, lanes);
}

// True if pixel i of a block reads its column z. Loops run over the few pixels: clang took 20 seconds for loops over
// the 31 columns of a wide window.
#define READS(i, z) ((z) >= (i) * SW && ((z) - (i) * SW) % DW == 0 && ((z) - (i) * SW) / DW < KW)

// `count` pixels from q on, of row p, `vectors` of their channels. Where `edge` is set, columns are checked against the
// row's ends: at compile time where q and the sizes are constants.
AI void pixels(int count, int edge, int vectors, const args *a, const tail *t, const i8 *const *row, const i8 *w,
               i8 padding, idx b, idx p, idx q, idx c, int lanes) {
    const vi32 flip = bc_i32(FLIPPED ? (i32)0x80808080 : 0), outside = (vi32)(i32)(0x01010101u * (u8)padding) ^ flip;
    const idx left = q * SW - PL;
    vi32 acc[TW][NV];
    unroll (int i = 0; i < count; i++)
        unroll (int j = 0; j < vectors; j++) acc[i][j] = *(const vi32_in_memory *)(w + j * VECTOR);
    unroll (int z = 0; z < (count - 1) * SW + (KW - 1) * DW + 1; z++) {
        bool is_read = false;
        unroll (int i = 0; i < count; i++) is_read |= READS(i, z);
        if (!is_read) continue;
        unroll (int f = 0; f < FOURS; f++) {
            vi32 x[NV];
            if (edge && (uidx)(left + z) >= W) {
                unroll (int j = 0; j < vectors; j++) x[j] = outside;
            } else if (vectors == 4) {
                zip_four(row + 4 * f, KH - 4 * f, (left + z) * XW + c, x);
                unroll (int j = 0; j < vectors; j++) x[j] ^= flip;
            } else {
                unroll (int j = 0; j < vectors; j++)
                    x[j] = zip_one(row + 4 * f, KH - 4 * f, (left + z) * XW + c + j * VL, lanes) ^ flip;
            }
            unroll (int i = count - 1; i >= 0; i--)
                if (READS(i, z))
                    unroll (int j = 0; j < vectors; j++) {
                        const i8 *factors = w + j * VECTOR + 4 * VL + (f * KW + (z - i * SW) / DW) * STEP;
                        acc[i][j] = step(acc[i][j], x[j], factors);
                    }
        }
        const int done = z - (KW - 1) * DW;
        if (done >= 0 && done % SW == 0 && done / SW < count)
            unroll (int j = 0; j < vectors; j++)
                finish(t, acc[done / SW][j], b, p * OW + q + done / SW, c + j * VL, lanes);
    }
}

AI void columns(int vectors, const args *a, const tail *t, const i8 *const *row, const i8 *filters, i8 padding, idx b,
                idx p, idx c, int lanes) {
    const i8 *w = filters + c / VL * VECTOR;
    if (DOT == WORDS) {
#define PIXEL(count, edge, q) pixel_by_words(edge, vectors, a, t, row, w, padding, b, p, q, c, lanes)
#define PIXEL_OF_BORDER(q) PIXEL(1, 1, q)
        EACH_BLOCK(PIXEL, PIXEL_OF_BORDER);
        return;
    }
#define PIXELS(count, edge, q) pixels(count, edge, vectors, a, t, row, w, padding, b, p, q, c, lanes)
#define BORDER(q) PIXELS(1, 1, q)
    EACH_BLOCK(PIXELS, BORDER);
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    const i8 padding = PAD, *w = a[1].p;
    i8 *absent = scratch; // a row above or below the image
    if (PADDED) __builtin_memset(absent, padding, (W - 1) * XW + C);
    for (idx t = begin; t < end; t++) {
        const idx b = t / RBS, p0 = t % RBS * RB, p1 = p0 + RB < OH ? p0 + RB : OH;
        const i8 *x = (const i8 *)a[0].p + b * XN;
        for (idx p = p0; p < p1; p++) {
            const i8 *row[KH];
            unroll (int kh = 0; kh < KH; kh++) {
                const idx y = p * SH - PT + kh * DH;
                row[kh] = !PADDED || (uidx)y < H ? x + y * XH : absent;
            }
            idx c = 0;
            for (; c + NV * VL <= C; c += NV * VL) columns(NV, a, &T, row, w, padding, b, p, c, VL);
            if (NV > 1 && C / VL % NV)
                for (; c + VL <= C; c += VL) columns(1, a, &T, row, w, padding, b, p, c, VL);
            if (C % VL) columns(1, a, &T, row, w, padding, b, p, c, C % VL);
        }
    }
}
