// Rows of a table of few bits, y[r, k] = (w[i, k] − zero) · scale with i = indices[r], out of the panels of
// quantized_linear.c, which are shared with the product that has these weights. Negative indices count from the end,
// and those out of range are clamped.
#include "vec.h"

// <region>
enum : idx { ROWS = 6, COLS = 70, COUNT = 37, NV = 2, BLOCK = 32, BITS = 4, STEP = 32, ZEROS = 1, OFFSETS = 0 };
enum : idx { SCALES = 16 * 2 * VL, NUMBERS = 18 * 2 * VL, RECORD = 19 * 2 * VL };
typedef f16 scale;
typedef f16 offset;
#define LOAD_SCALE ld_f16
#define LOAD_OFFSET ld_f16
typedef i64 index;
#define I_AT(r) (r)
typedef struct { float *y; } tail;
AI tail tail_open(const args *a) { return (tail){ a[2].p }; }
AI void finish(const tail *t, vf32 x, idx b, idx r, idx c, int n) { stn_f32(t->y + r * COLS + c, x, n); }
// </region>
// <tactic>
enum : idx { RB = 2 };
// </tactic>

enum : idx {
    NR = NV * VL,
    BLOCKS = (COLS + BLOCK - 1) / BLOCK,
    SUBS = BLOCK / STEP,
    CODES = NR * STEP * BITS / 8, // bytes of a step's codes
};

// The codes of a step of one column: four bytes of each group, `p` those of the first.
AI void spread(u8 *to, const u8 *p) {
    enum { EACH = 32 / BITS }; // codes of a group
    unroll (int g = 0; g < STEP / EACH; g++) {
        u32 w;
        __builtin_memcpy(&w, p + g * 4 * VL, 4);
        const u32 low = BITS == 4 ? w & 0x0f0f0f0f : w, high = w >> 4 & 0x0f0f0f0f;
        __builtin_memcpy(to + g * EACH, &low, 4);
        if (BITS == 4) __builtin_memcpy(to + g * EACH + 4, &high, 4);
    }
}

AI void row(const args *a, const tail *t, idx at, idx r) {
    const idx column = at % NR, half = column / VL, lane = column % VL;
    const u8 *p = (const u8 *)a[1].p + at / NR * BLOCKS * RECORD;
    for (idx k = 0; k < COLS; p += RECORD) {
        const vf32 scales = LOAD_SCALE((const scale *)(p + SCALES) + half * VL);
        const vf32 offsets = OFFSETS ? LOAD_OFFSET((const offset *)(p + NUMBERS) + half * VL) : bc_f32(0);
        const vf32 by = bc_f32(scales[lane]), least = bc_f32(offsets[lane]);
        const vi32 zero = bc_i32(ZEROS ? p[NUMBERS + column] : OFFSETS ? 0 : 1 << (BITS - 1));
        for (idx u = 0; u < SUBS && k < COLS; u++, k += STEP) {
            u8 codes[STEP];
            spread(codes, p + u * CODES + half * (CODES / NV) + lane * 4);
            for (int j = 0; j < STEP && k + j < COLS; j += VL) {
                const idx left = COLS - k - j;
                const vf32 x = CONVERT(CONVERT(*(const vu8_in_memory *)(codes + j), i32) - zero, f32) * by + least;
                finish(t, x, 0, r, k + j, left < VL ? (int)left : VL);
            }
        }
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const tail T = tail_open(a);
    for (idx r = begin * RB; r < end * RB && r < ROWS; r++) {
        idx at = ((const index *)a[0].p)[I_AT(r)];
        at += at < 0 ? COUNT : 0;
        row(a, &T, at < 0 ? 0 : at < COUNT ? at : COUNT - 1, r);
    }
}
