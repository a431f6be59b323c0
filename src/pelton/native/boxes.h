/* Non-maximum suppression: keeps boxes, best first, that overlap no kept one too much. */
#ifndef PELTON_BOXES_H
#define PELTON_BOXES_H

#include <stdbool.h>
#include <stdint.h>

#include "export.h"

/* Boxes [n, 4] as corners (y0, x0, y1, x1), low ones first; `center`: they are given as center and size. */
void box_corners(const float *boxes, int64_t n, bool center, float *corners);

/* Boxes are corners, low ones first. A heap gives them best first, so that no more of them are sorted than are visited.
 * Boxes without a common area, or without an area, do not overlap whatever the bound. `heap` has room for n numbers,
 * `work` for 5 * limit; returns how many are `kept`. */
EXPORT int64_t pelton_suppress(const float *boxes, const float *score, int64_t n, float bound, float floor, bool all,
                               int64_t limit, int32_t *heap, float *work, int64_t *kept);

#endif
