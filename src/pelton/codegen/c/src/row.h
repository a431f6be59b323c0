// Loops over rows: over the rows of a tile, over the vectors of a row, and the reduction of a row.
#pragma once
#include "vec.h"

// Tile t of an output of ROWS × COLS elements is RB rows of CB columns: the statement behind it runs for each of its
// rows r, between columns c0 and c1.
#define CBS ((COLS + CB - 1) / CB)
#define EACH_ROW(t) \
    for (idx r = (t) / CBS * RB, r1_ = r + RB < ROWS ? r + RB : ROWS, c0 = (t) % CBS * CB, \
             c1 = c0 + CB < COLS ? c0 + CB : COLS; \
         r < r1_; r++)

// Runs a statement for `vectors` vectors of `lanes` lanes from column c on: `unrolled` whole ones at a time, then
// single whole ones, then the rest of COLS.
#define EACH_VECTOR(unrolled, ...) \
    do { \
        idx c = c0; \
        for (; (unrolled) > 1 && c + (unrolled) * VL <= c1; c += (unrolled) * VL) { \
            const int vectors = unrolled, lanes = VL; \
            __VA_ARGS__; \
        } \
        for (; c + VL <= c1; c += VL) { \
            const int vectors = 1, lanes = VL; \
            __VA_ARGS__; \
        } \
        if (COLS % VL && c < c1) { \
            const int vectors = 1, lanes = COLS % VL; \
            __VA_ARGS__; \
        } \
    } while (0)

enum : idx { SPAN = 4096 }; // elements of a partial result

// total = JOIN(total, the JOIN of TERM(c, lanes) over the n elements of a row), always in the same order; lanes is VL
// but for the last vector. Whole vectors are joined in four chains, so that none waits for the one before it.
#define JOIN_ROW(total, n, JOIN, TERM) do { \
    for (idx s_ = 0; s_ < (n); s_ += SPAN) { \
        const idx e_ = (n) - s_ < SPAN ? (n) : s_ + SPAN; \
        idx c_ = s_; \
        if (e_ - s_ >= 8 * VL) { \
            __typeof__(total) part_[4]; \
            unroll (int j_ = 0; j_ < 4; j_++) part_[j_] = TERM(s_ + j_ * VL, VL); \
            for (c_ += 4 * VL; c_ + 4 * VL <= e_; c_ += 4 * VL) \
                unroll (int j_ = 0; j_ < 4; j_++) part_[j_] = JOIN(part_[j_], TERM(c_ + j_ * VL, VL)); \
            part_[0] = JOIN(part_[0], part_[1]), part_[2] = JOIN(part_[2], part_[3]); \
            part_[0] = JOIN(part_[0], part_[2]), total = JOIN(total, part_[0]); \
        } \
        for (; c_ + VL <= e_; c_ += VL) total = JOIN(total, TERM(c_, VL)); \
        if ((n) % VL && e_ == (n)) total = JOIN(total, TERM(c_, (n) % VL)); \
    } \
} while (0)

// Lanes from n on become `other`.
#define KEEP(v, n, other) SELECT((vi32){LANES} < (int)(n), v, other)
