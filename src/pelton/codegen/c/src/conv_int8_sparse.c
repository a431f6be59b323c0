// Direct convolution and product of bytes, channels-last, by filters of which two of every four channels are zero:
// MR pixels × NR output channels of i32 in registers, eight channels of a tap at a step. Of these a panel has the four
// other weights of each output, and their places in two bits each, which are written out into scratch as the bytes to
// pick of a pixel's eight. Taps outside of the image read a row of the padding value. A panel: the starts of its sums;
// for each tap and eight channels four weights of every output; for each tap and four such steps the places, of which
// byte i has those of the i-th weights.
#include "dot.h"
#include "product.h"

// <region>
enum : idx { BATCH = 1, H = 9, W = 7, C = 13, OH = 9, OW = 7, OC = 19, GROUPS = 1, KH = 3, KW = 3, SH = 1, SW = 1 };
enum : idx { PT = 1, PL = 1, DH = 1, DW = 1, PADDED = 1, XN = 819, XH = 91, XW = 13, SIGNED = 0, FLIPPED = 0, DOT = 1 };
#define X_AT(b) ((b) * XN)
#define PAD 3
typedef struct { i32 *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vi32 x, idx b, idx r, idx c, int n) { stn_i32(t->y + (b * OH * OW + r) * OC + c, x, n); }
// </region>
// <tactic>
enum : idx { MR = 4, NV = 2, MB = 48, NB = 32 };
// </tactic>

enum : idx { NR = NV * VL, PANELS = (OC + NR - 1) / NR, NBS = (PANELS * NR + NB - 1) / NB, TAPS = KH * KW };
enum : idx { EIGHTS = (C + 7) / 8, FOURS = (EIGHTS + 3) / 4, PLACES = 4 * NR * (1 + TAPS * EIGHTS) };
enum : idx { PANEL = PLACES + 4 * NR * TAPS * FOURS };
#define PIXELS (OH * OW)
#define MBS ((PIXELS + MB - 1) / MB)
#if defined(OH) || defined(OW) // dynamic: as in a whole block
enum : idx { TILES = (MB + MR - 1) / MR };
#else
enum : idx { TILES = ((PIXELS < MB ? PIXELS : MB) + MR - 1) / MR };
#endif
// Bytes of the next panel that each step prefetches: the tiles of a block together prefetch all of it.
enum : idx { STEP = PANELS * PANEL >= FAR ? (5 * NR + TILES - 1) / TILES : 0 };

// A single tile takes the places of each step from the panel.
enum : idx { EXPANDED = TILES > 1 };

AI vi32 places_of_step(const i8 *from, int step, int j) {
    const vi32 four = *(const vi32_in_memory *)(from + j * VL * 4);
    return (four >> 2 * step & 0x03030303) | 0x04040000;
}

AI void expand_places(const i8 *from, i32 *to) {
    for (idx k = 0; k < TAPS * FOURS; k++)
        unroll (int j = 0; j < NV; j++)
            unroll (int s = 0; s < 4; s++)
                st_i32(to + (k * 4 + s) * NR + j * VL, places_of_step(from + k * NR * 4, s, j));
}

typedef u64 eights __attribute__((ext_vector_type(VL / 2)));

// Eight bytes, or the last n of those before p + n, before zeros, again and again.
AI vi32 bc_eight(const i8 *p, idx n) {
    u64 x = 0;
    if (n >= 8) __builtin_memcpy(&x, p, 8);
    else if (C < 8) __builtin_memcpy(&x, p, n);
    else __builtin_memcpy(&x, p + n - 8, 8), x >>= 8 * (8 - n) % 64;
    return (vi32)(eights)x;
}

// The bytes that flip a pixel's sign. clang must not know that they are equal: it flips eight bytes and broadcasts them
// from a register, which takes the place of a shuffle, instead of broadcasting them from memory.
AI vi32 flip_of_signs(void) {
    vi32 flip = bc_i32((i32)0x80808080);
#if defined __x86_64__
    __asm__("" : "+v"(flip));
#endif
    return flip;
}

// One step, the k-th of a tap: eight channels of each pixel, or n of them. `packed` and `places` are those of the tap.
AI void step(int rows, idx n, const i8 *const *at, idx k, vi32 flip, const i8 *w, const i8 *packed, const i32 *places,
             vi32 (*acc)[NV], const i8 *next) {
    for (idx i = 0; i < STEP; i += 64) __builtin_prefetch(next + i, 0, 2);
    vi32 picks[NV];
    unroll (int j = 0; j < NV; j++)
        picks[j] = EXPANDED ? ld_i32(places + k * NR + j * VL) : places_of_step(packed + k / 4 * 4 * NR, k % 4, j);
    unroll (int i = 0; i < rows; i++) {
        const vi32 x = FLIPPED ? bc_eight(at[i] + k * 8, n) ^ flip : bc_eight(at[i] + k * 8, n);
        unroll (int j = 0; j < NV; j++) acc[i][j] = dot(DOT, false, acc[i][j], pick_bytes(x, picks[j]), w + j * 4 * VL);
    }
}

AI void tile(int rows, bool edge, const args *a, const tail *t, const i8 *x, const i8 *padding, const i8 *w,
             const i32 *places, const i8 *next, idx b, idx p, idx g, idx n) {
    FREE_REGISTERS;
    vi32 acc[MR][NV];
    const i8 *at[MR];
    idx top[MR], left[MR];
    unroll (int i = 0; i < rows; i++) {
        top[i] = (p + i) / OW * SH - PT;
        left[i] = (p + i) % OW * SW - PL;
        unroll (int j = 0; j < NV; j++) acc[i][j] = *(const vi32_in_memory *)(w + 4 * j * VL);
    }
    const vi32 flip = flip_of_signs();
    const i8 *packed = w + PLACES;
    w += 4 * NR;
    for (idx kh = 0; kh < KH; kh++)
        for (idx kw = 0; kw < KW; kw++, packed += FOURS * 4 * NR, places += FOURS * 4 * NR) {
            unroll (int i = 0; i < rows; i++) {
                const idx y = top[i] + kh * DH, z = left[i] + kw * DW;
                at[i] = !PADDED || ((u64)y < H && (u64)z < W) ? x + y * XH + z * XW : padding;
            }
            rolled for (idx k = 0; k < C / 8; k++, w += 4 * NR, next += STEP)
                step(rows, 8, at, k, flip, w, packed, places, acc, next);
            if (C % 8) {
                step(rows, C % 8, at, C / 8, flip, w, packed, places, acc, next);
                w += 4 * NR, next += STEP;
            }
        }
    unroll (int i = 0; i < rows; i++)
        unroll (int j = 0; j < NV; j++) {
            const int lanes = !edge ? VL : OC % NR - j * VL;
            if (lanes > 0) finish(t, acc[i][j], b, p + i, g * OC + n + j * VL, lanes < VL ? lanes : VL);
        }
}

#define TILE(rows, edge) tile(rows, edge, a, &T, x, padding, w, places, next, b, p, g, n)
void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    i32 *places = scratch;
    i8 padding[PADDED ? C : 1];
    if (PADDED) __builtin_memset(padding, PAD, C);
    for (idx t = begin; t < end; t++) {
        const idx mb = t % MBS, nb = t / MBS % NBS, g = t / (MBS * NBS) % GROUPS, b = t / (MBS * NBS * GROUPS);
        const idx p0 = mb * MB, p1 = p0 + MB < PIXELS ? p0 + MB : PIXELS;
        const idx n0 = nb * NB, n1 = n0 + NB < OC ? n0 + NB : OC;
        const i8 *x = (const i8 *)a[0].p + X_AT(b) + g * C;
        const i8 *w = (const i8 *)a[1].p + (g * PANELS + n0 / NR) * PANEL;
        for (idx n = n0; n < n1; n += NR, w += PANEL) {
            const i8 *next = w + PANEL;
            if (EXPANDED) expand_places(w + PLACES, places);
            idx p = p0;
            if (OC % NR == 0 || n + NR <= OC) {
                for (; p + MR <= p1; p += MR, next += TAPS * EIGHTS * STEP) TILE(MR, false);
                if (p < p1) COUNTED(PIXELS % MR, MR, TILE(COUNT, false));
            } else {
                for (; p + MR <= p1; p += MR, next += TAPS * EIGHTS * STEP) TILE(MR, true);
                if (p < p1) COUNTED(PIXELS % MR, MR, TILE(COUNT, true));
            }
        }
    }
}
