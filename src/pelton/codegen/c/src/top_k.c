// The K largest (or smallest) elements along an axis and their indices, in order. A heap holds the best so far, the
// last of them at its root.
#include "vec.h"

// <region>
enum : idx { ROWS = 3, N = 19, K = 4, XN = 1, VALUES_N = 1, INDICES_N = 1, VALUES = 1, INDICES = 1 };
#define X_AT(r) ((r) * N)
#define VALUES_AT(r) ((r) * K)
#define INDICES_AT(r) ((r) * K)
#define BEYOND >
#define INDEX i32
typedef f32 element;
// </region>
// <tactic>
enum : idx { RB = 1 };
// </tactic>

typedef struct { element value; INDEX at; } item;

// True if one precedes the other in the result: NaN counts as largest, equals keep their order.
AI bool before(item a, item b) {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a | nan_b) return nan_a & nan_b ? a.at < b.at : (1 BEYOND 0) == nan_a;
    return a.value BEYOND b.value || (a.value == b.value && a.at < b.at);
}

// Restores the heap of n items after its root was replaced.
AI void sink(item *heap, idx n) {
    const item sinking = heap[0];
    idx i = 0;
    for (idx child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child], heap[child + 1])) child++;
        if (!before(sinking, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = sinking;
}

AI void rise(item *heap, idx i, item rising) {
    for (idx parent; i > 0 && before(heap[parent = (i - 1) / 2], rising); i = parent) heap[i] = heap[parent];
    heap[i] = rising;
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    item *heap = scratch;
    for (idx r = begin * RB; r < (end * RB < ROWS ? end * RB : ROWS); r++) {
        const element *x = (const element *)a[0].p + X_AT(r);
        for (idx i = 0; i < N; i++) {
            const item next = { x[i * XN], (INDEX)i };
            if (i < K) rise(heap, i, next);
            else if (before(next, heap[0])) heap[0] = next, sink(heap, K);
        }
        for (idx n = K; n > 0; n--) {
            const item last = heap[0];
            heap[0] = heap[n - 1];
            sink(heap, n - 1);
            if (VALUES) ((element *)a[1].p)[VALUES_AT(r) + (n - 1) * VALUES_N] = x[last.at * XN];
            if (INDICES) ((i64 *)a[1 + VALUES].p)[INDICES_AT(r) + (n - 1) * INDICES_N] = last.at;
        }
    }
}
