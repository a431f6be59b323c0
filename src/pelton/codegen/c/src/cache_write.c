// A cache of attention with rows written behind its valid part. A tile is a run of CHUNK positions of one head: the
// positions before `begin` come from the cache, those before `end` from the rows, and the others are 0, or, with KEEP,
// those of the cache. Both numbers are limited to what there is. Where the result has the memory of the cache, nothing
// but the rows is written.
#include "vec.h"

// <region>
enum : idx { BATCH = 2, HEADS = 3, C = 7, R = 2, L = 9, D = 4, KEEP = 0, XR = 4, UR = 4, YR = 4 };
#define X_AT(b, h) (((b) * HEADS + (h)) * C * D)
#define U_AT(b, h) (((b) * HEADS + (h)) * R * D)
#define Y_AT(b, h) (((b) * HEADS + (h)) * L * D)
#define BEGIN_AT(b) (b)
#define END_AT(b) (b)
typedef i64 place;
typedef f32 element;
// </region>
// <tactic>
enum : idx { CHUNK = 64 };
// </tactic>

#define CHUNKS ((L + CHUNK - 1) / CHUNK)

AI void copy_rows(const args *a, element *y, const element *x, idx step, idx n) {
    if (step == D && YR == D) __builtin_memcpy(y, x, n * D * sizeof(element));
    else
        for (idx i = 0; i < n; i++) __builtin_memcpy(y + i * YR, x + i * step, D * sizeof(element));
}

AI void clear_rows(const args *a, element *y, idx n) {
    for (idx i = 0; i < n; i++) __builtin_memset(y + i * YR, 0, D * sizeof(element));
}

AI idx limited(i64 x, idx low, idx high) { return x < low ? low : x > high ? high : x; }

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const idx held = C < L ? C : L;
    const bool in_place = a[0].p == a[4].p;
    for (idx t = begin; t < end; t++) {
        const idx b = t / (HEADS * CHUNKS), h = t / CHUNKS % HEADS, from = t % CHUNKS * CHUNK;
        const idx to = from + CHUNK < L ? from + CHUNK : L;
        const idx at = limited(((const place *)a[2].p)[BEGIN_AT(b)], 0, held);
        const idx stop = limited(((const place *)a[3].p)[END_AT(b)], at, at + R < L ? at + R : L);
        const element *x = (const element *)a[0].p + X_AT(b, h), *u = (const element *)a[1].p + U_AT(b, h);
        element *y = (element *)a[4].p + Y_AT(b, h);
        idx i = from;
        if (in_place && i < at) i = at < to ? at : to;
        if (i < at) {
            const idx n = (at < to ? at : to) - i;
            copy_rows(a, y + i * YR, x + i * XR, XR, n);
            i += n;
        }
        if (i < to && i < stop) {
            const idx n = (stop < to ? stop : to) - i;
            copy_rows(a, y + i * YR, u + (i - at) * UR, UR, n);
            i += n;
        }
        if (in_place) continue;
        if (KEEP && i < to && i < held) {
            const idx n = (held < to ? held : to) - i;
            copy_rows(a, y + i * YR, x + i * XR, XR, n);
            i += n;
        }
        clear_rows(a, y + i * YR, to - i);
    }
}
