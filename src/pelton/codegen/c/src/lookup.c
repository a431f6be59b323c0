// Pointwise functions of one byte: each element is looked up in a table of all 256 results, row by row of the collapsed
// index space.
#include "row.h"

// <region>
enum : idx { ROWS = 3, COLS = 37 };
#define X_AT(r, c) ((r) * COLS + (c))
#define Y_AT(r, c) ((r) * COLS + (c))
// </region>
// <tactic>
enum : idx { RB = 1, CB = 1024 };
// </tactic>

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    (void)scratch;
    OWN_ARGS(a, table);
    const u8 *x = a[0].p, *results = a[1].p;
    u8 *y = a[2].p;
    for (idx t = begin; t < end; t++)
        EACH_ROW(t) {
            idx c = c0;
            for (; c + 8 <= c1; c += 8) unroll (idx i = 0; i < 8; i++) y[Y_AT(r, c + i)] = results[x[X_AT(r, c + i)]];
            for (; c < c1; c++) y[Y_AT(r, c)] = results[x[X_AT(r, c)]];
        }
}
