/* Non-maximum suppression: keeps boxes, best first, unless they overlap a kept one too much. */
#ifndef PELTON_BOXES_H
#define PELTON_BOXES_H

#include <stdbool.h>
#include <stdint.h>

#include "export.h"

/* Converts boxes [n, 4] to corners (y0, x0, y1, x1), low ones first; `center`: boxes are center and size. */
void box_corners(const float *boxes, int64_t n, bool center, float *corners);

/* Boxes are corners, low ones first. A heap yields them best first, and sorts only the visited ones. Boxes without a
 * common area, or without an area, never overlap, whatever the bound. `heap` has room for n numbers, `work` for
 * 5 * limit; returns the number of `kept` boxes. */
EXPORT int64_t pelton_suppress(const float *boxes, const float *score, int64_t n, float bound, float floor, bool all,
                               int64_t limit, int32_t *heap, float *work, int64_t *kept);

#endif
