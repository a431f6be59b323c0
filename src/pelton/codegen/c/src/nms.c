// Non-maximum suppression to a fixed number of boxes, one picture to a tile. A heap gives the boxes of a class from the
// best on; the best of all classes are kept in order.
#include "vec.h"

// <region>
enum : idx { N = 40, CLASSES = 3, KEEP = 9, MOST = 40, BN = 4, BC = 1, SC = 40, SN = 1, YK = 6, YC = 1 };
enum : idx { BACKGROUND = -1, PER_CLASS = 1 };
#define BOXES_AT(b) ((b) * N * 4)
#define SCORES_AT(b) ((b) * CLASSES * N)
#define Y_AT(b) ((b) * KEEP * 6)
#define SCORE 0.5f
#define OVERLAP 0.2f
// </region>
// <tactic>
// </tactic>

typedef struct { f32 score; i32 at; } item;
typedef struct { f32 x1, y1, x2, y2, area; } corners;
typedef struct { f32 score; i32 class, at; } selected;

// True if one precedes the other: equals keep their order.
AI bool before(item a, item b) { return a.score > b.score || (a.score == b.score && a.at < b.at); }

AI void sink(item *heap, idx i, idx n) {
    const item sinking = heap[i];
    for (idx child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], sinking)) break;
        heap[i] = heap[child];
    }
    heap[i] = sinking;
}

AI corners box_of(const args *a, const f32 *boxes, idx at) {
    const f32 *p = boxes + at * BN;
    const f32 w = p[2 * BC] - p[0], h = p[3 * BC] - p[BC];
    return (corners){ p[0], p[BC], p[2 * BC], p[3 * BC], w > 0 && h > 0 ? w * h : 0 };
}

// True if the intersection of two boxes exceeds OVERLAP of their union.
AI bool overlaps(corners a, corners b) {
    const f32 w = (a.x2 < b.x2 ? a.x2 : b.x2) - (a.x1 > b.x1 ? a.x1 : b.x1);
    const f32 h = (a.y2 < b.y2 ? a.y2 : b.y2) - (a.y1 > b.y1 ? a.y1 : b.y1);
    const f32 common = w > 0 && h > 0 ? w * h : 0;
    return common > OVERLAP * (a.area + b.area - common);
}

// Adds the rest of the n boxes in a heap to the `count` best so far; returns the new count.
static idx suppress(
    const args *a, const f32 *boxes, item *heap, idx n, const i32 *classes, i32 class, corners *taken, selected *best,
    idx count
) {
    for (idx i = n / 2; i-- > 0;) sink(heap, i, n);
    idx held = 0;
    for (idx tried = 0; n > 0 && tried < MOST && held < KEEP; tried++) {
        const item next = heap[0];
        // the rest is no better
        if (count == KEEP && next.score <= best[KEEP - 1].score) break;
        heap[0] = heap[--n];
        if (n > 0) sink(heap, 0, n);
        const corners box = box_of(a, boxes, next.at);
        idx k = 0;
        while (k < held && !overlaps(taken[k], box)) k++;
        if (k < held) continue;
        taken[held++] = box;
        if (count < KEEP) count++;
        idx at = count - 1;
        for (; at > 0 && best[at - 1].score < next.score; at--) best[at] = best[at - 1];
        best[at] = (selected){ next.score, PER_CLASS ? class : classes[next.at], next.at };
    }
    return count;
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    selected *best = scratch;
    corners *taken = (corners *)(best + KEEP);
    item *heap = (item *)(taken + KEEP);
    i32 *classes = (i32 *)(heap + N);
    for (idx b = begin; b < end; b++) {
        const f32 *boxes = (const f32 *)a[0].p + BOXES_AT(b), *scores = (const f32 *)a[1].p + SCORES_AT(b);
        idx count = 0;
        if (PER_CLASS) {
            for (idx c = 0; c < CLASSES; c++) {
                if (c == BACKGROUND) continue;
                idx n = 0;
                for (idx i = 0; i < N; i++) {
                    const f32 score = scores[c * SC + i * SN];
                    if (score > SCORE) heap[n++] = (item){ score, (i32)i };
                }
                if (n > 0) count = suppress(a, boxes, heap, n, classes, (i32)c, taken, best, count);
            }
        } else {
            idx n = 0;
            for (idx i = 0; i < N; i++) {
                item top = { SCORE, -1 };
                for (idx c = 0; c < CLASSES; c++) {
                    const f32 score = scores[c * SC + i * SN];
                    if (c != BACKGROUND && score > top.score) top = (item){ score, (i32)c };
                }
                classes[i] = top.at;
                if (top.at >= 0) heap[n++] = (item){ top.score, (i32)i };
            }
            count = suppress(a, boxes, heap, n, classes, 0, taken, best, 0);
        }
        f32 *y = (f32 *)a[2].p + Y_AT(b);
        for (idx k = 0; k < KEEP; k++, y += YK) {
            const bool is = k < count;
            for (idx i = 0; i < 4; i++) y[i * YC] = is ? boxes[best[k].at * BN + i * BC] : 0;
            y[4 * YC] = is ? best[k].score : 0;
            y[5 * YC] = is ? best[k].class : -1;
        }
    }
}
