/* Common parts of opening and resolving plans. */
#ifndef PELTON_PLAN_PARTS_H
#define PELTON_PLAN_PARTS_H

#include "plan.h"

enum { ALIGNMENT = 64, MAX_RANK = 32, MAX_ROWS = 1 << 24 };
static const int64_t MAX_BYTES = INT64_C(1) << 46;          /* more than any machine has */
static const int64_t MAX_ZEROS = INT64_C(1) << 28;          /* far more than all counters of an engine need */
static const int64_t MAX_TILES = (INT64_C(1) << 31) - 1;    /* the walker counts them in 32 bits */

/* True if `count` things from `first` on are among `all`. */
static inline bool within(int64_t first, int64_t count, int64_t all) {
    return first >= 0 && count >= 0 && first <= all && count <= all - first;
}

static inline const char *label(const plan *p, const plan_step *s) { return p->text + s->name; }

/* Sorts numbers from 0 to n - 1; `later` is true if the first of two comes later. */
typedef bool after(const void *with, int32_t a, int32_t b);
void sort(int32_t *numbers, int32_t n, after *later, const void *with);

#endif
