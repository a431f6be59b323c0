// Blocks of a row of output pixels, so that taps are checked against the ends of the row only where a window may cross
// them: included behind the sizes of a region and TW, the pixels of a block.
#pragma once
#include "vec.h"

#define Q0 ((PL + SW - 1) / SW < OW ? (PL + SW - 1) / SW : OW) // first pixel that reads nothing left of the feature map
#define LAST (W - 1 - (KW - 1) * DW + PL)
#define Q2 (LAST < 0 ? 0 : LAST / SW + 1)
#define Q1 (Q2 < Q0 ? Q0 : Q2 < OW ? Q2 : OW) // first that reads past the right edge

// PIXELS(count, edge, q) computes `count` pixels from q on, whose taps it checks where `edge` is set; BORDER(q) one.
// With EDGES, sizes are constants and the window is small: blocks of TW pixels from 0 on are those whose windows cross
// the left edge, those whose windows cross none, those whose windows cross the right edge, and the rest. Then q is a
// constant wherever `edge` is set.
#if EDGES
enum : idx {
    A0 = (Q0 + TW - 1) / TW,
    A = A0 * TW < OW ? A0 : OW / TW,
    M = Q1 > A * TW ? (Q1 - A * TW) / TW : 0,
    Z = OW / TW
};
#define EACH_BLOCK(PIXELS, BORDER) do { \
    unroll (int i = 0; i < A; i++) PIXELS(TW, 1, i * TW); \
    for (idx i = A; i < A + M; i++) PIXELS(TW, 0, i * TW); \
    unroll (int i = A + M; i < Z; i++) PIXELS(TW, 1, i * TW); \
    if (OW % TW) PIXELS(OW % TW, 1, Z * TW); \
} while (0)
#else
#define EACH_BLOCK(PIXELS, BORDER) do { \
    const idx q0 = Q0, q1 = Q1; \
    for (idx q = 0; q < q0; q++) BORDER(q); \
    idx q = q0; \
    for (; q + TW <= q1; q += TW) PIXELS(TW, 0, q); \
    COUNTED((Q1 - Q0) % TW, TW, PIXELS(COUNT, 0, q)); \
    for (q += (Q1 - Q0) % TW; q < OW; q++) BORDER(q); \
} while (0)
#endif
