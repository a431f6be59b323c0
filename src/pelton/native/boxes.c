/* Non-maximum suppression. See boxes.h. */
#include "boxes.h"

/* the same sums as the reference, on every machine */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

/* True if box a comes before box b: a better score, then the earlier one; NaN comes last. */
static bool before(const float *score, int32_t a, int32_t b) {
    if (score[a] > score[b])
        return true;
    if (score[a] < score[b])
        return false;
    bool a_not = score[a] != score[a], b_not = score[b] != score[b];
    return a_not == b_not ? a < b : b_not;
}

static void sink(const float *score, int32_t *heap, int64_t n, int64_t i) {
    int32_t box = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(score, heap[child + 1], heap[child]);
        if (before(score, box, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = box;
}

void box_corners(const float *boxes, int64_t n, bool center, float *corners) {
    for (const float *end = boxes + 4 * n; boxes < end; boxes += 4, corners += 4)
        for (int k = 0; k < 2; k++) {
            const float a = boxes[k], b = boxes[2 + k];
            corners[k] = center ? a - b / 2 : b < a ? b : a;
            corners[2 + k] = center ? a + b / 2 : b < a ? a : b;
        }
}

int64_t pelton_suppress(const float *boxes, const float *score, int64_t n, float bound, float floor, bool all,
                               int64_t limit, int32_t *heap, float *work, int64_t *kept) {
    int64_t left = 0, count = 0;
    for (int64_t i = 0; i < n; i++)
        if (all || score[i] > floor)
            heap[left++] = i;
    for (int64_t i = left / 2; i-- > 0;)
        sink(score, heap, left, i);
    float *ky0 = work, *kx0 = work + limit, *ky1 = work + 2 * limit, *kx1 = work + 3 * limit, *karea = work + 4 * limit;
    while (left && count < limit) {
        const float *b = boxes + 4 * (int64_t)heap[0], y0 = b[0], x0 = b[1], y1 = b[2], x1 = b[3];
        const float area = (y1 - y0) * (x1 - x0);
        bool hit = false;
        for (int64_t from = 0; from < count && !hit; from += 32) {
            int64_t to = from + 32 < count ? from + 32 : count;
            int over = 0;
            for (int64_t k = from; k < to; k++) {
                float height = (y1 < ky1[k] ? y1 : ky1[k]) - (y0 > ky0[k] ? y0 : ky0[k]);
                float width = (x1 < kx1[k] ? x1 : kx1[k]) - (x0 > kx0[k] ? x0 : kx0[k]);
                float common = (height > 0 ? height : 0) * (width > 0 ? width : 0);
                over |= (common / (area + karea[k] - common) > bound) & (common > 0) & (area > 0) & (karea[k] > 0);
            }
            hit = over;
        }
        if (!hit) {
            ky0[count] = y0, kx0[count] = x0, ky1[count] = y1, kx1[count] = x1, karea[count] = area;
            kept[count++] = heap[0];
        }
        heap[0] = heap[--left];
        sink(score, heap, left, 0);
    }
    return count;
}
