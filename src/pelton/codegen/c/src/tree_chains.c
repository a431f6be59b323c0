// Decision trees whose leaves have one weight each. The trees of a part that share a target form a chain: a leaf leads
// to the root of the next tree, the last one to a slot that leads to itself. Every slot has a weight; that of a branch
// changes nothing. So a walk of a row along a chain is one loop without branches, and the lengths of walks even out
// over the trees. Each step depends on the one before it: a tile takes several walks at a time, which hides the
// latency. Walks are ordered by chain, then row, so that rows pass through a chain while it is in L1.
#include "vec.h"

// <region>
enum : idx { ROWS = 5, FEATURES = 4, TARGETS = 1, CHAINS = 1, XR = 4, XF = 1, YP = 5, YR = 1, YT = 1, MISSING = 0 };
typedef f32 element, value;
#define START 0
#define JOIN(a, b) ((a) + (b))
// </region>
// <tactic>
enum : idx { WALKS = 16 };
// </tactic>

enum : idx { STRIDE = 2 }; // steps between two checks for the end of all walks
typedef struct { element threshold; i32 feature, child; value weight; } node;

typedef struct { const node *nodes; const u8 *missing; } forest; // missing: true where NaN leads to the child

AI bool has_nan(const element *x) {
    bool found = false;
    for (idx f = 0; f < FEATURES; f++) found |= x[f * XF] != x[f * XF];
    return found;
}

AI void walk(const forest *of, bool nans, i32 *at, const element *const *x, value *sum) {
    for (i32 moved = 1; moved;) {
        moved = 0;
        unroll (int s = 0; s < STRIDE; s++) {
            unroll (int l = 0; l < WALKS; l++) {
                const node *n = of->nodes + at[l];
                const element v = x[l][n->feature * XF];
                const bool is_first = v <= n->threshold || (nans && v != v && of->missing[at[l]]);
                const i32 to = n->child + !is_first;
                sum[l] = JOIN(sum[l], n->weight);
                if (s == STRIDE - 1) moved |= to ^ at[l];
                at[l] = to;
            }
        }
    }
}

void KERNEL(const args *table, idx begin, idx end, void *scratch) {
    OWN_ARGS(a, table);
    const element *all = a[0].p;
    const forest of = { .nodes = a[1].p, .missing = a[3].p };
    const i32 *first = a[2].p;
    for (idx b = begin; b < end; b++) {
        idx chain = b * WALKS / ROWS, row = b * WALKS % ROWS;
        i32 at[WALKS];
        const element *x[WALKS];
        value sum[WALKS], *y[WALKS];
        bool nans = false;
        unroll (int l = 0; l < WALKS; l++) { // after the last walk, that one again
            at[l] = first[chain];
            x[l] = all + row * XR;
            y[l] = (value *)a[4].p + chain / TARGETS * YP + row * YR + chain % TARGETS * YT;
            sum[l] = START;
            if (MISSING && l < ROWS) nans |= has_nan(x[l]);
            if (++row == ROWS) {
                if (++chain == CHAINS) chain--, row--;
                else row = 0;
            }
        }
        if (nans) walk(&of, true, at, x, sum);
        else walk(&of, false, at, x, sum);
        unroll (int l = 0; l < WALKS; l++) *y[l] = sum[l];
    }
}
