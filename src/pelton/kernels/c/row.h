// Walking along a row: whole vectors in four chains, so that none waits for the one before it, then whole vectors, then the rest.
#pragma once
#include "vec.h"

// total = JOIN(total, the JOIN of TERM(c, lanes) over the n elements of a row), always in the same order; lanes is VL but for the last vector.
#define JOIN_ROW(total, n, JOIN, TERM) do { \
    long c_ = 0; \
    if ((n) >= 8 * VL) { \
        __typeof__(total) part_[4]; \
        unroll (int j_ = 0; j_ < 4; j_++) part_[j_] = TERM(j_ * VL, VL); \
        for (c_ = 4 * VL; c_ + 4 * VL <= (n); c_ += 4 * VL) \
            unroll (int j_ = 0; j_ < 4; j_++) part_[j_] = JOIN(part_[j_], TERM(c_ + j_ * VL, VL)); \
        part_[0] = JOIN(part_[0], part_[1]), part_[2] = JOIN(part_[2], part_[3]); \
        part_[0] = JOIN(part_[0], part_[2]), total = JOIN(total, part_[0]); \
    } \
    for (; c_ + VL <= (n); c_ += VL) total = JOIN(total, TERM(c_, VL)); \
    if ((n) % VL) total = JOIN(total, TERM(c_, (n) % VL)); \
} while (0)

// Lanes from n on become `other`.
#define KEEP(v, n, other) SELECT((vi32){LANES} < (int)(n), v, other)
